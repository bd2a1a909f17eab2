"""State to checkpoint and back through real files."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model

from resume_core import documents, files, register_leaf
from resume_core.checkpointer import Checkpointer
from resume_core.errors import CorruptCheckpointError, UnsupportedStateError
from resume_core.files import CheckpointFiles
from resume_core.image import dumps, flatten, leaves
from resume_core.state import State
from resume_core.storage import CheckpointSlots, Lineage, commit, open_store
from resume_core.writer import Writer


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(4, 4, bias=False)
        self.head = torch.nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight
        self.conv = torch.nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last)


class Place:
    """One attempt in a fresh directory."""

    def __init__(self, directory):
        self.store = open_store(directory)
        self.lineage = Lineage(self.store)
        self.attempt = self.lineage.claim()
        self.slots = CheckpointSlots(self.store, self.attempt.name)
        self.checkpointer = Checkpointer(self.store)

    def save(self, state, step=0):
        slot = self.slots.take(step)
        manifest = self.checkpointer.stage(state, {"step": step}).write(self.store, slot, still_newest=lambda: None)
        return manifest.ref, manifest

    def folder(self, ref):
        return f"{self.store.url}/{ref.path}"


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "run"))


def make_state(model):
    moment = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    return State(
        model=model.state_dict(),
        training={"optimizer": {"state": {0: {"exp_avg": moment}}}, "best": float("inf")},
        rank={"rng": torch.get_rng_state(), "position": (3, 4)},
        info={"hparams": {"odd": object(), "lr": 0.1}},
    )


def test_a_state_comes_back_bit_for_bit_with_its_strides_and_ties(place):
    model = Tied()
    state = make_state(model)
    read = Checkpointer(place.store).read(*place.save(state))
    assert set(read.model) == set(state.model)
    for name, tensor in state.model.items():
        assert torch.equal(read.model[name], tensor)
        assert read.model[name].stride() == tensor.stride()
    assert read.model["head.weight"].data_ptr() == read.model["embed.weight"].data_ptr()
    moment = read.training["optimizer"]["state"][0]["exp_avg"]
    assert moment.stride() == state.training["optimizer"]["state"][0]["exp_avg"].stride()
    assert read.training["best"] == float("inf")
    assert read.rank["position"] == (3, 4)


def test_the_weights_are_a_plain_safetensors_file(place):
    model, fresh = Tied(), Tied()
    ref, _ = place.save(make_state(model))
    path = f"{place.folder(ref)}/model.safetensors"
    loaded = load_file(path)
    assert torch.equal(loaded["conv.weight"], model.conv.weight)
    load_model(fresh, path)
    assert torch.equal(fresh.head.weight, model.head.weight)


def test_what_was_read_does_not_keep_the_file_in_memory(place):
    read = Checkpointer(place.store).read(*place.save(make_state(Tied())))
    sizes = {tensor.untyped_storage().nbytes() for tensor in read.model.values()}
    assert max(sizes) < 4096  # each tensor has memory of its own


def test_reading_is_not_interrupted_by_the_garbage_collector(place, monkeypatch):
    """After each pause for one of its steps alone, a collection would visit all that they made."""
    saved, running, parse = place.save(make_state(Tied())), [], files.parse_header
    monkeypatch.setattr(
        files, "parse_header", lambda *args, **kw: (running.append(gc.isenabled()), parse(*args, **kw))[1]
    )
    files.CheckpointFiles([place.store], *saved).state(0)
    assert running == [False] * 3
    assert gc.isenabled()


def test_information_is_recorded_and_never_restored(place):
    ref, manifest = place.save(make_state(Tied()))
    with open(f"{place.folder(ref)}/training.json") as file:
        assert json.load(file)["info"]["hparams"]["lr"] == 0.1
    assert Checkpointer(place.store).read(ref, manifest).info == {}


def test_extras_are_a_file_that_no_restore_reads_and_none_where_there_are_none(place):
    state = make_state(Tied())
    ref, manifest = place.save(state)
    assert CheckpointFiles([place.store], ref, manifest).extras() == {}
    extras = dumps(flatten({"vocab.txt": "one\ntwo", "spiece.model": b"\xff"}).structure)
    ref, manifest = place.save(dataclasses.replace(state, extras=extras))
    assert (Path(place.folder(ref)) / "extras.json").read_bytes() == extras
    assert CheckpointFiles([place.store], ref, manifest).extras() == {"vocab.txt": "one\ntwo", "spiece.model": b"\xff"}
    (Path(place.folder(ref)) / "extras.json").write_bytes(b"damaged")
    assert Checkpointer(place.store).read(ref, manifest).extras == b""
    with pytest.raises(CorruptCheckpointError, match=r"extras\.json"):
        CheckpointFiles([place.store], ref, manifest).extras()


def test_a_failed_write_leaves_no_files(place, monkeypatch):
    slot = place.slots.take(0)
    pending = place.checkpointer.stage(make_state(Tied()), {})
    monkeypatch.setattr(place.store, "put", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        pending.write(place.store, slot, still_newest=lambda: None)
    assert place.store.list(slot.path) == []


def one_tensor_a_call(monkeypatch, before):
    """Staging makes a call of each tensor; ``before`` is asked first, with the number of the call."""
    monkeypatch.setattr("resume_core.image.stage.has_spare_core", lambda: True)
    monkeypatch.setattr("resume_core.image.stage._PIECE_BYTES", 1)
    monkeypatch.setattr("resume_core.image.stage._slices", lambda target: [None])
    copy, numbers = torch._foreach_copy_, iter(range(1000))

    def one(targets, sources):
        before(next(numbers))
        copy(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", one)


def begin_with(place, writer):
    slot = place.slots.take(0)
    return slot, lambda pending: writer.submit(lambda: pending.write(place.store, slot, still_newest=lambda: None))


def test_files_are_written_while_the_rest_is_staged(place, monkeypatch):
    writer, model = Writer(), Tied()
    slot, begun = begin_with(place, writer)

    def wait_for_the_first_file(number):  # the weights have three tensors
        deadline = time.monotonic() + 60
        while number == 4 and not place.store.exists(f"{slot.path}/model.safetensors"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    one_tensor_a_call(monkeypatch, wait_for_the_first_file)
    state = make_state(model)
    pending = place.checkpointer.stage(state, {}, begun)
    writer.wait(60)
    assert writer.take_outcome() == (True, None)
    ref = next(iter(place.lineage.candidates()))
    manifest = place.lineage.read_manifest(ref)
    assert manifest.header["timings"]["stage_s"] == pending.stage_s > 0
    assert torch.equal(Checkpointer(place.store).read(ref, manifest).model["conv.weight"], model.conv.weight)


def test_staging_that_breaks_off_half_way_leaves_nothing(place, monkeypatch):
    writer = Writer()
    slot, begun = begin_with(place, writer)

    def refuse(number):
        if number == 4:
            raise RuntimeError("the device is gone")

    one_tensor_a_call(monkeypatch, refuse)
    with pytest.raises(RuntimeError, match="the device is gone"):
        place.checkpointer.stage(make_state(Tied()), {}, begun)
    writer.wait(60)
    _, error = writer.take_outcome()
    assert "the device is gone" in str(error)
    assert place.store.list(slot.path) == []


@pytest.mark.parametrize("name", ["training.json", "rank-00000.json"])
def test_a_structure_without_its_parts_is_corrupt(place, name, monkeypatch):
    ref, manifest = place.save(make_state(Tied()))
    whole = documents.loads
    without = {"training.json": "model", "rank-00000.json": "own"}[name]

    def loads(data, *, path):
        document = whole(data, path=path)
        return {key: value for key, value in document.items() if key != without} if path.endswith(name) else document

    monkeypatch.setattr(documents, "loads", loads)
    with pytest.raises(CorruptCheckpointError, match=name):
        Checkpointer(place.store).read(ref, manifest)


@pytest.mark.parametrize("part", ["model", "training", "rank"])
def test_a_value_that_no_checkpoint_can_hold_is_named_by_its_place(place, part):
    parts = {"model": {}, "training": {}, "rank": {}} | {part: {"a": {"b": [1, object()]}}}
    for attempt in (place.checkpointer.prepare, lambda state: place.checkpointer.stage(state, {})):
        with pytest.raises(UnsupportedStateError, match=r"a\.b\.1" if part == "model" else rf"{part}\.a\.b\.1"):
            attempt(State(**parts))


def test_saving_draws_no_random_numbers(place):
    state = make_state(Tied())
    before = torch.get_rng_state()
    place.save(state)
    assert torch.equal(torch.get_rng_state(), before)


class Odd:
    """A value that is only known where it is registered."""


def alter(place, ref, name, share):
    """Flip a bit of one of the files, at a share of its length."""
    with open(f"{place.folder(ref)}/{name}", "r+b") as file:
        data = file.read()
        file.seek(int(share * (len(data) - 1)))
        file.write(bytes([data[int(share * (len(data) - 1))] ^ 1]))


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks that a header has several of."""
    monkeypatch.setattr(commit, "CHUNK_BYTES", 512)


class TestReadingIntoLiveTensors:
    def test_they_hold_what_was_saved_and_the_state_shares_their_memory(self, place, small_chunks):
        model, live = Tied(), Tied()
        read = Checkpointer(place.store).read(*place.save(make_state(model)), into={"model": live.state_dict()})
        for name, tensor in model.state_dict().items():
            shares = read.model[name].data_ptr() == live.state_dict()[name].data_ptr()
            assert shares == (name != "conv.weight")  # the file of the weights has that one in another order
            assert torch.equal(read.model[name], tensor)
            if shares:
                assert torch.equal(live.state_dict()[name], tensor)
        live.load_state_dict(dict(read.model))
        assert all(torch.equal(a, b) for a, b in zip(live.parameters(), model.parameters(), strict=True))
        assert live.conv.weight.stride() == model.conv.weight.stride()

    def test_moments_are_read_into_too(self, place):
        state = make_state(Tied())
        name = "training.optimizer.state.0.exp_avg"
        live = torch.empty_like(state.training["optimizer"]["state"][0]["exp_avg"]).zero_()
        read = Checkpointer(place.store).read(*place.save(state), into={"training": {name: live}})
        moment = read.training["optimizer"]["state"][0]["exp_avg"]
        assert moment.data_ptr() == live.data_ptr()
        assert torch.equal(live, state.training["optimizer"]["state"][0]["exp_avg"])

    @pytest.mark.parametrize("name", ["training.safetensors", "rank-00000.safetensors", "training.json"])
    def test_what_is_damaged_elsewhere_is_found_before_a_weight_is_touched(self, place, name, small_chunks):
        ref, manifest = place.save(make_state(Tied()))
        alter(place, ref, name, 0.99)
        live = Tied()
        before = {key: tensor.clone() for key, tensor in live.state_dict().items()}
        with pytest.raises(CorruptCheckpointError, match=name):
            Checkpointer(place.store).read(ref, manifest, into={"model": live.state_dict()})
        assert all(torch.equal(tensor, before[key]) for key, tensor in live.state_dict().items())

    def test_so_is_a_leaf_that_this_script_does_not_know(self, place):
        register_leaf(Odd, lambda odd: None, lambda value: Odd(), name="odd")
        state = make_state(Tied())
        ref, manifest = place.save(State(model=state.model, training={"odd": Odd()}, rank={}))
        del leaves.USER_LEAVES[Odd]
        live = torch.zeros(4, 4)
        with pytest.raises(UnsupportedStateError, match="odd"):
            Checkpointer(place.store).read(ref, manifest, into={"model": {"embed.weight": live}})
        assert live.count_nonzero() == 0

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.99])
    def test_a_damaged_chunk_of_the_weights_is_found(self, place, share, small_chunks):
        ref, manifest = place.save(make_state(Tied()))
        alter(place, ref, "model.safetensors", share)
        with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors .* chunk \d+ of \d+ was altered"):
            Checkpointer(place.store).read(ref, manifest, into={"model": Tied().state_dict()})

    @pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "training.json", "rank-00000.json"])
    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    def test_a_damaged_chunk_comes_from_the_next_store(self, place, tmp_path, name, share, small_chunks):
        model, live = Tied(), Tied()
        ref, manifest = place.save(make_state(model))
        shutil.copytree(place.store.url, tmp_path / "far")
        alter(place, ref, name, share)
        stores = [place.store, open_store(tmp_path / "far")]
        read = Checkpointer(stores[1]).read(ref, manifest, stores=stores, into={"model": live.state_dict()})
        assert all(torch.equal(read.model[key], tensor) for key, tensor in model.state_dict().items())
        assert torch.equal(live.embed.weight, model.embed.weight)
