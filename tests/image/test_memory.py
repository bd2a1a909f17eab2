"""A walk that remembers the one before finds exactly what a first walk would find."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing import parse

from resume_core.errors import UnsupportedStateError
from resume_core.image import Arena, FileSpec, Memory, Stager, flatten, unflatten
from resume_core.image.encode import _Encoder
from tests.image.helpers import assert_same

POOL = [torch.arange(12.0).reshape(3, 4) + i for i in range(3)]
POOL += [POOL[0].t(), POOL[0][0], POOL[0].view(4, 3), torch.zeros(0), torch.nn.Parameter(torch.ones(2))]
POOL += [torch.ones(3, dtype=torch.complex64)]
POOL += [POOL[-1].conj(), POOL[1].double(), POOL[2].clone()]
values = st.sampled_from(range(len(POOL))) | st.just(None)
rows = st.dictionaries(st.sampled_from(["x", "y", "b.x", 1]), values, max_size=3)
optimizers = st.dictionaries(st.sampled_from([0, 1, True, "2"]), rows | rows.map(OrderedDict), max_size=3)
trees = st.dictionaries(st.sampled_from("abcd"), values | rows | rows.map(OrderedDict) | optimizers, max_size=4)


def real(tree):
    if isinstance(tree, dict):
        return type(tree)((key, real(child)) for key, child in tree.items())
    return None if tree is None else POOL[tree]


def flat_parts(flat):
    return flat.structure, {name: t.data_ptr() for name, t in flat.tensors.items()}, flat.aliases


@given(st.lists(trees, min_size=2, max_size=6))
@settings(max_examples=400, deadline=None)
def test_any_sequence_of_trees_restores_as_it_was(sequence):
    memory, stager = Memory(), Stager(Arena())
    for tree in map(real, sequence):
        flat = flatten(tree, memory=memory)
        (image,) = stager.stage([FileSpec("a.safetensors", flat.tensors, plan=flat.plan)])
        assert_same(tree, unflatten(flat.structure, parse(bytes(image.buffer))))
        assert set(flat.aliases.values()) <= flat.tensors.keys()


@given(trees)
@settings(max_examples=200, deadline=None)
def test_the_same_tree_again_is_found_as_it_was_found_first(tree):
    memory = Memory()
    first, again = (flatten(real(tree), memory=memory) for _ in range(2))
    assert flat_parts(first) == flat_parts(again)


def test_nothing_new_keeps_the_plan_and_anything_new_changes_it():
    memory = Memory()
    plans = [
        flatten(tree, memory=memory).plan
        for tree in (
            {"a": torch.zeros(3), "b": 1},
            {"a": torch.ones(3), "b": 2},  # other memory, other values
            {"a": torch.ones(4), "b": 2},
            {"a": torch.ones(4).double(), "b": 2},
            {"a": torch.ones(4, 1).double(), "b": 2},
            {"a": torch.ones(1, 4).double().t(), "c": torch.ones(1)},
            {"c": torch.ones(1)},
        )
    ]
    assert plans[0] is plans[1]
    assert len({id(plan) for plan in plans}) == len(plans) - 1


def test_tensors_that_are_tied_from_now_on_are_one_entry_and_apart_again_two():
    memory = Memory()
    one, other = torch.ones(3), torch.zeros(3)
    for tree, num in (
        ({"a": one, "b": other}, 2),
        ({"a": one, "b": one}, 1),
        ({"a": one, "b": one}, 1),
        ({"a": one.clone(), "b": other}, 2),
        ({"a": other, "b": other, "c": one}, 2),
    ):
        flat = flatten(tree, memory=memory)
        assert len(flat.tensors) == num
        assert_same(tree, unflatten(flat.structure, dict(flat.tensors)))


def test_a_view_that_only_says_conjugate_is_no_alias_of_the_tensor_it_was_tied_to():
    memory, tensor = Memory(), torch.tensor([1 + 2j])
    assert flatten({"a": tensor, "b": tensor}, memory=memory).aliases == {"b": "a"}
    assert flatten({"a": tensor, "b": tensor.conj()}, memory=memory).aliases == {}


def test_a_tensor_that_cannot_be_stored_any_more_is_refused_at_its_place():
    memory = Memory()
    flatten({"a": torch.eye(2)}, memory=memory)
    with pytest.raises(UnsupportedStateError, match="'a'"):
        flatten({"a": torch.eye(2).to_sparse()}, memory=memory)
    assert flatten({"a": torch.eye(2)}, memory=memory).tensors.keys() == {"a"}


def test_what_was_found_before_is_not_walked_anew(monkeypatch):
    memory, tree = Memory(), {"a": torch.zeros(2), "b": {"c": torch.ones(1)}}
    flatten(tree, memory=memory)
    monkeypatch.setattr("resume_core.image.encode.tensor_node", None)
    flatten(tree, memory=memory)


def test_a_layout_is_used_again_without_looking_at_the_tensors(monkeypatch):
    memory, stager = Memory(), Stager(Arena())

    def save(value):
        flat = flatten({"a": torch.full((5,), value)}, memory=memory)
        (image,) = stager.stage([FileSpec("f", flat.tensors, plan=flat.plan)])
        return parse(bytes(image.buffer))["a"].tolist()

    assert save(1.0) == [1.0] * 5
    monkeypatch.setattr("resume_core.image.layout.Layout.matches", None)
    assert save(2.0) == [2.0] * 5


def optimizer(num=3):
    names = ("step", "exp_avg", "exp_avg_sq")
    return {"state": {number: {name: torch.full((2, 3), float(number)) for name in names} for number in range(num)}}


def drop(tree, key):
    del tree[key]


def reorder(tree):
    first = next(iter(tree))
    tree[first] = tree.pop(first)


MOMENT = torch.full((2, 3), 7.0)
CHANGES = {
    "another value": lambda state: state[1].update(step=MOMENT),
    "another shape": lambda state: state[1].update(step=torch.ones(3, 2)),
    "other strides": lambda state: state[1].update(step=torch.ones(3, 2).t()),
    "strides in place": lambda state: state[1]["step"].t_(),
    "another type": lambda state: state[1].update(step=MOMENT.double()),
    "a gradient": lambda state: state[1].update(step=MOMENT.clone().requires_grad_()),
    "a parameter": lambda state: state[1].update(step=torch.nn.Parameter(MOMENT)),
    "no tensor": lambda state: state[1].update(step=3),
    "nothing": lambda state: state[1].update(step=None),
    "one more in a row": lambda state: state[1].update(more=MOMENT),
    "one less in a row": lambda state: drop(state[1], "step"),
    "another order in a row": lambda state: reorder(state[1]),
    "one more row": lambda state: state.update({9: {"step": MOMENT}}),
    "one row less": lambda state: drop(state, 1),
    "another order of rows": reorder,
    "a row of another class": lambda state: state.update({1: OrderedDict(state[1])}),
    "a row that is none": lambda state: state.update({1: MOMENT}),
    "an empty row": lambda state: state.update({1: {}}),
    "a row deeper": lambda state: state.update({1: {"step": {"a": MOMENT}}}),
    "a key of another class": lambda state: (drop(state, 1), state.update({True: {"step": MOMENT}})),
    "tied to another": lambda state: state[1].update(step=state[0]["step"]),
    "tied within a row": lambda state: state[1].update(step=state[1]["exp_avg"]),
    "a name that was taken": lambda state: state.update({"1": {"step": MOMENT}}),
}


def test_a_key_of_another_class_that_is_equal_is_seen_in_a_row_too():
    memory, tree = Memory(), {"state": {"a": {1: MOMENT}, "b": {1: MOMENT.clone()}}}
    flatten(tree, memory=memory)
    tree["state"]["b"] = {True: MOMENT.clone()}
    flat = flatten(tree, memory=memory)
    assert_same(tree, unflatten(flat.structure, dict(flat.tensors)))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("learnt", ["before", "after", "both"])
def test_every_change_of_what_is_looked_at_as_a_whole_is_seen(change, learnt):
    memory, stager, tree = Memory(), Stager(Arena()), optimizer()
    if learnt != "after":
        flatten(tree, memory=memory)
        assert memory.dicts
    change(tree["state"])
    for _ in range(1 if learnt == "before" else 3):
        flat, anew = flatten(tree, memory=memory), flatten(tree)
        (image,) = stager.stage([FileSpec("a.safetensors", flat.tensors, plan=flat.plan)])
        assert_same(tree, unflatten(flat.structure, parse(bytes(image.buffer))))
        assert (len(flat.tensors), len(flat.aliases)) == (len(anew.tensors), len(anew.aliases))


def test_thousands_of_tensors_are_looked_at_in_a_few_calls(monkeypatch):
    """Training waits for this walk: each call of ours for each tensor would be a tenth of the copy."""
    memory, tree = Memory(), {"model": OrderedDict(a=torch.ones(2), b=torch.ones(3)), **optimizer(50)}
    flatten(tree, memory=memory)
    calls, plain = [], _Encoder.encode
    monkeypatch.setattr(_Encoder, "encode", lambda *args: (calls.append(args), plain(*args))[1])
    flatten(tree, memory=memory)
    assert len(calls) == 3  # the tree, the model, the state
    assert flatten(tree, memory=memory).plan is memory.plan
