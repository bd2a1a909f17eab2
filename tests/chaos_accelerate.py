"""What `make chaos` kills under Accelerate: a short loop with the plugin, on one rank or, started once a rank, on many.

python tests/chaos_accelerate.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import harness
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from accelerate_resume import Keep, ResumePlugin, SaveEvery


def main(folder: Path) -> None:
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    set_seed(7)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    every = SaveEvery(steps=1, minutes=None)
    resume = ResumePlugin(folder / "run", save=every, keep=Keep(last=99)).attach(accelerator)
    counters = resume.counters(total=0.0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.rand(8 * num_ranks, 3)), 2, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in resume.epochs(2):
        for (batch,) in loader:
            resume._session.wait()  # so that every boundary can save
            with accelerator.accumulate(model):
                loss = (model(batch) + torch.rand(())).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            counters.total += loss.item()
    state = [accelerator.unwrap_model(model).state_dict(), optimizer.state_dict(), torch.get_rng_state()]
    (folder / f"end-{rank}").write_text(harness.digest([*state, counters.total]))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
