"""What ``exact-resume diff`` finds between two checkpoints."""

from __future__ import annotations

import importlib
import io
import shutil

import pytest
import torch
from looking import folder, said, told
from rich.console import Console
from safetensors.torch import load_file
from test_verify import trained
from walks import Walk

from resume_core import Keep
from resume_core.cli.diff.command import _print_rows
from resume_core.cli.diff.leaves import _of_rank, _Walk, pairs_of
from resume_core.cli.diff.values import _BLOCK, _change
from resume_core.errors import CorruptCheckpointError
from resume_core.image.read import Stored
from resume_core.storage import FileReader, commit


def diff(*arguments):
    return said("diff", *arguments)


def compared(*arguments, code=1):
    return told("diff", *arguments, code=code)


@pytest.fixture
def run(tmp_path):
    return trained(str(tmp_path / "run"))


def test_a_checkpoint_and_itself(run):
    code, text = diff(run, run)
    assert (code, "no difference" in text) == (0, True)
    found = compared(run, run, code=0)
    assert found["is_same"]
    assert not any(found[name] for name in ("config", "files", "structure", "plain"))


def test_it_says_whether_the_weights_are_equal(run):
    assert "weights equal: the one tensor" in diff(run, run)[1]
    code, text = diff(run, "1")
    assert (code, "weights: 1 of 1 tensors differ" in text) == (1, True)
    assert "optimizer and other state: 1 of 1 tensors differ" in text
    assert compared(run, "1")["counts"]["model"] == {"num_tensors": 1, "num_differ": 1}
    assert "elements of 1 tensors were not compared" in diff(run, "1", "--no-values")[1]
    assert "weights equal" in diff(run, run, "--no-values")[1]


def saver(run, best="epoch=1.ckpt"):
    """The state of a ``ModelCheckpoint`` of Lightning's, the tensor that it scores a file by among it."""
    paths = dict.fromkeys(("best_model_path", "kth_best_model_path", "last_model_path"), f"{run}/ckpt/{best}")
    return {"dirpath": f"{run}/ckpt", "best_k_models": {f"{run}/ckpt/{best}": torch.ones(2)}, **paths}


def folded(run, best="epoch=1.ckpt", training=None, rank=None):
    """The same training in another folder, whose state holds what folder and clock give."""
    capture, clock = Walk.capture, hash(run.name)

    def told(self):
        state = capture(self)
        state.training["checkpoint"] = {
            "callbacks": {
                "ModelCheckpoint{'monitor': 'val.loss'}": saver(run, best),
                "Timer": {"time_elapsed": {"train": clock}},
            },
            "pytorch-lightning_version": run.name,
        }
        logged = [{"loss": 1.0}, {"eval_runtime": clock, "eval_steps_per_second": clock, "eval_loss": 0.5}]
        state.training["trainer"] = {"state": {"log_history": logged, "best_model_checkpoint": f"{run}/checkpoint-10"}}
        of_saver = {"fields": {"best_model_path": f"{run}/ckpt/{best}"}, "since_s": clock}
        state.rank["outputs"] = {
            "model_checkpoints": [of_saver],
            "loggers": [{"files": {f"events.{clock}.run-{run.name}": 40}}],
        }
        state.rank["trainer"] = {"elapsed_s": clock, "boards": [f"{run}/runs"]}
        state.training.update(training or {})
        state.rank.update(rank or {})
        return state

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Walk, "capture", told)
        return trained(str(run))


def decisive(*arguments, code=1):
    found = compared(*arguments, code=code)
    return [pair["name"] for pair in found["plain"] if not pair["is_information"]]


def test_the_folder_and_the_clocks_of_a_run_are_information(tmp_path):
    one, two = folded(tmp_path / "one"), folded(tmp_path / "two")
    found = compared(one, two, code=0)
    assert {pair["name"].rpartition(".")[2] for pair in found["plain"]} >= {
        "dirpath", "best_model_path", "last_model_path", "train", "eval_runtime", "best_model_checkpoint", "since_s",
        "elapsed_s", "pytorch-lightning_version", "0",
    }  # fmt: skip
    assert all(pair["is_information"] for pair in found["plain"])
    assert found["structure"] == []
    text = diff(one, two)[1]
    assert "what differs is information: training would go on alike from both" in text
    assert "weights equal" in text
    assert diff(one, two, "--no-values")[0] == 1  # the bytes of a tensor's name differ, and what it holds is not known


def test_another_file_in_the_folder_of_a_run_is_a_difference(tmp_path):
    one, two = folded(tmp_path / "one"), folded(tmp_path / "two", best="epoch=2.ckpt")
    names = decisive(one, two)
    assert {name.rpartition(".")[2] for name in names} == {"best_model_path", "kth_best_model_path", "last_model_path"}
    assert len(names) == 4  # the rank's as well
    assert len(compared(one, two)["structure"]) == 2  # what each has of the file that the other has not


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"model": "bert/base"}, {"model": "bert/large"}),
        ({"model_id": 1}, {"model_id": 2}),
        ({"id": "a", "host": "a", "token": "a", "uuid": "a"}, {"id": "b", "host": "b", "token": "b", "uuid": "b"}),
        ({"start_time": 3.0}, {"start_time": 4.0}),
        ({"weights_version": 1}, {"weights_version": 2}),
        ({"dirpath": "/data/a"}, {"dirpath": "/data/b"}),
        ({"since_s": 1.0, "train_runtime": 1.0}, {"since_s": 2.0, "train_runtime": 2.0}),
        ({"bert/base": 1}, {"albert/base": 1}),
        ({"a.b": 1}, {"a": {"b": 1}}),
        ({"flag": 1}, {"flag": True}),
        ({"position": 3}, {"position": 4}),
    ],
)  # fmt: skip
def test_a_value_of_the_user_is_never_information_by_its_look(tmp_path, one, two):
    found = [folded(tmp_path / name, training={"mine": own}) for name, own in (("one", one), ("two", two))]
    names = set(decisive(*found))
    assert names == {f"mine.{name}" for name in {*one, *two}} or names == {"mine.a.b"}
    found = [folded(tmp_path / f"rank-{name}", rank={"mine": own}) for name, own in (("one", one), ("two", two))]
    assert {name.removeprefix("rank 0.rank.") for name in decisive(*found)} == names
    assert "weights equal" in diff(*found)[1]


def of_rank(clock=1, lr=0.1, shared=("a",)):
    """What rank 1 of a Lightning run has otherwise than rank 0."""
    callbacks = {"Timer": {"time_elapsed": {"train": clock}}, "Mine": {"time_elapsed": {"train": lr}}}
    own = {"structure": {"checkpoint": {"callbacks": callbacks}}, "shared": list(shared)}
    return dict(_of_rank({"rank": {}, "own": {"training": own}}, _Walk("rank-00001.json", [])))


def test_what_a_rank_has_of_its_own_is_told_apart_likewise():
    _, (pair,) = pairs_of(of_rank(clock=1), of_rank(clock=2))
    assert (pair.name, pair.is_information) == ("own.training.checkpoint.callbacks.Timer.time_elapsed.train", True)
    _, (pair,) = pairs_of(of_rank(lr=0.1), of_rank(lr=0.2))
    assert not pair.is_information
    _, (pair,) = pairs_of(of_rank(shared=["a"]), of_rank(shared=["b"]))
    assert not pair.is_information


@pytest.mark.parametrize("own", [5, None, {"training": 3}, {"training": {"structure": 3}}, {"training": []}])
def test_a_document_that_no_release_writes_is_walked_all_the_same(own):
    assert dict(_of_rank({"own": own}, _Walk("rank-00001.json", [])))


@pytest.mark.parametrize(("severity", "code"), [("info", 0), ("run", 1), ("structure", 1)])
def test_the_recorded_severity_of_a_fact_decides(tmp_path, monkeypatch, severity, code):
    from resume_core.state import Fact

    describe, runs = Walk.describe, []
    for name in ("bert/base", "bert/large"):
        facts = {"hparams.model": Fact(name, severity), "data.0.path": Fact(f"/{name}", severity)}
        monkeypatch.setattr(Walk, "describe", lambda self, facts=facts: {**describe(self), **facts})
        runs.append(trained(str(tmp_path / name.replace("/", "-"))))
    assert {fact["name"] for fact in compared(*runs, code=code)["config"]} >= {"hparams.model", "data.0.path"}


def test_values_are_those_of_the_files(run):
    attempt = folder(run, 3).parent.name
    found = compared(run, f"{attempt}/step-000000001")
    a, b = (load_file(folder(run, step) / "model.safetensors") for step in (3, 1))
    (change,) = found["tensors"]["model"]
    one, two = a[change["name"]].double(), b[change["name"]].double()
    assert change["num_changed"] == int((one != two).sum())
    assert change["largest"] == pytest.approx(float((one - two).abs().max()))
    assert change["relative"] == pytest.approx(float((one - two).norm() / one.norm()))
    code, text = diff(run, f"{attempt}/step-000000001")
    assert (code, "model: the tensors that changed most" in text, change["name"] in text) == (1, True, True)


def test_chunks_of_the_same_bytes_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(commit, "CHUNK_BYTES", 4096)
    directory = trained(str(tmp_path / "run"))
    read = []
    plain = FileReader.read_chunk
    monkeypatch.setattr(
        FileReader, "read_chunk", lambda self, *args: read.append(self._record.name) or plain(self, *args)
    )
    compared(directory, directory, code=0)
    assert {name.partition(".")[2] for name in read} <= {"json"}


def test_configuration_and_structure(tmp_path, monkeypatch):
    one = trained(str(tmp_path / "one"))
    describe = Walk.describe

    def other(self):
        from resume_core.state import Fact

        return {**describe(self), "data.0.batch_size": Fact(8)}

    monkeypatch.setattr(Walk, "describe", other)
    two = trained(str(tmp_path / "two"))
    assert {"name": "data.0.batch_size", "severity": "run", "current": 8} in compared(one, two)["config"]
    assert "data.0.batch_size" in diff(one, two)[1]


def test_weights_alone_are_compared_with_a_whole_one(tmp_path):
    run = trained(str(tmp_path / "run"), 7, Keep(last=2, every_steps=3, thin_after=2))
    name = f"{folder(run, 3).parent.name}/step-000000003"
    found = compared(run, name)
    assert found["b"]["weights_only"]
    assert list(found["tensors"]) == ["model"]
    assert {"name": "training.json", "b": "(absent)"}.items() <= next(
        one for one in found["files"] if one["name"] == "training.json"
    ).items()
    assert "weights only" in diff(run, name)[1]


def test_two_of_one_run_are_named_behind_it(run):
    one, two = compared(run, "1", "2"), compared(f"{run}/attempt-0001", "1", "2")
    assert [side["progress"]["step"] for side in (one["a"], one["b"])] == [1, 2]
    assert one == two
    assert diff(run, "1", "7")[0] == 2


def test_no_values(run):
    assert compared(run, f"{folder(run, 1).parent.name}/step-000000001", "--no-values")["tensors"] is None


def test_damage_is_no_difference(run):
    path = folder(run, 1) / "model.safetensors"
    path.write_bytes(b"0" + path.read_bytes()[1:])
    code, text = diff(run, f"{path.parent.parent.name}/step-000000001")
    assert (code, "nothing was compared" in text, "is damaged" in text) == (1, True, True)


def test_one_that_the_run_deletes_meanwhile_is_not_called_damaged(run, monkeypatch):
    path = folder(run, 1)

    def deleted(*_):
        for name in ("manifest.json", "model.safetensors"):
            (path / name).unlink()
        raise CorruptCheckpointError("a file is missing")

    monkeypatch.setattr(importlib.import_module("resume_core.cli.diff.compare"), "compare", deleted)
    code, text = diff(run, f"{path.parent.name}/step-000000001")
    assert (code, "step-000000001 was deleted while it was read" in text, "damaged" in text) == (2, True, False)


def test_one_that_is_not_there(run, tmp_path):
    assert diff(run, str(tmp_path / "none"))[0] == 2
    assert diff(run, "attempt-0009")[0] == 2
    shutil.rmtree(run)
    assert diff(run, run)[0] == 2


def change(one, two):
    stored = Stored(one.dtype, tuple(one.shape), 0, one.nbytes)
    return _change("x", stored, one.flatten(), two.flatten())


def test_what_is_not_finite_is_not_measured():
    nan = torch.tensor([float("nan"), 1.0, 2.0])
    assert change(nan, nan).num_changed == 0
    found = change(nan, torch.tensor([float("nan"), 1.0, float("inf")]))
    assert (found.num_changed, found.largest, found.relative) == (1, None, None)


def test_what_is_nearly_the_same_is_not_the_same():
    large = torch.tensor([2**60, 5])
    assert change(large, large + torch.tensor([1, 0])).num_changed == 1
    assert change(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])).num_changed == 1
    assert change(torch.tensor([1 + 1j, 1j]), torch.tensor([2 + 2j, 1j])).num_changed == 1


@pytest.mark.parametrize("dtype", ["bool", "int64", "bfloat16", "complex64", "float8_e4m3fn"])
def test_every_type_is_measured(dtype):
    dtype = getattr(torch, dtype)
    one, two = torch.zeros(_BLOCK + 3), torch.zeros(_BLOCK + 3)
    one[0], two[0], two[-1] = 1, 1, 1
    found = change(one.to(dtype), two.to(dtype))
    assert (found.num_changed, found.largest, found.relative) == (1, 1.0, 1.0)


def test_a_long_name_is_broken_behind_its_dots_where_the_terminal_is_narrow(tmp_path):
    steps = ["encoder", "transformer_layers", "attention_projection", "weight_of_the_output"]
    console = Console(width=80, file=io.StringIO())
    _print_rows("training state", [(".".join(steps), "1", "2")], 10, console)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line.strip()][2:] == [
        "encoder.",
        "transformer_layers.",
        "attention_projection.",
        "weight_of_the_output",
    ]
