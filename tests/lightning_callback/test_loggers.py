"""Loggers go on in the folder of their run, with each step there once."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger
from outputs import scalars
from small import QUIET, Net, Settle, make_loader

from lightning_resume import ResumeCallback, SaveEvery
from resume_core.errors import ConfigChangedError

# about a version that is there already, which Lightning would write over
pytestmark = pytest.mark.filterwarnings("ignore:.*exists and is not empty.*:UserWarning")
STOP_AT, SAVED = 7, 5


class Logs(Net):
    """Logs a value of every kind; a start that is cut ends in the batch ``stop_at``."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.stop_at = stop_at
        self.register_buffer("count", torch.zeros(()))

    def on_train_start(self):
        for logger in self.loggers:
            logger.log_metrics({"begun": 1.0}, step=0)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.count += 1
        if self.count == 6:
            self.log("late", loss)  # a new column; the checkpoint does not know it
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_scalars("pair", {"a": loss.item(), "b": 1.0}, self.global_step)
                logger.experiment.add_scalar("own step", loss.item(), int(self.count))
            else:
                logger.log_metrics({"own": loss.item()})  # the step is Lightning's count of what was not yet written
        if self.global_step == self.stop_at:
            raise InterruptedError
        return loss


@pytest.fixture
def start(fit, tmp_path):
    def run(root, logger, *, stop_at=None, **arguments):
        L.seed_everything(7, verbose=False)
        made = logger(tmp_path / root)
        resume = ResumeCallback(tmp_path / root / "run", save=SaveEvery(steps=SAVED, minutes=None))
        given = {"max_epochs": 3, "logger": made, "log_every_n_steps": 1, "callback": resume} | arguments
        try:
            fit(net=Logs(stop_at), default_root_dir=str(tmp_path / root), **given)
        except InterruptedError:
            assert stop_at is not None
        return made

    return run


def events_of(root):
    return {str(folder.relative_to(root)): scalars(folder) for folder in {p.parent for p in root.rglob("*tfevents*")}}


def folders_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and "run" not in path.parts)


CSV = {
    "a new version": lambda root: CSVLogger(root),
    "a number": lambda root: CSVLogger(root, version=3),
    "a name": lambda root: CSVLogger(root, name="own", version="first", flush_logs_every_n_steps=2),
    "no name": lambda root: CSVLogger(root, name="", prefix="p"),
}


@pytest.mark.parametrize("kind", CSV)
def test_rows_are_those_of_the_uninterrupted_run(start, tmp_path, kind):
    expected = Path(start("whole", CSV[kind]).log_dir, "metrics.csv").read_text()
    start("cut", CSV[kind], stop_at=STOP_AT)
    found = Path(start("cut", CSV[kind]).log_dir, "metrics.csv").read_text()
    assert found == expected
    assert folders_of(tmp_path / "cut") == folders_of(tmp_path / "whole")


EVENTS = {
    "a new version": lambda root: TensorBoardLogger(root),
    "a number": lambda root: TensorBoardLogger(root, version=3, filename_suffix=".mine"),
    "no name": lambda root: TensorBoardLogger(root, name="", version="", default_hp_metric=False),
    "a folder below": lambda root: TensorBoardLogger(root, sub_dir="below"),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_events_are_those_of_the_uninterrupted_run(start, tmp_path, kind):
    start("whole", EVENTS[kind])
    start("cut", EVENTS[kind], stop_at=STOP_AT)
    start("cut", EVENTS[kind], stop_at=STOP_AT + 1)
    start("cut", EVENTS[kind])
    expected, found = events_of(tmp_path / "whole"), events_of(tmp_path / "cut")
    assert found == expected
    assert all(len(v) == 1 for values in found.values() for (tag, _), v in values.items() if tag != "epoch")
    assert folders_of(tmp_path / "cut") == folders_of(tmp_path / "whole")


def test_an_attempt_that_is_killed_before_it_saves_leaves_nothing(start, tmp_path):
    start("whole", TensorBoardLogger)
    start("cut", TensorBoardLogger, stop_at=STOP_AT)
    for _ in range(2):
        start("cut", TensorBoardLogger, stop_at=SAVED + 1)
    start("cut", TensorBoardLogger)
    assert events_of(tmp_path / "cut") == events_of(tmp_path / "whole")


def test_a_file_of_the_users_in_the_new_folder_stays(start, tmp_path):
    def noted(root):
        logger = CSVLogger(root)
        Path(logger.log_dir).mkdir(parents=True, exist_ok=True)
        Path(logger.log_dir, "notes.txt").write_text("mine")
        return logger

    start("cut", CSVLogger, stop_at=STOP_AT)
    logger = start("cut", noted)
    assert logger.version == 0
    assert (tmp_path / "cut/lightning_logs/version_1/notes.txt").read_text() == "mine"


def test_what_the_script_logs_before_fit_is_there_once(start, tmp_path):
    def logs_first(root):
        logger = TensorBoardLogger(root)
        logger.experiment.add_scalar("size", 3.0, 0)
        logger.log_hyperparams({"width": 4})
        return logger

    start("cut", logs_first, stop_at=STOP_AT)
    start("cut", logs_first)
    events = events_of(tmp_path / "cut")["lightning_logs/version_0"]
    assert events["size", 0] == [3.0]
    assert events["own step", 12] != []
    assert folders_of(tmp_path / "cut")[1:2] == ["lightning_logs/version_0"]
    assert not (tmp_path / "cut/lightning_logs/version_1").exists()


def test_events_of_others_in_the_folder_are_left_alone(start, tmp_path):
    other = tmp_path / "cut/other/events.out.tfevents.1.host.1.0"
    near = tmp_path / "cut/events.out.tfevents.2.host.1.0"
    other.parent.mkdir(parents=True)
    logger = EVENTS["no name"]
    start("cut", logger, stop_at=STOP_AT)
    for path in (other, near):
        path.write_bytes(b"theirs")
    start("cut", logger)
    assert [path.read_bytes() for path in (other, near)] == [b"theirs"] * 2


def test_a_refused_resume_cuts_no_logs(start, tmp_path):
    start("cut", lambda root: [CSVLogger(root), TensorBoardLogger(root, version="own")], stop_at=STOP_AT)
    before = {p: p.read_bytes() for p in (tmp_path / "cut/lightning_logs").rglob("*") if p.is_file()}
    with pytest.raises(ConfigChangedError):
        start(
            "cut",
            lambda root: [CSVLogger(root), TensorBoardLogger(root, version="own")],
            loader=make_loader(batch_size=2),
        )
    assert before == {p: p.read_bytes() for p in (tmp_path / "cut/lightning_logs").rglob("*") if p.is_file()}


@pytest.mark.parametrize("every", [4, 5], ids=["saved at its end", "saved before its end"])
def test_a_finished_run_that_is_started_again_keeps_its_log(start, tmp_path, every):
    def text():
        resume = ResumeCallback(tmp_path / "whole/run", save=SaveEvery(steps=every, minutes=None))
        logger = start("whole", CSV["a number"], max_epochs=2, callback=resume)
        return Path(logger.log_dir, "metrics.csv").read_text()

    assert text() == text()


@pytest.mark.filterwarnings("ignore:.*Jsonargparse.*", "ignore::DeprecationWarning")
def test_the_config_that_lightning_cli_saved_does_not_stop_a_resume(tmp_path, monkeypatch):
    from lightning.pytorch.cli import LightningCLI

    class Loads(L.LightningModule):
        def __init__(self, stop_at: int | None = None):
            super().__init__()
            self.stop_at, self.layer = stop_at, torch.nn.Linear(3, 1)

        def train_dataloader(self):
            return make_loader()

        def training_step(self, batch, batch_idx):
            if self.global_step == self.stop_at:
                raise InterruptedError
            return self.layer(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def start(stop_at):
        resume = ResumeCallback(tmp_path / "run", save=SaveEvery(steps=1, minutes=None))
        logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path)}}
        given = QUIET | {"max_epochs": 2, "default_root_dir": str(tmp_path), "logger": logger, "log_every_n_steps": 1}
        monkeypatch.setattr("sys.argv", ["script", "fit", f"--model.stop_at={stop_at}"])
        defaults = given | {"callbacks": [resume, Settle()]}
        cli = LightningCLI(Loads, trainer_defaults=defaults, seed_everything_default=7)
        return cli.trainer

    with pytest.raises(InterruptedError):
        start(3)
    config = tmp_path / "lightning_logs/version_0/config.yaml"
    written = config.read_bytes()
    assert start("null").global_step == 8
    assert config.read_bytes() == written
    assert not (tmp_path / "lightning_logs/version_1").exists()


def test_a_run_that_begins_anew_logs_in_a_new_folder(start, tmp_path):
    start("cut", TensorBoardLogger, stop_at=STOP_AT)
    anew = ResumeCallback(tmp_path / "cut/run", resume="never", save=SaveEvery(steps=SAVED))
    assert start("cut", TensorBoardLogger, callback=anew).version == 1
    assert start("cut", TensorBoardLogger).version == 1


def test_a_logger_that_the_run_did_not_have_is_left_where_it_is(start, tmp_path):
    start("cut", CSVLogger, stop_at=STOP_AT)
    assert start("cut", TensorBoardLogger).version == 1


class Services:
    """Where the fake loggers below begin runs and go on with them."""

    def __init__(self):
        self.begun = []

    def begin(self, run_id):
        self.begun.append(run_id or f"new-{len(self.begun)}")
        return self.begun[-1]


class Wandb(WandbLogger):
    """As W&B's, without W&B."""

    name = "project"

    def __init__(self, services, version=None):
        self._experiment, self._id, self._wandb_init = None, version, {"id": version}
        self._save_dir, self._services, self._checkpoint_callbacks = ".", services, {}

    @property
    def experiment(self):
        if self._experiment is None:
            self._experiment = type("Run", (), {"id": self._services.begin(self._wandb_init["id"])})()
        return self._experiment

    def log_metrics(self, *args, **kwargs):
        return

    log_hyperparams = log_graph = save = finalize = after_save_checkpoint = log_metrics


class MLFlow(MLFlowLogger):
    """As MLflow's, without MLflow."""

    name = "experiment"

    def __init__(self, services, version=None):
        self._run_id, self._initialized, self._services = version, False, services
        self._tracking_uri, self._checkpoint_callback = "http://nowhere", None

    @property
    def experiment(self):
        if not self._initialized:
            self._run_id, self._initialized = self._services.begin(self._run_id), True

    version = property(lambda self: (self.experiment, self._run_id)[1])

    def log_metrics(self, *args, **kwargs):
        return

    log_hyperparams = log_graph = save = finalize = after_save_checkpoint = log_metrics


@pytest.mark.parametrize("kind", [Wandb, MLFlow])
def test_the_logger_of_a_service_goes_on_with_its_run(start, kind):
    services = Services()
    start("cut", lambda root: kind(services), stop_at=STOP_AT)
    start("cut", lambda root: kind(services), stop_at=STOP_AT + 1)
    start("cut", lambda root: kind(services, "chosen"))
    assert services.begun == ["new-0", "new-0", "chosen"]
    start("other", lambda root: kind(services), max_epochs=1)
    assert services.begun[-1] == "new-3"


def test_other_loggers_and_none_change_nothing(start, tmp_path):
    class Other(Logger):
        name, version = "other", "id-1"

        def __init__(self):
            super().__init__()
            self.rows = []

        def log_metrics(self, metrics, step=None):
            self.rows.append((step, metrics))

        def log_hyperparams(self, params):
            return

    start("cut", lambda root: [Other()], stop_at=STOP_AT)
    (again,) = start("cut", lambda root: [Other()])
    assert again.rows[-1][1]["epoch"] == 2
    start("cut", lambda root: False, max_epochs=4)
