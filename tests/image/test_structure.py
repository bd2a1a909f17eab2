import datetime as dt
import enum
import math
import pathlib
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resume_core.errors import CorruptCheckpointError, UnsupportedStateError
from resume_core.image import Recorded, dumps, flatten, loads, register_leaf, unflatten
from resume_core.image.dtypes import BY_DTYPE
from resume_core.image.encode import MAX_DEPTH
from resume_core.image.leaves import USER_LEAVES
from tests.image import strategies
from tests.image.helpers import assert_same, assert_same_tensor, bits, is_nan, round_trip

CALM = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@CALM
@given(strategies.states, st.booleans())
def test_any_state_comes_back_equal_in_values_types_order_and_strides(state, plain):
    assert_same(state, round_trip({"state": state}, plain=plain)["state"])


@CALM
@given(strategies.states)
def test_a_state_flattened_twice_gives_the_same_text_and_names(state):
    first, second = flatten(state), flatten(state)
    assert dumps(first.structure) == dumps(second.structure)
    assert list(first.tensors) == list(second.tensors)


@CALM
@given(st.lists(strategies.tensors(), min_size=1, max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_tensors_that_are_one_come_back_as_one_and_others_apart(pool, picks):
    pool = [tensor for tensor in pool if tensor.numel()] or [torch.ones(1)]
    chosen = [pool[pick % len(pool)] for pick in picks]
    restored = round_trip(chosen)
    for i, a in enumerate(chosen):
        for j, b in enumerate(chosen):
            assert (a is b) == (restored[i] is restored[j])


@pytest.mark.parametrize(
    "value",
    [
        {1: "int key", (1, "a"): "tuple key", None: 0, False: 1},
        {"$": "tensor", "name": "not one"},
        {"a.b": 1, "a": {"b": 2}, "": 3},
        Counter({10: 1, 20: 2}),
        OrderedDict([("z", 1), ("a", OrderedDict())]),
        defaultdict(list, {1: [2]}),
        defaultdict(None, a=1),
        (1, (2, ()), [(), {}]),
        {1, 2, "a", (3, None)},
        frozenset({b"x"}),
        [math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2],
        [2**63, -(2**5000), 10**6000, True, False],
        ["\ud800", "\udfff\ud800", "\ud83d\ude00", "\U0001f600", "\0\x7f\u2028"],
        {"\ud83d\ude00": 1, "\U0001f600": 2},
        [b"", b"\0\xff", 1 - 0j, complex(math.inf, -0.0)],
        [torch.Size([]), torch.Size([3, 0]), torch.int8, torch.device("cpu"), torch.device("cuda", 3)],
        [pathlib.Path("/data/x"), pathlib.PureWindowsPath("c:\\x"), pathlib.PurePosixPath("y")],
        [dt.date(2024, 2, 29), dt.time(1, 2, 3, 4, fold=1), dt.timedelta(days=-1, microseconds=7)],
        [dt.datetime(2024, 1, 1, fold=1), dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5), "X"))],
        [
            np.float64(1.5),
            np.float32(-0.0),
            np.bool_(True),
            np.int8(-1),
            np.complex64(1j),
            np.datetime64("2024-01", "M"),
        ],
        [
            np.arange(6).reshape(2, 3).T,
            np.zeros((0, 2)),
            np.array(3.0),
            np.array(["ab", "c"]),
            np.arange(3, dtype=">i4"),
        ],
        [np.array([np.nan, -np.inf, -0.0]), np.arange(4)[::-1], np.broadcast_to(np.ones(2), (3, 2))],
        random.Random(3).getstate(),
        np.random.RandomState(3).get_state(),
    ],
)
def test_a_value_comes_back_exactly(value):
    assert_same(value, round_trip(value))


def test_nan_comes_back_as_nan():
    restored = round_trip([math.nan, complex(math.nan, 1), {"x": math.nan}])
    assert is_nan(restored[0])
    assert is_nan(restored[1].real)
    assert restored[1].imag == 1
    assert is_nan(restored[2]["x"])


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", sorted(BY_DTYPE, key=str), ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_element_type_comes_back_bit_for_bit(dtype, plain):
    raw = torch.arange(12 * dtype.itemsize, dtype=torch.uint8) * 37
    raw = raw % 2 if dtype is torch.bool else raw
    tensor = raw.view(dtype).view(3, 4)
    tree = [tensor, tensor.t(), tensor[0, 0], tensor[:0], tensor.view(3, 2, 2).permute(2, 0, 1)]
    for before, after in zip(tree, round_trip(tree, plain=plain), strict=True):
        assert_same_tensor(before, after)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_keeps_its_exact_strides_also_with_one_channel(channels, plain):
    tensor = torch.randn(2, channels, 4, 5).to(memory_format=torch.channels_last)
    assert_same_tensor(tensor, round_trip(tensor, plain=plain))


@pytest.mark.parametrize("plain", [False, True])
def test_views_with_holes_or_overlap_come_back_laid_out_like_their_clone(plain):
    base = torch.randn(6, 8)
    views = [base[::2], base.t()[::2], base[:, 3], base[:1].expand(4, 8), base.t()[:, :1].expand(8, 3)]
    for before, after in zip(views, round_trip(views, plain=plain), strict=True):
        assert_same_tensor(before.clone(), after)


@pytest.mark.parametrize("plain", [False, True])
def test_conjugate_and_negative_views_come_back_resolved(plain):
    tensor = torch.randn(3, dtype=torch.complex64)
    conj, neg = round_trip([tensor.conj(), tensor.conj().imag], plain=plain)
    assert torch.equal(conj, tensor.conj().resolve_conj())
    assert torch.equal(neg, -tensor.imag)
    assert not conj.is_conj()


def test_a_tensor_that_requires_grad_is_taken_off_the_graph_and_requires_grad_again():
    weight = torch.randn(3, requires_grad=True)
    leaf, computed = round_trip([weight, weight * 2])
    assert leaf.is_leaf
    assert computed.is_leaf
    assert computed.requires_grad


def test_parameters_come_back_as_parameters():
    free, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert_same([free, frozen], round_trip([free, frozen]))


@pytest.mark.parametrize("plain", [False, True])
def test_tied_weights_are_stored_once_and_come_back_as_one_object(plain):
    weight = torch.nn.Parameter(torch.randn(4, 3))
    tree = {"embed": weight, "head": weight, "detached": weight.detach(), "array": weight.detach().numpy()}
    flat = flatten(tree)
    assert list(flat.tensors) == ["embed"]
    assert flat.aliases == {"head": "embed", "detached": "embed", "array": "embed"}
    restored = round_trip(tree, plain=plain)
    assert restored["head"] is restored["embed"]
    assert type(restored["detached"]) is torch.Tensor
    with torch.no_grad():
        restored["embed"].fill_(7)
    assert restored["detached"].eq(7).all()
    assert (restored["array"] == 7).all()


def test_different_views_of_one_memory_are_stored_independently():
    base = torch.randn(4)
    flat = flatten([base, base[:2], base.view(2, 2)])
    assert len(flat.tensors) == 3
    assert not flat.aliases


def test_names_are_dotted_paths_made_unique():
    one, two = torch.zeros(1), torch.zeros(1)
    flat = flatten({"a.b": one, "a": {"b": two}, "__metadata__": torch.zeros(1), 3: [torch.zeros(1)]}, path="")
    assert list(flat.tensors) == ["a.b", "a.b~2", "__metadata__~2", "3.0"]
    assert list(flatten([one], path="callbacks.ema").tensors) == ["callbacks.ema.0"]
    assert flat.tensors["a.b"] is one


def test_a_name_with_surrogates_becomes_one_that_every_reader_takes():
    (name,) = flatten({"\ud800": torch.zeros(1)}).tensors
    assert name.isascii()


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Wrapped(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Point(1, 2), "Point"),
        (Colour.RED, "Colour"),
        (Text("x"), "Text"),
        (type("D", (dict,), {})(), "D"),
        (lambda: 0, "function"),
        (torch.nn.Linear(1, 1), "Linear"),
        (object, "type"),
        (object(), "object"),
        (defaultdict(lambda: 0), "factory"),
        (np.array([object()]), "object"),
        (np.zeros(1, dtype=[("a", "f4")]), "dtype"),
        (dt.datetime(2024, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {"utcoffset": lambda *_: None})()), "Zone"),
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (torch.zeros(1, device="meta"), "meta"),
        (torch.zeros(2).as_subclass(Wrapped), "Wrapped"),
        (torch.empty(2, dtype=torch.bits8), "bits8"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_place_and_type_with_the_ways_out(value, named):
    with pytest.raises(UnsupportedStateError, match=named) as caught:
        flatten({"callbacks": [0, {"ema": value}]})
    assert caught.value.path == "callbacks.1.ema"
    assert "callbacks.1.ema" in str(caught.value)
    assert "keep it out of the state" in str(caught.value)


@pytest.mark.parametrize("value", [Point(1, 2), Colour.RED, object(), torch.nn.Linear(1, 1)])
def test_a_type_that_can_be_registered_is_refused_with_the_call_that_does_it(value):
    with pytest.raises(UnsupportedStateError, match=rf"register_leaf\({type(value).__name__}, encode, decode\)"):
        flatten([value])


@pytest.mark.filterwarnings("ignore")
def test_quantized_sparse_rows_and_nested_tensors_are_refused_by_name():
    quantized = torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    for value in (quantized, nested, torch.eye(2).to_sparse_csr()):
        with pytest.raises(UnsupportedStateError, match=r"'model\.weight'"):
            flatten({"model": {"weight": value}})


def test_a_container_that_holds_itself_is_refused_with_its_place():
    loop = {"a": []}
    loop["a"].append(loop)
    with pytest.raises(UnsupportedStateError, match="holds itself") as caught:
        flatten({"x": loop})
    assert caught.value.path == "x.a.0"


def test_the_same_list_at_two_places_is_no_cycle():
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {1: x}], ids=["list", "tuple", "pairs"])
def test_depth_up_to_the_limit_comes_back_and_more_is_refused(wrap):
    value = 0
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert loads(dumps(flatten(value).structure)) == flatten(value).structure
    assert unflatten(flatten(value).structure, {}) == value
    with pytest.raises(UnsupportedStateError, match="levels deep"):
        flatten(wrap(value))


class Clock:
    def __init__(self, ticks):
        self.ticks = ticks


@pytest.fixture
def leaves():
    before = dict(USER_LEAVES)
    yield
    USER_LEAVES.clear()
    USER_LEAVES.update(before)


def test_a_registered_leaf_comes_back_with_its_tensors(leaves):
    register_leaf(Clock, lambda clock: {"ticks": clock.ticks}, lambda tree: Clock(tree["ticks"]))
    restored = round_trip({"clock": Clock((torch.arange(3), 1.5))})
    assert type(restored["clock"]) is Clock
    assert_same(restored["clock"].ticks, (torch.arange(3), 1.5))


def test_a_leaf_that_is_not_registered_any_more_says_what_to_register(leaves):
    register_leaf(Clock, lambda clock: clock.ticks, Clock, name="my.clock")
    structure = flatten({"c": Clock(1)}).structure
    USER_LEAVES.clear()
    with pytest.raises(UnsupportedStateError, match=r"register_leaf\(cls, encode, decode, name='my.clock'\)"):
        unflatten(structure, {})


def test_a_leaf_whose_functions_raise_is_named(leaves):
    register_leaf(Clock, lambda clock: 1 / clock.ticks, lambda tree: 1 / tree)
    with pytest.raises(UnsupportedStateError, match=r"encode function registered for .*Clock"):
        flatten({"c": Clock(0)})
    with pytest.raises(UnsupportedStateError, match=r"decode function registered for .*Clock"):
        unflatten({"$": "leaf", "name": f"{__name__}.Clock", "value": 0}, {})


def test_a_leaf_that_encodes_to_itself_is_refused_not_recursed(leaves):
    register_leaf(Clock, lambda clock: clock, lambda tree: tree)
    with pytest.raises(UnsupportedStateError, match="holds itself"):
        flatten(Clock(1))


def test_register_leaf_refuses_what_is_supported_and_names_that_are_taken(leaves):
    with pytest.raises(TypeError, match="supported by itself"):
        register_leaf(OrderedDict, list, dict)
    with pytest.raises(TypeError, match="class"):
        register_leaf(Clock(1), list, dict)
    register_leaf(Clock, vars, Clock, name="clock")
    with pytest.raises(ValueError, match="taken"):
        register_leaf(Text, str, Text, name="clock")
    again = type("Clock", (), {"__module__": Clock.__module__, "__qualname__": Clock.__qualname__})
    register_leaf(again, vars, lambda tree: again(), name="clock")
    assert Clock not in USER_LEAVES


class Broken:
    def __repr__(self):
        raise RuntimeError("no")


def test_lenient_records_anything_as_its_repr_and_never_raises():
    loop = []
    loop.append(loop)
    tree = {"net": torch.nn.Linear(1, 1), "x": Broken(), "t": torch.ones(2), "e": Colour.RED, "l": loop, "f": [1.5]}
    tree |= {"a": np.ones(1), "d": defaultdict(lambda: 0), "long": type("L", (), {"__repr__": lambda s: "x" * 5000})()}
    flat = flatten(tree, lenient=True)
    assert not flat.tensors
    restored = unflatten(loads(dumps(flat.structure)), {})
    assert restored["f"] == [1.5]
    assert restored["e"] == Recorded(f"{__name__}.Colour", repr(Colour.RED))
    assert "RuntimeError" in restored["x"].value
    assert len(restored["long"].value) == 1000


def test_lenient_survives_a_dict_that_breaks_while_it_is_walked():
    class Growing(list):
        def __iter__(self):
            raise RuntimeError("changed")

    assert flatten({"x": Growing()}, lenient=True).structure["x"]["$"] == "repr"
    deep = []
    for _ in range(20000):
        deep = [deep]
    assert dumps(flatten(deep, lenient=True).structure)


def test_flattening_and_restoring_draw_no_random_numbers():
    before = torch.get_rng_state(), random.getstate()
    round_trip({"a": torch.ones(3), "b": {1, 2}})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_restored_tensors_are_writable_and_own_storages_of_their_own_size():
    restored = round_trip([torch.arange(4), torch.arange(1000)])
    restored[0].add_(1)
    assert restored[0].untyped_storage().nbytes() == 32
    assert bits(restored[1]) == bits(torch.arange(1000))


@pytest.mark.parametrize(
    "structure",
    [
        {"$": "no such kind"},
        {"$": ["tuple"]},
        {"$": None},
        {"$": "tuple"},
        {"$": "tuple", "items": 3},
        {"$": "tuple", "items": [], "more": 1},
        {"$": "set", "items": [[1]]},
        {"$": "dict", "items": {"a": 1}},
        {"$": "dict", "items": [[1]]},
        {"$": "dict", "items": [[1, 2], [1, 3]]},
        {"$": "dict", "items": [[[], 2]]},
        {"$": "defaultdict", "items": [], "factory": "eval"},
        {"$": "defaultdict", "items": [], "factory": ["list"]},
        {"$": "float", "value": "1.5"},
        {"$": "int", "hex": "zz"},
        {"$": "bytes", "base64": "!"},
        {"$": "str", "base64": "/w=="},
        {"$": "torch.dtype", "value": "load"},
        {"$": "torch.device", "value": 0},
        {"$": "torch.Size", "value": [1.5]},
        {"$": "date", "value": [2024, 13, 1]},
        {"$": "datetime", "date": [1, 1, 1], "time": [0, 0, 0, 0], "fold": 0, "zone": [[99, 0, 0]]},
        {"$": "numpy.generic", "dtype": "|O", "base64": "AAAAAAAAAAA="},
        {"$": "numpy.bytes", "dtype": "<f4", "shape": [-1], "base64": ""},
        {"$": "numpy.bytes", "dtype": "<f4", "shape": [2**62], "base64": ""},
        {"$": "numpy.ndarray", "tensor": [1]},
        {
            "$": "numpy.ndarray",
            "tensor": {"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, 3], "requires_grad": True},
        },
        {"$": "tensor"},
        {"$": "tensor", "alias": "later"},
        {"$": "tensor", "name": "x"},
        {"$": "tensor", "name": ["x"], "dtype": "float32", "shape": [2, 3]},
        {"$": "tensor", "name": "y", "dtype": "float32", "shape": [2, 3]},
        {"$": "tensor", "name": "x", "dtype": "load", "shape": [2, 3]},
        {"$": "tensor", "name": "x", "dtype": "int32", "shape": [2, 3]},
        {"$": "tensor", "name": "x", "dtype": "complex128", "shape": [2, 3]},
        {"$": "tensor", "name": "x", "dtype": "float32", "shape": [3, 2]},
        {"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, -3]},
        {"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, 3], "stride": [3]},
        {"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, 3], "stride": [100, 1]},
        {"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, 3], "stride": [3, 0]},
        {"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, 3], "requires_grad": 1},
        [{"$": "tensor", "name": "x", "dtype": "float32", "shape": [2, 3]}] * 2,
        [],
        math.nan,
        math.inf,
        object(),
    ],
    ids=lambda structure: "object" if type(structure) is object else repr(structure),
)
def test_a_malformed_structure_is_a_corrupt_checkpoint(structure):
    with pytest.raises(CorruptCheckpointError, match=r"training\.json"):
        unflatten(structure, {"x": torch.zeros(2, 3)}, path="training.json")


def test_a_structure_that_is_nested_too_deep_is_a_corrupt_checkpoint():
    structure = []
    for _ in range(5000):
        structure = [structure]
    with pytest.raises(CorruptCheckpointError, match="too deep"):
        unflatten(structure, {})


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"NaN", b"[Infinity]", b"1e999", b'{"a":1,"a":2}', b"\xff", b'"\xc3\xa9"', b"9" * 5000, b"[" * 100000],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_is_not_strict_json_is_a_corrupt_checkpoint(text):
    with pytest.raises(CorruptCheckpointError, match=r"training\.json"):
        loads(text, path="training.json")


def test_dumps_refuses_what_is_not_json():
    with pytest.raises(ValueError, match="JSON"):
        dumps([math.nan])
