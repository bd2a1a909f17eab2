import collections
import datetime
import enum
import functools
import json
import math
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.capture.plain import (
    array_digest,
    callable_name,
    callable_settings,
    class_path,
    is_setting,
    plain,
)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Opaque:
    pass


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


class Warmup:
    def __init__(self, steps):
        self.steps = steps
        self.model = Opaque()

    def __call__(self, step):
        return min(1.0, step / self.steps)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.sampled_from([torch.float32, torch.device("cpu"), pathlib.PurePosixPath("a/b"), Colour.RED, Level.HIGH])
    | st.floats(width=32).map(np.float32)
    | st.integers(-100, 100).map(np.int16)
    | st.lists(st.floats(width=32), max_size=100).map(torch.tensor)
    | st.dates()
)
hashable = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_any_nested_value_survives_json_unchanged(value):
    result = plain(value)

    assert json.loads(json.dumps(result, allow_nan=False)) == result


@given(values)
def test_the_same_value_gives_the_same_result_twice(value):
    assert plain(value) == plain(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (0.1, 0.1),
        ("text", "text"),
        ((1, (2, 3)), [1, [2, 3]]),
        (collections.deque([1, 2]), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        ({"b": (1,), "a": None}, {"b": [1], "a": None}),
        ({2: "two", 1: "one"}, [[1, "one"], [2, "two"]]),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        (torch.Size([2, 3]), [2, 3]),
        (torch.float16, "torch.float16"),
        (torch.device("cuda", 1), "cuda:1"),
        (pathlib.Path("a") / "b", "a/b"),
        (Colour.RED, "Colour.RED"),
        (Level.HIGH, "Level.HIGH"),
        (1 + 2j, "(1+2j)"),
        (b"ab", "b'ab'"),
        (datetime.date(2024, 5, 1), "datetime.date(2024, 5, 1)"),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        (math.sin, "math.sin"),
        (range(0, 10**12, 2), "range(0, 1000000000000, 2)"),
    ],
    ids=repr,
)
def test_a_value_becomes_the_plain_one_that_people_would_write(value, expected):
    result = plain(value)

    assert result == expected
    assert type(result) is type(expected)


def test_the_order_of_a_dict_whose_keys_are_no_strings_does_not_matter():
    assert plain({1: "a", 2: "b"}) == plain({2: "b", 1: "a"})


def test_keys_that_json_would_confuse_stay_apart():
    assert plain({1: "a", "1": "b"}) != plain({1: "a"})
    assert len(plain({1: "a", "1": "b"})) == 2


def test_subclasses_of_plain_types_become_the_plain_type():
    class Name(str):
        def __str__(self):
            return "something else"

    result = plain([Name("x"), type("Int", (int,), {})(3), type("Float", (float,), {})(0.5)])

    assert result == ["x", 3, 0.5]
    assert [type(item) for item in result] == [str, int, float]


def test_an_address_never_gets_into_a_value():
    text = plain([Opaque(), functools.partial(print, Opaque()), {"f": lambda: None, "m": Opaque().__init__}])

    assert "0x" not in json.dumps(text)
    assert plain(Opaque()) == plain(Opaque())


def test_an_object_whose_repr_fails_is_named_by_its_class():
    assert plain(Broken()) == f"<{__name__}.Broken>"
    assert plain({"deep": [Broken()]}) == "<builtins.dict>"


def test_a_long_text_is_cut_but_still_compared_as_a_whole():
    first, second = plain("x" * 5000 + "1"), plain("x" * 5000 + "2")

    assert len(first) < 1100
    assert "5001 characters" in first
    assert first != second


def test_an_integer_too_long_to_print_is_kept_as_a_digest():
    first, second = plain(10**6000), plain(10**6000 + 1)

    assert json.dumps(first)
    assert first != second


def test_a_large_array_is_a_digest_with_its_shape_and_type():
    text = plain(torch.arange(1000.0))

    assert text.startswith("float64[1000], xxh3 ")
    assert text == plain(np.arange(1000.0))
    assert text != plain(torch.arange(1000.0) + 1)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(3, 4, device="meta"), "torch.float32[3, 4]"),
        (torch.eye(3).to_sparse(), "torch.float32[3, 3]"),
    ],
)
def test_a_tensor_without_readable_numbers_is_its_type_and_shape(tensor, text):
    assert plain(tensor) == text


def test_a_huge_container_is_a_digest_and_a_change_deep_inside_it_shows():
    first = list(range(100_000))
    second = [*first[:50_000], -1, *first[50_001:]]

    assert plain(first).startswith("list of 100000 items, xxh3 ")
    assert plain(first) != plain(second)


def test_a_huge_set_has_the_same_digest_in_a_process_that_hashes_differently():
    code = "from resume_core.capture.plain import plain; print(plain({str(i) for i in range(5000)}))"

    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(outputs) == 1


def test_a_container_that_holds_itself_ends():
    loop: list = []
    loop.extend([loop] * 5)
    start = time.monotonic()

    assert isinstance(plain(loop), str)
    assert time.monotonic() - start < 2


def test_classes_and_functions_are_named_by_module_and_qualified_name():
    assert class_path(Opaque()) == class_path(Opaque) == f"{__name__}.Opaque"
    assert callable_name(is_setting) == "resume_core.capture.plain.is_setting"
    assert callable_name(Warmup(3).__call__) == f"{__name__}.Warmup.__call__"
    assert callable_name(functools.partial(is_setting, 1)) == "resume_core.capture.plain.is_setting"
    assert callable_name(Warmup(3)) == f"{__name__}.Warmup"


def test_the_script_of_a_spawned_process_keeps_the_name_of_the_main_module():
    class Mine:
        pass

    Mine.__module__ = "__mp_main__"

    assert class_path(Mine) == f"__main__.{Mine.__qualname__}"


def test_the_arguments_of_a_partial_are_its_settings():
    def schedule(step, *, num_warmup_steps, num_training_steps, factor=0.5):
        return step

    bound = functools.partial(schedule, num_warmup_steps=10, num_training_steps=100)

    assert callable_settings(bound) == {"num_warmup_steps": 10, "num_training_steps": 100, "factor": 0.5}


def test_positional_arguments_of_a_partial_are_numbered():
    assert callable_settings(functools.partial(pow, 2, 3)) == {"args.0": 2, "args.1": 3}


def test_defaults_and_closure_of_a_function_are_its_settings_but_objects_are_not():
    horizon, model = 100, Opaque()

    def schedule(step, warmup=10, other=model):
        return step / horizon + (model is None)

    assert callable_settings(schedule) == {"warmup": 10, "horizon": 100}


def test_a_name_of_a_closure_that_is_not_assigned_yet_is_passed_over():
    def outer():
        def inner():
            return later

        found = callable_settings(inner)
        later = 1
        return found

    assert outer() == {}


def test_plain_attributes_of_a_callable_object_are_its_settings():
    assert callable_settings(Warmup(500)) == {"steps": 500}


@pytest.mark.parametrize("value", [print, Warmup, None, [].append])
def test_a_callable_that_carries_nothing_has_no_settings(value):
    assert callable_settings(value) == {}


def test_settings_are_numbers_and_strings_and_what_is_made_of_them():
    assert is_setting([1, "a", None, {"b": (0.5, True)}, np.float32(1), Colour.RED, torch.tensor(1.0)])
    assert not is_setting([1, Opaque()])
    assert not is_setting(torch.zeros(1000))
    assert not is_setting({"f": print})


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_equal_numbers_have_one_digest_as_list_array_and_tensor(numbers):
    digests = {
        array_digest(numbers),
        array_digest(tuple(numbers)),
        array_digest(np.array(numbers, dtype=np.int64)),
        array_digest(torch.tensor(numbers, dtype=torch.int64)),
    }

    # without an element there is no telling integers from floats
    assert len(digests) == 1 or not numbers


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1000), min_size=1), st.data())
def test_one_changed_index_changes_the_digest(numbers, data):
    place = data.draw(st.integers(0, len(numbers) - 1))
    changed = [*numbers[:place], numbers[place] + 1, *numbers[place + 1 :]]

    assert array_digest(numbers) != array_digest(changed)


def test_a_range_has_the_digest_of_its_numbers():
    assert array_digest(range(3, 90, 4)) == array_digest(list(range(3, 90, 4)))


def test_a_longer_array_with_the_same_beginning_has_another_digest():
    assert array_digest([1, 2, 3]) != array_digest([1, 2, 3, 0])
    assert array_digest([[1, 2], [3, 4]]) != array_digest([1, 2, 3, 4])


def test_hashing_half_a_billion_indices_stays_below_a_second_or_two():
    start = time.monotonic()

    assert array_digest(range(500_000_000)) != array_digest(range(500_000_001))
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("values", [["a", "b"], [Opaque()], 7, None, [1, [2]], {"a": 1}, [1j]])
def test_what_is_no_row_of_numbers_has_no_digest(values):
    assert array_digest(values) is None
