"""`Keep` against a model of it: any sequence of saves, kills, prunes and restarts."""

from __future__ import annotations

import math
import os
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.policy import Keep
from resume_core.storage import CheckpointRef, CheckpointSlots, Lineage, clean, open_store, prune
from resume_core.storage.keeping import Entry, judge
from resume_core.storage.manifests import read_weights_manifest

from .faults import Faults, FaultyStore
from .helpers import Run, candidates, load, payload, thinned, tree, write_ranks

KEEPS = [
    Keep(last=1),
    Keep(last=2, every_steps=3),
    Keep(last=1, every_epochs=2),
    Keep(last=2, best="loss"),
    Keep(last=1, every_steps=2, every_epochs=3, best="loss", mode="max"),
    Keep(last=1, every_steps=2, thin_after=2),
    Keep(last=2, every_steps=2, best="loss", thin_after=1),
]


def entries(*items):
    """A line, newest first, from (step, epoch, loss)."""
    made = []
    for serial, (step, epoch, loss) in enumerate(items):
        header = {"progress": {"epoch": epoch}, "metrics": {} if loss is None else {"loss": loss}}
        made.append(Entry(CheckpointRef("attempt-0001-aaaa", f"step-{step:09d}", serial), header))
    return made[::-1]


def kept(keep, *items):
    line = entries(*items)
    return [entry.step for entry, verdict in zip(line, judge(line, keep), strict=True) if verdict != "delete"][::-1]


def test_a_milestone_is_the_first_at_or_after_each_multiple_and_step_0_is_none():
    items = [(step, 0, None) for step in (0, 990, 1010, 1500, 2000, 2010, 4500, 4600)]
    assert kept(Keep(last=1, every_steps=1000), *items) == [1010, 2000, 4500, 4600]


def test_an_epoch_is_counted_when_it_is_complete():
    items = [(step, step // 10, None) for step in range(5, 60, 5)]
    assert kept(Keep(last=1, every_epochs=2), *items) == [20, 40, 55]
    line = entries(*items)
    line[7].header["progress"]["ends_epoch"] = True  # step 20, were it the last of epoch 2
    assert line[7].num_epochs == 3


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 9)])
def test_of_equal_metrics_the_first_is_the_best(mode, best):
    losses = [None, 1.0, 1.0, "nan", "inf", "inf", "-nan", {"odd": 1}, 3.0]
    items = [(step, 0, loss) for step, loss in enumerate(losses, 1)]
    assert kept(Keep(last=1, best="loss", mode=mode), *items) == sorted({best, 9})


@pytest.mark.parametrize(("mode", "begins"), [("min", "-inf"), ("max", "inf"), ("min", "inf"), ("max", "-inf")])
def test_a_metric_that_is_not_finite_has_judged_nothing(mode, begins):
    items = [(0, 0, begins), (1, 0, begins), (2, 0, 1.0), (3, 0, 1.0), (4, 0, begins)]
    assert kept(Keep(last=1, best="loss", mode=mode), *items) == [2, 4]
    assert kept(Keep(last=1, best="loss", mode=mode), *items[:2]) == [1]


def test_without_the_metric_the_other_rules_hold():
    assert kept(Keep(last=1, best="loss"), (1, 0, None), (2, 0, "nan"), (3, 0, None)) == [3]


class Model:
    """The run on a store, and what its checkpoints were, whether they are there or not."""

    def __init__(self, store, keep):
        self.store, self.keep = store, keep
        self.run = Run(store)
        self.step = 0
        self.saved = []  # (step, epoch, loss, path), every one that was committed
        self.foreign = {}

    def save(self, loss):
        self.step += 1
        slot = self.run.slots.take(self.step)
        header = {"tag": f"s{self.step}", "progress": {"epoch": self.step // 3}, "metrics": {"loss": loss}}
        writers = write_ranks(self.store, slot, f"s{self.step}", 1)
        writers[0].commit(header, still_newest=lambda: None)
        self.saved.append((self.step, self.step // 3, loss, slot.path))
        prune(self.run.lineage, self.keep, self.run.attempt)

    def kill_in_save(self):
        write_ranks(self.store, self.run.slots.take(self.step + 1), "torn", 1)

    def kill_in_prune(self, at):
        broken = Lineage(FaultyStore(self.store, Faults(at)))
        prune(broken, self.keep, self.run.attempt)

    def restart(self):
        newest = next(iter(candidates(self.store)), None)
        if newest is None:
            return
        self.run = Run(self.store, restored_from=newest)
        assert clean(self.run.lineage, self.run.attempt).failures == ()

    def put_foreign(self, number):
        if self.saved:
            key = f"{self.saved[number % len(self.saved)][3]}/theirs-{number}.txt"
            self.store.put(key, b"theirs")
            self.foreign[key] = b"theirs"

    def expected_extra(self):
        """Steps that milestones and the best keep, from all that was ever saved."""
        steps = set()
        for every, number in ((self.keep.every_steps, 0), (self.keep.every_epochs, 1)):
            seen = set()
            for save in self.saved if every else ():
                bucket = save[number] // every
                if bucket and bucket not in seen:
                    seen.add(bucket)
                    steps.add(save[0])
        if self.keep.best:
            sign = 1 if self.keep.mode == "min" else -1
            known = [save for save in self.saved if math.isfinite(float(save[2]))]
            if known:
                steps.add(min(known, key=lambda save: sign * float(save[2]))[0])
        return steps

    def check(self):
        if not self.saved:
            return
        refs = candidates(self.store)
        assert load(self.store, refs[0]) == f"s{self.step}"
        whole = {int(ref.name[5:14]) for ref in refs}
        left = {int(m.checkpoint[5:14]) for m in thinned(self.run)}
        newest = {save[0] for save in self.saved[-self.keep.last :]}
        assert newest <= whole
        assert self.expected_extra() <= whole | left
        for ref in refs:
            load(self.store, ref)  # nothing that looks whole is torn
        for manifest in thinned(self.run):
            name = "model.safetensors"
            assert self.store.read(f"{manifest.ref.path}/{name}") == payload(manifest.header["tag"], name)
        for key, data in self.foreign.items():
            assert self.store.read(key) == data


losses = st.one_of(st.integers(0, 5).map(float), st.sampled_from(["nan", "inf", "-inf"]))
actions = st.one_of(
    st.tuples(st.just("save"), losses),
    st.tuples(st.just("save"), losses),
    st.tuples(st.just("kill_in_save")),
    st.tuples(st.just("kill_in_prune"), st.integers(0, 60)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("put_foreign"), st.integers(0, 9)),
)


@settings(max_examples=20, deadline=None)
@given(keep=st.sampled_from(KEEPS), script=st.lists(actions, max_size=14))
def test_whatever_happens_the_newest_loads_and_what_the_rules_keep_stays(keep, script):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    try:
        model = Model(store, keep)
        for name, *arguments in script:
            getattr(model, name)(*arguments)
            model.check()
        model.save(1.0)
        model.check()
        whole = len(candidates(store))
        extra = len(model.expected_extra())
        if keep.thin_after is None:
            assert whole <= keep.last + extra
        else:
            assert whole <= max(keep.last + 1, keep.thin_after + 1)
    finally:
        store.delete_tree("")


def saved_run(store, num_steps):
    run = Run(store)
    return run, [run.save(step) for step in range(1, num_steps + 1)]


@pytest.mark.parametrize(
    "fail_at", [*range(0, 40, 3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(40) if n % 3)]
)
def test_a_failure_anywhere_in_thinning_leaves_whole_checkpoints_or_weights(store, fail_at):
    run, refs = saved_run(store, 3)
    keep = Keep(last=1, every_steps=2, thin_after=1)
    prune(Lineage(FaultyStore(store, Faults(fail_at))), keep, run.attempt)
    for ref in candidates(store):
        load(store, ref)
    assert prune(run.lineage, keep, run.attempt).failures == ()
    assert [ref.path for ref in candidates(store)] == [refs[2].path]
    left = [key.rsplit("/", 1)[1] for key in tree(store, refs[1].path)]
    assert left == ["model.safetensors", "weights.json"]
    manifest = read_weights_manifest(store, refs[1])
    assert [record.name for record in manifest.files] == ["model.safetensors"]
    assert manifest.header == {"tag": "s2"}


def test_weights_alone_go_when_no_rule_keeps_them_any_more(store):
    run, refs = saved_run(store, 5)
    prune(run.lineage, Keep(last=1, every_steps=2, thin_after=1), run.attempt)
    assert [m.checkpoint for m in thinned(run)] == [refs[3].name, refs[1].name]
    prune(run.lineage, Keep(last=1, every_steps=4), run.attempt)
    assert [m.checkpoint for m in thinned(run)] == [refs[3].name]
    prune(run.lineage, Keep(last=1), run.attempt)
    assert tree(store, refs[3].path) == []


def test_links_and_files_of_others_stay_when_a_checkpoint_is_thinned(local_store, tmp_path):
    run, refs = saved_run(local_store, 3)
    folder = os.path.join(local_store.url, refs[1].path)
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.symlink(precious, os.path.join(folder, "theirs"))
    prune(run.lineage, Keep(last=1, every_steps=2, thin_after=1), run.attempt)
    assert sorted(os.listdir(folder)) == ["model.safetensors", "theirs", "weights.json"]
    assert precious.read_bytes() == b"precious"


def test_slots_never_reuse_the_name_of_a_checkpoint_that_was_thinned(store):
    run, refs = saved_run(store, 3)
    prune(run.lineage, Keep(last=1, every_steps=2, thin_after=1), run.attempt)
    assert CheckpointSlots(store, run.attempt.name).take(2).name == "step-000000002.2"
    assert refs[1].name == "step-000000002"


def test_weights_alone_that_were_altered_stay_and_are_named(store):
    run, refs = saved_run(store, 3)
    keep = Keep(last=1, every_steps=2, thin_after=1)
    prune(run.lineage, keep, run.attempt)
    key = f"{refs[1].path}/weights.json"
    store.put(key, store.read(key).replace(b"s2", b"s3"))
    (problem,) = prune(run.lineage, keep, run.attempt).failures
    assert key in problem
    assert "was altered" in problem
    assert [name.rsplit("/", 1)[1] for name in tree(store, refs[1].path)] == ["model.safetensors", "weights.json"]
    assert [ref.path for ref in candidates(store)] == [refs[2].path]
