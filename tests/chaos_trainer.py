"""What `make chaos` kills beside chaos_training.py: a short training with a Hugging Face Trainer, on one rank.

python tests/chaos_trainer.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import harness
import torch
from trainer_scripts import Recorded, make_trainer


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    chosen = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    job = harness.Job(str(folder), "run", str(folder / "run"), epochs=1, num_samples=12, keep=99, settle=True)
    trainer: Recorded = make_trainer(job.but(options={"arguments": chosen}))
    trainer.train()
    state = [trainer.model.state_dict(), trainer.optimizer.state_dict(), torch.get_rng_state()]
    (folder / "end-0").write_text(harness.digest(state))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
