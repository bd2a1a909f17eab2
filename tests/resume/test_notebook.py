"""A real kernel: a cell that is interrupted and run again, and a kernel that is killed."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest

import lightning_resume

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

DEADLINE_S = 90
DEFINE = """
import logging, time, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as L, torch
from torch.utils.data import DataLoader, Dataset
from lightning_resume import ResumeCallback, SaveEvery

torch.set_num_threads(1)

class Noisy(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.rand(3) + index / 10

class Net(L.LightningModule):
    def __init__(self, pause_s, log):
        super().__init__()
        self.layer, self.pause_s, self.log_to = torch.nn.Linear(3, 1), pause_s, log
    def training_step(self, batch, batch_idx):
        with open(self.log_to, "a") as file:
            file.write(f"{self.global_step}\\n")
        time.sleep(self.pause_s)
        return torch.nn.functional.dropout(self.layer(batch), 0.3).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)

def make(name, pause_s=0.0):
    L.seed_everything(7, verbose=False)
    net = Net(pause_s, f"{ROOT}/{name}.steps")
    callback = ResumeCallback(f"{ROOT}/{name}", save=SaveEvery(steps=1, minutes=None))
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                        enable_model_summary=False, enable_checkpointing=False, callbacks=[callback])
    return trainer, net, DataLoader(Noisy(), 4, shuffle=True, num_workers=2)

def end(net):
    print("end", [p.tolist() for p in net.parameters()])
"""
LEFT = """
owners = trainer, trainer.strategy, trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer._checkpoint_connector
shadows = [name for o in owners for name, value in vars(o).items() if getattr(value, "__name__", "") == "shadow"]
print(type(loader) is DataLoader, shadows)
"""
FIT = "net.pause_s = 0; trainer.fit(net, loader); end(net)"


class Kernel:
    """A kernel and what its cells print."""

    def __init__(self, root):
        self.root = root
        self.manager = manager.KernelManager()
        here = str(Path(lightning_resume.__file__).parents[1])
        self.manager.start_kernel(cwd=here)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE_S)
        self.run(f"ROOT = {str(root)!r}\n{DEFINE}")

    def begin(self, code):
        return self.client.execute(code)

    def result(self, cell):
        """Everything the cell wrote, errors included."""
        found, deadline = [], time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            found.append(content.get("text") or "\n".join(content.get("traceback", [])) or "")
            if content.get("execution_state") == "idle":
                return "".join(found)
        raise AssertionError(f"the cell did not end: {''.join(found)[-3000:]}")

    def run(self, code):
        return self.result(self.begin(code))

    def wait_for_steps(self, name, number):
        file, deadline = self.root / f"{name}.steps", time.monotonic() + DEADLINE_S
        while not file.exists() or len(file.read_text().split()) < number:
            assert time.monotonic() < deadline, f"{name} never did {number} steps"
            time.sleep(0.02)

    def interrupted(self, name, code, number):
        cell = self.begin(code)
        self.wait_for_steps(name, number)
        self.manager.interrupt_kernel()
        return self.result(cell)

    def kill(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    made = []

    def start():
        made.append(Kernel(tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.kill()


def end_of(text):
    lines = [line for line in text.splitlines() if line.startswith("end ")]
    assert lines, text[-3000:]
    return lines[-1]


def test_a_cell_is_interrupted_and_run_again_and_the_kernel_killed(kernel):
    first = kernel()
    expected = end_of(first.run(f"trainer, net, loader = make('whole'); {FIT}"))

    make_and_fit = "trainer, net, loader = make('{0}', 0.05); trainer.fit(net, loader)".format
    said = first.interrupted("same", make_and_fit("same"), 8)
    assert "KeyboardInterrupt" in said or "SystemExit" in said
    assert first.run(LEFT) == "True []\n"
    again = first.run(FIT)  # the same objects
    assert "resumed at step" in again
    assert end_of(again) == expected

    first.interrupted("new", make_and_fit("new"), 4)
    again = first.begin(make_and_fit("new"))  # new objects
    first.wait_for_steps("new", 12)
    first.kill()

    second = kernel()
    again = second.run(f"trainer, net, loader = make('new'); {FIT}")
    assert "resumed at step" in again
    assert end_of(again) == expected
    again = second.run(f"trainer, net, loader = make('new'); {FIT}")
    assert "nothing to train" in again
    assert end_of(again) == expected
