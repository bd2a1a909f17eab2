"""What a session records behind its saves, and compares after a resume."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_threads import together
from trained import Run

from resume_core import Check, DivergedError, SaveEvery
from resume_core.evidence.checker import Checker
from resume_core.evidence.compare import compare
from resume_core.evidence.parts import differing
from resume_core.evidence.prints import WeightSample, print_inputs, print_rng
from resume_core.evidence.record import Record
from resume_core.state import Progress


def result(directory):
    newest = sorted(Path(directory).glob("attempt-*"))[-1]
    return json.loads((newest / "check.json").read_text())["result"]


@pytest.fixture
def killed(tmp_path):
    """The directory of a run that was killed behind step 8 and its save behind step 5."""
    directory = str(tmp_path / "run")
    run = Run(directory).train(8)
    run.session._evidence.close()  # what was recorded is there; nothing else is said at a kill
    return directory


def test_a_clean_resume_is_called_clean(killed, caplog):
    caplog.set_level(logging.INFO)
    Run(killed).train(3)
    found = result(killed)
    assert (found["verdict"], found["steps"], found["num_rows"]) == ("same", 3, 0)
    assert "checked: the first 3 steps after" in caplog.text
    assert "bit by bit" in caplog.text


def test_the_check_is_over_behind_its_steps_and_not_before(killed):
    run = Run(killed).train(2)
    assert run.session._evidence.is_checking
    run.train(1)
    assert not run.session._evidence.is_checking


def test_fewer_steps_can_be_compared_than_were_recorded(killed):
    Run(killed, check=Check(steps=1)).train(1)
    assert (result(killed)["verdict"], result(killed)["steps"]) == ("same", 1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda run: setattr(run.toy, "shift", 1), "samples of loader 0"),
        (lambda run: run.toy.optimizer.param_groups[0].update(lr=0.25), "learning rate"),
        (lambda run: torch.rand(1), "random generators"),
    ],
    ids=["position", "learning rate", "generators"],
)
def test_what_differs_is_named_with_both_values(killed, caplog, change, name):
    run = Run(killed)
    change(run)
    run.train(3)
    found = result(killed)
    assert found["verdict"] == "differs"
    row = next(row for row in found["rows"] if row["name"] == name)
    assert row["saved"] != row["current"]
    assert f"{row['saved']}" in caplog.text
    assert f"{row['current']}" in caplog.text


def test_a_weight_that_is_not_what_was_read_is_named(killed, caplog):
    run = Run(killed)
    run.toy.value[1] += 1e-3
    run.train(3)
    assert result(killed)["live"] == {"num": 2, "num_differ": 1, "differs": ["weights.value"]}
    assert "in the live objects these are not as the checkpoint has them:\n  weights.value" in caplog.text


def test_a_run_that_must_not_differ_ends_and_saves_nothing(killed):
    names = sorted(path.name for path in Path(killed).glob("*/step-*"))
    run = Run(killed, check=Check(on_mismatch="stop"), save=SaveEvery(steps=1, minutes=None))
    run.toy.shift = 1
    with pytest.raises(DivergedError, match="samples of loader 0") as caught:
        run.train(3)
    run.session.end(caught.value)
    assert sorted(path.name for path in Path(killed).glob("*/step-*")) == names


def test_a_run_that_must_not_differ_saves_again_when_it_does_not(killed):
    run = Run(killed, check=Check(on_mismatch="stop"), save=SaveEvery(steps=1, minutes=None)).train(5)
    run.session.end()
    newest = sorted(Path(killed).glob("attempt-*"))[-1]
    assert [path.name for path in sorted(newest.glob("step-*"))] == [
        "step-000000008",
        "step-000000009",
        "step-000000010",
    ]


def test_without_a_record_what_the_save_predicted_is_checked(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    directory = str(tmp_path / "run")
    Run(directory).train(5).session.wait()  # killed right behind its save
    Run(directory).train(1)
    assert (result(directory)["verdict"], result(directory)["is_recorded"]) == ("not checked", False)
    assert "not checked: the run ended within the first steps after attempt-0001" in caplog.text


@pytest.mark.parametrize(
    ("change", "rows", "places"),
    [
        (lambda run: setattr(run.toy, "shift", 1), ["position of loader 0"], []),
        (lambda run: run.toy.optimizer.param_groups[0].update(lr=0.25), [], ["lrs.0"]),
    ],
    ids=["position", "learning rate"],
)
def test_and_what_is_not_as_predicted_is_named(tmp_path, change, rows, places):
    directory = str(tmp_path / "run")
    Run(directory).train(5).session.wait()
    run = Run(directory)
    change(run)
    run.train(2)
    found = result(directory)
    assert ([row["name"] for row in found["rows"]], found["live"]["differs"]) == (rows, places)


@pytest.mark.parametrize(
    ("num_left_out", "num_more", "is_as_predicted"),
    [(1, 1, True), (2, 2, True), (2, 1, True), (1, 2, False), (0, 1, False), (1, -1, False)],
)
def test_batches_that_a_script_was_given_and_has_left_out_are_none_that_were_lost(
    num_left_out, num_more, is_as_predicted
):
    predicted = {"samples": [{"loader": 0, "pass": 0, "num_batches": 2, "position": 8, "num_samples": 4}]}
    checker = Checker(Progress(step=1, batch=2), [], predicted, rtol=None, reason="")
    at = {"loader": 0, "pass": 0, "num_batches": 3 + num_more, "position": 12 + 4 * num_more}
    record = Record(2, 3, 0, [{**at, "ids": [1, 2, 3, 4], "num_samples": 4}], inputs=[["", 0.0]] * (1 + num_left_out))
    checker.add(record, ())
    apart = Checker(Progress(step=1, batch=2), [], predicted, rtol=None, reason="")
    apart.left_out(num_left_out)  # there was a boundary between
    apart.add(dataclasses.replace(record, inputs=record.inputs[:1]), ())
    assert apart.result()["rows"] == checker.result()["rows"]
    assert (checker.result()["rows"] == []) == is_as_predicted


def test_a_script_may_set_the_learning_rate_of_each_step_by_itself(tmp_path):
    directory = str(tmp_path / "run")
    Run(directory).train(5).session.wait()
    run = Run(directory)
    plain = run.session.observer.gradients

    def gradients(optimizer):
        optimizer.param_groups[0]["lr"] /= 2
        plain(optimizer)

    run.session.observer.gradients = gradients
    run.train(1)
    assert result(directory)["verdict"] == "not checked"


def test_a_run_that_ends_within_the_steps_is_checked_as_far_as_it_came(killed):
    run = Run(killed).train(1)
    run.session.end()
    assert not list(Path(killed).glob("*/check.json"))  # an end that nobody has planned
    run = Run(killed).train(2)
    run.session._evidence.conclude()
    assert (result(killed)["verdict"], result(killed)["batches"]) == ("same", 2)


def test_batches_that_are_left_out_before_a_boundary_belong_to_none(killed):
    run = Run(killed)
    run.session.observer.batch({"x": torch.zeros(4)})
    run.session.boundary(Progress(step=run.num, batch=run.num, ends_epoch=True))
    run.train(3)
    assert result(killed)["verdict"] == "same"


def test_steps_0_turns_it_off(tmp_path):
    directory = str(tmp_path / "run")
    run = Run(directory, check=Check(steps=0)).train(8)
    run.session.end()
    Run(directory, check=Check(steps=0)).train(3).session.end()
    assert not list(Path(directory).glob("*/evidence-*"))
    assert not list(Path(directory).glob("*/check.json"))


@pytest.mark.parametrize("damage", [b"{}", b""], ids=["not ours", "empty"])
def test_a_damaged_record_is_said_and_stops_nothing(killed, caplog, damage):
    (file,) = Path(killed).glob("*/evidence-00000.json")
    file.write_bytes(damage)
    Run(killed).train(3)
    assert "what was recorded behind" in caplog.text
    assert result(killed)["verdict"] == "not checked"


def test_evidence_that_fails_is_given_up_and_training_goes_on(killed, caplog, monkeypatch):
    run = Run(killed)
    monkeypatch.setattr(run.toy, "vitals", lambda: 1 / 0)
    run.session._evidence._vitals = run.toy.vitals
    run.train(5)
    assert caplog.text.count("evidence is given up for this attempt") == 1
    assert run.num == 10
    assert not run.session._evidence.is_checking
    assert result(killed)["verdict"] == "not checked"


def test_accepted_changes_may_be_why(killed, monkeypatch):
    monkeypatch.setattr("resume_core.session.consequences", lambda accepted: ["data.0.batch_size"])
    run = Run(killed, check=Check(on_mismatch="stop"))
    run.toy.shift = 1
    run.train(3)  # is not stopped
    assert result(killed)["verdict"] == "changed"
    assert "data.0.batch_size" in result(killed)["reason"]


def test_only_the_newest_saves_are_kept(tmp_path):
    directory = str(tmp_path / "run")
    run = Run(directory, save=SaveEvery(steps=1, minutes=None)).train(20)
    run.session.end()
    (file,) = Path(directory).glob("*/evidence-00000.json")
    names = [save["checkpoint"] for save in json.loads(file.read_text())["saves"]]
    assert names == [f"step-{step:09d}" for step in range(12, 20)]  # behind the last one nothing was trained


@pytest.mark.parametrize("fault", ["nothing recorded", "evidence given up"])
def test_ranks_end_the_check_together_whatever_one_of_them_lacks(tmp_path, fault):
    directory = str(tmp_path / "run")

    def first(ranks):
        Run(directory, ranks).train(8).session._evidence.close()

    def again(ranks):
        run = Run(directory, ranks)
        if fault == "evidence given up" and ranks.rank == 1:
            run.session._evidence._vitals = lambda: 1 / 0
        run.train(3)
        return run.session._evidence.is_checking

    together(2, first)
    if fault == "nothing recorded":
        (file,) = Path(directory).glob("*/evidence-00001.json")
        file.unlink()
    assert together(2, again)[0] == [False, False]
    assert result(directory)["is_recorded"] == (fault == "evidence given up")


# ---- records


def record(**changes):
    plain = Record(7, 9, 1, [{"loader": 0, "ids": [1]}], [["aa", 2.0]], [0.5], "bb", [0.1], [3.0], 8.0, "cc")
    return dataclasses.replace(plain, **changes)


def test_a_record_comes_back_as_it_was():
    odd = record(losses=[float("inf"), 1e-30], grad_norms=[float("-inf")], scale=None)
    again = Record.from_dict(json.loads(json.dumps({**odd.as_dict(), "added later": 1})))
    assert again == odd
    nan = Record.from_dict(record(losses=[float("nan")]).as_dict())
    assert not list(compare(record(losses=[float("nan")]), nan, None))


@pytest.mark.parametrize(
    "found", [None, {}, {"step": "x", "batch": 1, "epoch": 0}, {**record().as_dict(), "losses": 3}]
)
def test_what_is_no_record_is_refused(found):
    with pytest.raises((TypeError, ValueError, KeyError)):
        Record.from_dict(found)


def test_within_a_tolerance_ids_and_learning_rates_stay_exact():
    near = record(losses=[0.5004], grad_norms=[3.001], inputs=[["ee", 2.001]], rng="", weights="")
    assert not list(compare(record(), near, 1e-3))
    assert {row.name for row in compare(record(), near, None)} == {
        "loss", "gradient norm", "inputs", "random generators", "weights: a sample",
    }  # fmt: skip
    assert [row.name for row in compare(record(), record(losses=[0.51]), 1e-3)] == ["loss"]
    assert not list(compare(record(losses=[2e-7]), record(losses=[-3e-7]), 1e-3))  # of critics, say
    assert [row.name for row in compare(record(), record(lrs=[0.1000001]), 1e-3)] == ["learning rate"]
    assert [row.name for row in compare(record(), record(samples=[{"loader": 0, "ids": [2]}]), 1e-3)] == [
        "samples of loader 0"
    ]


# ---- prints


@dataclasses.dataclass
class Item:
    x: torch.Tensor
    name: str = "a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": torch.zeros(3)}, {"x": torch.tensor([0, 0, 1e-7])}),
        ({"x": torch.zeros(3)}, {"y": torch.zeros(3)}),
        ({"x": torch.zeros(3)}, {"x": torch.zeros(3, dtype=torch.float64)}),
        ([torch.zeros(2, 3)], [torch.zeros(3, 2)]),
        (Item(torch.zeros(2)), Item(torch.ones(2))),
        (Item(torch.zeros(2)), Item(torch.zeros(2), "b")),
        ((np.zeros(3), "text"), (np.zeros(3), "texts")),
        ((np.zeros(3),), (np.ones(3),)),
        (torch.zeros(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
        (torch.zeros(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64)),
        (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()),
        (torch.zeros(64, 3, 100, 100), torch.zeros(64, 3, 100, 100) + 1),
    ],
)
def test_prints_tell_batches_apart(one, other):
    assert print_inputs(one) == print_inputs(one)
    assert print_inputs(one)[0] != print_inputs(other)[0]


def test_generators_are_told_apart_and_not_moved(monkeypatch):
    before = print_rng()
    assert print_rng() == before
    monkeypatch.setattr("resume_core.evidence.prints.save_python", lambda: (random.getstate(), None))
    assert print_rng() == before  # where the layout of the generator is another one
    for draw in (random.random, np.random.rand, lambda: torch.rand(1), lambda: random.gauss(0, 1)):
        draw()
        assert print_rng() != before
        before = print_rng()


def test_of_a_large_batch_each_sample_is_seen():
    batch = torch.rand(64, 3, 96, 96)
    plain = print_inputs(batch)
    for sample in range(64):
        changed = batch.clone()
        changed[sample] += 0.5
        assert print_inputs(changed) != plain


@pytest.mark.parametrize("batch", [None, [], {}, object(), [object()], torch.empty(0), torch.tensor(3), "words", 3])
def test_any_batch_can_be_printed(batch):
    assert print_inputs(batch)[0]


class Chained:
    def __init__(self, inner):
        self.inner = inner


def nested(inner, depth=12):
    return Chained(inner) if not depth else Chained(nested(inner, depth - 1))


@pytest.mark.parametrize(
    "make",
    [lambda: nested(object()), lambda: np.array([object(), {"a": object()}], object), lambda: [Chained, print]],
)
def test_addresses_are_no_part_of_a_print(make):
    kept = make()  # another one cannot lie at its place
    assert print_inputs(kept) == print_inputs(make())


def test_the_folder_of_a_file_is_no_part_of_a_print():
    assert print_inputs(["/old/data/1.png"]) == print_inputs(["/new/place/1.png"]) != print_inputs(["/old/data/2.png"])


def test_a_batch_that_knows_all_of_a_dataset_is_printed_in_part():
    seen = []

    class Endless(list):
        def __iter__(self):
            for number in range(10**9):
                seen.append(number)
                yield number

    assert print_inputs(Chained(Endless([1])))[0]
    assert len(seen) < 10_000


def test_other_versions_may_know_settings_that_were_not_there():
    saved, live = {".a": "1", ".state": "x"}, {".a": "1", ".state": "x", ".new": "False"}
    assert differing(saved, live) == ["new"]
    assert not differing(saved, live, is_same_machine=False)
    assert differing(saved, {".a": "1"}, is_same_machine=False) == ["state"]


def test_what_is_not_known_of_samples_is_not_compared():
    assert not list(compare(record(), record(samples=[{"loader": 0, "ids": None}]), None))
    assert not list(compare(record(), record(samples=[]), None))


def test_a_sample_of_weights_sees_what_a_step_changes():
    weights = {
        "a": torch.rand(30, 40), "b": torch.rand(()), "half": torch.rand(8).half(), "none": torch.empty(0),
        "last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last), "count": torch.tensor([3]),
    }  # fmt: skip
    sample = WeightSample(weights)
    before, sizes = sample.digest(), sample.sizes()
    assert sample.is_half
    assert sample.is_of(weights)
    for name in ("a", "b", "half", "last"):
        weights[name].mul_(1.5)
        assert sample.digest() != before
        assert sample.sizes() != sizes
        before, sizes = sample.digest(), sample.sizes()
    assert not sample.is_of({**weights, "a": weights["a"].clone()})
