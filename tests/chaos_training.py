"""What `make chaos` kills: a short training with the callback, on one rank or, started once a rank, on several.

python tests/chaos_training.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if "RANK" in os.environ:
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "chaos")  # Lightning starts no ranks of its own

import harness
import lightning.pytorch as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from small import QUIET, Net, Settle, make_loader

from lightning_resume import Keep, ResumeCallback, SaveEvery


class Noisy(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * torch.rand(())


def main(folder: Path) -> None:
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    L.seed_everything(7, verbose=False)
    resume = ResumeCallback(folder / "run", save=SaveEvery(steps=1, minutes=None), keep=Keep(last=99))
    several = {"strategy": DDPStrategy(process_group_backend="gloo")} if num_ranks > 1 else {}
    arguments = {**QUIET, "devices": num_ranks, "max_epochs": 1, "default_root_dir": str(folder), **several}
    trainer = L.Trainer(**arguments, callbacks=[resume, Settle()])
    net = Noisy()
    trainer.fit(net, make_loader(num_samples=8 * num_ranks))
    state = [net.state_dict(), trainer.optimizers[0].state_dict(), torch.get_rng_state()]
    (folder / f"end-{rank}").write_text(harness.digest(state))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
