"""Bad input gets one clear error, early, and loses nothing."""

from __future__ import annotations

import json

import lightning.pytorch as L
import pytest
import torch
from small import Net, make_loader

import resume_core.storage.sealed as sealed
from lightning_resume import ResumeCallback, SaveEvery
from resume_core.checkpointer import Pending
from resume_core.errors import (
    CheckpointNotFoundError,
    ConfigChangedError,
    CorruptCheckpointError,
    ResumeError,
    SaveFailedError,
    UnsupportedStateError,
)


def checkpoints(tmp_path):
    return sorted((tmp_path / "run").glob("attempt-*/step-*"))


def before_the_end(tmp_path):
    """The newest checkpoint that is not the end state of a finished run."""
    return [
        c for c in checkpoints(tmp_path) if json.loads((c / "manifest.json").read_text())["header"]["finished"] is None
    ][-1]


def flip(path, offset=-1):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


class Odd(L.Callback):
    """Puts something into every checkpoint that no file can hold."""

    def state_dict(self):
        return {"handle": object()}


class MomentOfObject(torch.optim.SGD):
    """State that first exists after the first step, and cannot be saved."""

    def step(self, closure=None):
        loss = super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["handle"] = object()
        return loss


def test_a_directory_that_cannot_be_written_is_found_before_the_first_batch(fit, tmp_path):
    callback = ResumeCallback(tmp_path / "file" / "run")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        fit(callback=callback)
    assert fit.net.num_steps == 0
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_rank_of_torchrun_that_lightning_trains_in_alone_is_refused(fit, tmp_path, monkeypatch):
    trainer = L.Trainer(**fit.quiet, max_epochs=1, callbacks=[ResumeCallback(tmp_path / "run")])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ResumeError, match=r"torchrun has started 2 processes, and each of them would train alone"):
        trainer.fit(Net(), make_loader())
    assert not (tmp_path / "run").exists()


def test_state_that_cannot_be_captured_is_refused_before_the_first_batch_with_its_place(fit, tmp_path):
    with pytest.raises(UnsupportedStateError, match=r"callbacks.*Odd.*handle") as refused:
        fit(callbacks=[Odd()])
    assert "register_leaf" in str(refused.value)
    assert fit.net.num_steps == 0
    assert checkpoints(tmp_path) == []


def test_state_that_first_exists_after_the_first_step_is_refused_there(fit, monkeypatch):
    monkeypatch.setattr(torch.optim, "AdamW", MomentOfObject)
    with pytest.raises(UnsupportedStateError, match=r"optimizer_states.*handle"):
        fit(callback=None)
    assert fit.net.num_steps == 1


def test_a_model_that_does_not_match_is_listed_by_names_shapes_and_dtypes(fit):
    fit(max_epochs=1)
    net = Net(width=6)
    net.layers.append(torch.nn.Linear(1, 1, bias=False))
    with pytest.raises(ConfigChangedError) as refused:
        fit(net=net)
    message = str(refused.value)
    for part in ("layers.0.weight", "4", "6", "layers.2.weight", "float32", "Nothing was loaded"):
        assert part in message
    assert net.num_loads == 0


@pytest.mark.parametrize("damage", ["altered", "truncated", "removed"])
@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(fit, tmp_path, messages, name, damage):
    fit(max_epochs=1)
    newest = before_the_end(tmp_path)
    file = newest / name
    if damage == "altered":
        flip(file, len(file.read_bytes()) // 2)
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()
    fit(max_epochs=2)
    assert fit.trainer.current_epoch == 2
    said = "\n".join(messages())
    assert "step-000000003" in said
    if (name, damage) != ("manifest.json", "removed"):  # without a manifest there is no checkpoint to report
        assert newest.name in said
        assert "cannot be used" in said


def test_a_run_none_of_whose_checkpoints_can_be_used_stops_and_loses_nothing(fit, tmp_path):
    fit(max_epochs=1)
    for folder in checkpoints(tmp_path):
        flip(folder / "model.safetensors")
    with pytest.raises(CorruptCheckpointError, match="no checkpoint of this run"):
        fit()
    assert fit.net.num_steps == 0
    assert len(checkpoints(tmp_path)) == 4


def test_a_manifest_of_a_newer_format_says_to_upgrade(fit, tmp_path, monkeypatch, messages):
    fit(max_epochs=1)
    manifest = before_the_end(tmp_path) / "manifest.json"
    fields = json.loads(manifest.read_text())
    monkeypatch.setattr(sealed, "FORMAT_VERSION", 99)
    body = {k: v for k, v in fields.items() if k not in ("format", "version", "format_version", "kind", "digest")}
    manifest.write_bytes(sealed.seal("manifest", body))
    monkeypatch.undo()
    fit(max_epochs=2)
    assert any("99" in m and "upgrade" in m.lower() for m in messages())


def test_a_required_checkpoint_that_is_not_there_stops_the_run(fit, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="must"):
        fit(callback=ResumeCallback(tmp_path / "run", resume="must"))
    assert fit.net.num_steps == 0


def test_a_named_checkpoint_that_is_not_there_lists_what_is(fit, tmp_path):
    fit(max_epochs=1)
    with pytest.raises(CheckpointNotFoundError, match="step-000000004"):
        fit(callback=ResumeCallback(tmp_path / "run", resume="attempt-0001/step-000000777"))


def test_a_named_checkpoint_is_the_one_that_is_used(fit, tmp_path, messages):
    fit(max_epochs=1)
    fit(callback=ResumeCallback(tmp_path / "run", resume="attempt-0001/step-000000003"))
    assert any("resumed at step 3" in message for message in messages())


def test_never_begins_anew_and_leaves_what_was_there(fit, tmp_path, messages):
    fit(max_epochs=1)
    before = checkpoints(tmp_path)
    net, _ = fit(max_epochs=1, callback=ResumeCallback(tmp_path / "run", resume="never", save=SaveEvery(steps=100)))
    assert net.num_steps == 4
    assert not any("resumed" in message for message in messages())
    assert set(before) <= set(checkpoints(tmp_path))


def test_the_environment_overrides_the_argument(fit, tmp_path, monkeypatch, messages):
    monkeypatch.setenv("EXACT_RESUME", "must")
    with pytest.raises(CheckpointNotFoundError):
        fit()
    monkeypatch.setenv("EXACT_RESUME", "off")
    fit()
    assert not (tmp_path / "run").exists()
    assert 'EXACT_RESUME="off": nothing of this run is saved' in "\n".join(messages())


def fail_writes(monkeypatch, *numbers):
    """Make the given saves, counted from 0, fail as a full disk does."""
    write, count = Pending.write, iter(range(1000))

    def failing(self, *args, **kwargs):
        if next(count) in numbers:
            raise OSError(28, "No space left on device")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Pending, "write", failing)


def test_a_failed_save_is_one_log_line_and_training_goes_on(fit, tmp_path, monkeypatch, messages):
    fail_writes(monkeypatch, 2)
    fit(max_epochs=1)
    failed = [m for m in messages() if m.startswith("the save at")]
    assert len(failed) == 1
    assert "step 2" in failed[0]
    assert "No space left on device" in failed[0]
    assert "older checkpoints are intact" in failed[0]
    assert before_the_end(tmp_path).name == "step-000000004"


def test_three_failed_saves_in_a_row_end_training(fit, monkeypatch):
    fail_writes(monkeypatch, 1, 2, 3)
    with pytest.raises(SaveFailedError, match="No space left") as failed:
        fit(max_epochs=2)
    assert isinstance(failed.value.__cause__, OSError)
    assert 3 <= fit.net.num_steps <= 5


def test_the_failure_of_the_last_save_is_raised(fit, monkeypatch):
    fail_writes(monkeypatch, 5)  # at the start, four batches, the end
    with pytest.raises(SaveFailedError, match="step 4"):
        fit(max_epochs=1)


def test_a_run_whose_first_save_fails_does_not_go_on_unprotected(fit, monkeypatch):
    fail_writes(monkeypatch, 0)
    with pytest.raises(SaveFailedError, match="no checkpoint exists yet"):
        fit(max_epochs=2)
    assert fit.net.num_steps <= 2


@pytest.mark.parametrize("policy", [{"save": 5}, {"keep": 3}, {"changes": "seed"}])
def test_a_policy_of_the_wrong_type_is_a_type_error(tmp_path, policy):
    with pytest.raises(TypeError, match=next(iter(policy))):
        ResumeCallback(tmp_path, **policy)


def test_an_iterable_dataset_is_named_at_the_start(fit, messages):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.rand(8, 3))

    class OnRows(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step([batch], batch_idx)

    fit(net=OnRows(), loader=torch.utils.data.DataLoader(Stream(), 4), max_epochs=1)
    assert any("Stream" in m and "IterableDataset" in m for m in messages())
