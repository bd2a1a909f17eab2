"""With Accelerate: alone as its examples do it, or with our plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

from exact.data import Net, make_held_out, make_loader
from exact.job import Job, Recorder


class Training:
    """One start.

    Args:
        job: of this start.
        loading: arguments of ``DataLoaderConfiguration``.
        ours: whether our plugin is attached.
    """

    def __init__(self, job: Job, loading: dict[str, Any], *, ours: bool) -> None:
        self.job, self.is_stateful = job, loading.get("use_stateful_dataloader", False)
        self.recorder = Recorder(job)
        set_seed(job.seed)
        config = DataLoaderConfiguration(**loading)
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=job.accumulate,
            dataloader_config=config,
            step_scheduler_with_optimizer=False,
        )
        self.resume = self._attach() if ours else None
        net = Net(job, self.recorder)
        optimizer = torch.optim.AdamW(net.parameters(), job.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        self.num_batches = job.num_batches
        loaders = make_loader(job), make_held_out()
        self.net, self.optimizer, self.schedule = self.accelerator.prepare(net, optimizer, schedule)
        self.loader, self.held_out = (self.accelerator.prepare(loader) for loader in loaders)
        self.recorder.rate = lambda: float(self.optimizer.param_groups[0]["lr"])

    def _attach(self) -> Any:
        from accelerate_resume import Changes, Keep, ResumePlugin, SaveEvery

        job = self.job
        save = SaveEvery(steps=job.save_every, epochs=None if job.save_every else 1)
        changes = Changes(allow=("seed",) * job.allow_seed)
        plugin = ResumePlugin(job.checkpoints, save=save, keep=Keep(last=99), changes=changes)
        return plugin.attach(self.accelerator)

    def run(self) -> None:
        if self.resume is None:
            self._run_stock()
        else:
            self._run_ours()
        self.recorder.end(self.accelerator.unwrap_model(self.net).state_dict())

    def _run_ours(self) -> None:
        counters = self.resume.counters(batch=0)
        epochs = self.resume.epochs(self.job.epochs)
        for number, epoch in enumerate(epochs):
            if number == 0:
                self.recorder.begin(counters.batch)
            self._follow(epoch)
            for batch in self.loader:
                self._train(batch)
                counters.batch += 1
                self._validate(counters.batch)

    def _run_stock(self) -> None:
        """After ``run_clm_no_trainer.py`` and ``by_feature/checkpointing.py``."""
        batches = self._restore()
        self.recorder.begin(batches)
        first, num_skipped = divmod(batches, self.num_batches)
        for epoch in range(first, self.job.epochs):
            self._follow(epoch)
            self.loader.set_epoch(epoch)
            active = self.loader
            if epoch == first and num_skipped and not self.is_stateful:
                active = self.accelerator.skip_first_batches(self.loader, num_skipped)
            for batch in active:
                self._train(batch)
                batches += 1
                self._validate(batches)
                every = self.job.save_every
                steps = batches // self.job.accumulate
                if every and self.accelerator.sync_gradients and steps % every == 0:
                    self._save(batches)
            if not self.job.save_every:
                self._save(batches)

    def _restore(self) -> int:
        """Load the newest folder; the batches that are done."""
        found = [int(path.name.removeprefix("batch_")) for path in self.job.checkpoints.glob("batch_*")]
        if not found:
            return 0
        self.accelerator.load_state(str(self._place(max(found))))
        return max(found)

    def _save(self, batches: int) -> None:
        self.accelerator.save_state(str(self._place(batches)))

    def _place(self, batches: int) -> Path:
        return self.job.checkpoints / f"batch_{batches}"

    def _follow(self, epoch: int) -> None:
        self.net.train()
        self.recorder.epoch = lambda: epoch

    def _train(self, batch: dict[str, Any]) -> None:
        with self.accelerator.accumulate(self.net):
            loss = self.net(**batch)["loss"]
            self.accelerator.backward(loss)
            self.optimizer.step()
            if self.accelerator.sync_gradients:
                self.schedule.step()
            self.optimizer.zero_grad()

    def _validate(self, batches: int) -> None:
        if not self.job.validate_every or batches % self.job.validate_every:
            return
        self.net.eval()
        with torch.no_grad():
            for batch in self.held_out:
                self.net(**batch)
        self.net.train()


def train(job: Job, *, ours: bool = False, **loading: Any) -> None:
    Training(job, loading, ours=ours).run()
