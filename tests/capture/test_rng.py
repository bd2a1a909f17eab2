import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.capture import numpy_rng, rng
from resume_core.capture.rng import Stream, apply_rng, capture_rng, derive, preserved_rng, seed_rng


@pytest.fixture(autouse=True)
def generators_put_back():
    generator = np.random.get_bit_generator()
    python, numpy, torch_state = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    seed_rng(2026)
    yield
    np.random.set_bit_generator(generator)
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(torch_state)


def draws():
    """Of every global generator; odd numbers of Gaussians, so that the second of a pair stays pending."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        *np.random.randn(3),
        torch.rand(()).item(),
        *torch.randn(3).tolist(),
    ]


def numpy_state():
    """As the public function gives it, in a form that can be compared."""
    return comparable(np.random.get_state(legacy=False))


def comparable(value):
    if isinstance(value, dict):
        return {name: comparable(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def draw_and_fail():
    draws()
    raise KeyError


# ---- capture and apply


def test_applying_a_captured_state_repeats_the_draws():
    state = capture_rng()
    expected = draws()
    draws()
    apply_rng(state)
    assert draws() == expected


def test_pending_gaussians_are_captured():
    random.gauss(0, 1)
    np.random.randn(1)
    state = capture_rng()
    expected = random.gauss(0, 1), np.random.randn(1)[0]
    seed_rng(1)
    apply_rng(state)
    assert (random.gauss(0, 1), np.random.randn(1)[0]) == expected


def test_a_pending_gaussian_is_dropped_where_none_was_captured():
    state = capture_rng()
    expected = random.gauss(0, 1), np.random.randn(1)[0]
    apply_rng(state)
    random.gauss(0, 1)
    np.random.randn(1)
    apply_rng(state)
    assert (random.gauss(0, 1), np.random.randn(1)[0]) == expected


def test_capturing_draws_nothing():
    state = capture_rng()
    capture_rng()
    expected = draws()
    apply_rng(state)
    assert draws() == expected


def test_a_captured_state_does_not_move_with_later_draws():
    state = capture_rng()
    before = state["torch"].clone(), state["python"]["words"].clone(), state["numpy"]["state"]["key"].copy()
    draws()
    torch.rand(1000), np.random.rand(1000)
    assert torch.equal(state["torch"], before[0])
    assert torch.equal(state["python"]["words"], before[1])
    assert (state["numpy"]["state"]["key"] == before[2]).all()


def test_a_state_of_another_kind_of_numpy_generator_is_refused():
    state = capture_rng()
    np.random.set_bit_generator(np.random.PCG64(1))
    with pytest.raises(ValueError, match="PCG64"):
        apply_rng(state)


# ---- blocks that leave the generators alone


def test_a_preserved_block_leaves_every_generator_as_it_was():
    expected = draws()
    seed_rng(2026)
    with preserved_rng():
        draws()
        seed_rng(1)
        draws()
    assert draws() == expected


def test_a_block_that_raises_leaves_the_generators_alone_too():
    expected = draws()
    seed_rng(2026)
    with pytest.raises(KeyError), preserved_rng():
        draw_and_fail()
    assert draws() == expected


def test_blocks_nest():
    expected = draws(), draws()
    seed_rng(2026)
    with preserved_rng():
        seed_rng(1)
        inside = draws()
        seed_rng(1)
        with preserved_rng():
            draws()
        assert draws() == inside
    assert (draws(), draws()) == expected


def test_the_initial_seed_of_torch_is_the_same_behind_a_block():
    torch.manual_seed(7)
    with preserved_rng():
        seed_rng(1)
        assert torch.initial_seed() != 7
    assert torch.initial_seed() == 7


def test_a_block_puts_back_a_numpy_generator_that_was_exchanged_inside():
    generator = np.random.get_bit_generator()
    expected = np.random.rand(3).tolist()
    seed_rng(2026)
    with preserved_rng():
        np.random.rand()
        np.random.set_bit_generator(np.random.PCG64(1))
        np.random.rand()
    assert np.random.get_bit_generator() is generator
    assert np.random.rand(3).tolist() == expected


# ---- NumPy's fast path

GENERATORS = {"mt19937": np.random.MT19937, "pcg64": np.random.PCG64, "philox": np.random.Philox}
MOVES = {
    "rand": lambda n: np.random.rand(n),
    "randn": lambda n: np.random.randn(n),  # of an odd number one stays pending
    "normal": lambda n: np.random.normal(size=n),
    "seed": lambda n: np.random.seed(n),
    "randint": lambda n: np.random.randint(10, size=n),
    "shuffle": lambda n: np.random.shuffle(list(range(n))),
    "nothing": lambda n: None,
    "again": lambda n: np.random.set_state(np.random.get_state(legacy=False)),
    "forget a pending one": lambda n: np.random.set_state(
        {**np.random.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0}
    ),
    **{f"use {name}": lambda n, kind=kind: np.random.set_bit_generator(kind(n)) for name, kind in GENERATORS.items()},
}
moves = st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(1, 5)), max_size=4)


def go(path):
    for name, number in path:
        MOVES[name](number)


@given(before=moves, blocks=st.lists(st.tuples(moves, moves), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_block_restores_what_the_public_functions_would(before, blocks):
    generator = np.random.get_bit_generator()
    try:
        go(before)
        for inside, after in blocks:
            expected = numpy_state()
            with preserved_rng():
                go(inside)
                with preserved_rng():
                    go(inside)
            assert numpy_state() == expected
            go(after)
    finally:
        np.random.set_bit_generator(generator)


@given(inside=moves)
@settings(max_examples=50, deadline=None)
def test_without_the_expected_layout_the_public_functions_are_used(inside):
    generator, known = np.random.get_bit_generator(), numpy_rng._LAYOUT_KNOWN
    numpy_rng._LAYOUT_KNOWN = False
    try:
        assert numpy_rng.save_numpy().raw is None
        expected = numpy_state()
        with preserved_rng():
            go(inside)
        assert numpy_state() == expected
    finally:
        numpy_rng._LAYOUT_KNOWN = known
        np.random.set_bit_generator(generator)


def test_the_layout_of_this_numpy_is_known():
    assert numpy_rng._probe_layout()


def test_another_layout_is_noticed(monkeypatch):
    monkeypatch.setattr(numpy_rng, "_WORDS_BYTES", 620 * 4)
    assert not numpy_rng._probe_layout()


def test_the_words_alone_do_not_tell_whether_a_gaussian_is_pending():
    np.random.seed(0)
    np.random.randn(2)
    without = numpy_rng.save_numpy()
    np.random.seed(0)
    np.random.randn(1)
    expected, saved = numpy_state(), numpy_rng.save_numpy()
    assert saved.raw == without.raw
    for state, pending in ((without, 0), (saved, 1), (without, 0)):
        numpy_rng.put_back_numpy(state)
        assert numpy_state()["has_gauss"] == pending
    numpy_rng.put_back_numpy(saved)
    assert numpy_state() == expected


# ---- streams


def test_a_stream_leaves_the_generators_outside_alone():
    expected = draws(), draws()
    seed_rng(2026)
    stream = Stream(5)
    with stream:
        draws()
    first = draws()
    with stream:
        draws()
    assert (first, draws()) == expected


def test_a_stream_goes_on_where_it_was_left():
    with preserved_rng():
        seed_rng(5)
        expected = draws(), draws()
    stream = Stream(5)
    with stream:
        first = draws()
    draws()
    with stream:
        assert (first, draws()) == expected


def test_two_streams_in_turn_do_not_meet():
    one, other = Stream(5), Stream(6)
    found = []
    for stream in (one, other, one, other):
        with stream:
            found.append(draws())
    for stream, expected in ((Stream(5), found[::2]), (Stream(6), found[1::2])):
        with stream:
            assert [draws(), draws()] == expected


def test_a_stream_is_left_alone_by_an_error_inside():
    expected = draws()
    seed_rng(2026)
    with pytest.raises(KeyError), Stream(5):
        draw_and_fail()
    assert draws() == expected


# ---- seeds


def test_a_seed_decides_every_generator():
    seed_rng(5)
    expected = draws()
    draws()
    random.gauss(0, 1), np.random.randn(1)
    seed_rng(5)
    assert draws() == expected


def test_a_seed_decides_an_exchanged_numpy_generator():
    np.random.set_bit_generator(np.random.PCG64(1))
    seed_rng(5)
    expected = np.random.randn(3).tolist()  # leaves one pending
    seed_rng(5)
    assert np.random.randn(3).tolist() == expected


def test_no_two_generators_draw_alike():
    alike = [0, 0, 0]
    for place in range(2000):
        seed_rng(derive(9, place))
        python, numpy, of_torch = random.getrandbits(32) & 7, np.random.randint(8), torch.randint(8, ()).item()
        alike = [
            n + (a == b) for n, (a, b) in zip(alike, itertools.combinations((python, numpy, of_torch), 2), strict=True)
        ]
    assert min(alike) > 170  # chance: 250, standard deviation 15
    assert max(alike) < 330


def test_seeding_is_that_of_the_mersenne_twister():
    random.gauss(0, 1)
    seed_rng(5 << 32 | 6)
    words, position = np.random.RandomState(6).get_state()[1:3]
    assert np.random.get_state()[1].tolist() == words.tolist()
    assert random.getstate()[1][-1] == position
    assert random.getstate()[2] is None
    assert torch.rand(3).tolist() == torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()


def test_seeding_is_the_same_without_addresses(monkeypatch):
    seed_rng(5)
    expected = draws()
    monkeypatch.setattr(rng, "_seed_words", None)
    random.gauss(0, 1), np.random.randn(1)
    seed_rng(5)
    assert draws() == expected


def test_seeding_follows_an_exchanged_generator_of_the_same_kind():
    seed_rng(5)
    expected = draws()
    np.random.set_bit_generator(np.random.MT19937(1))
    seed_rng(5)
    assert draws() == expected


@pytest.mark.parametrize("shift", [0, 32])
def test_each_half_of_a_seed_matters(shift):
    seed_rng(5)
    first = draws()
    seed_rng(5 ^ (1 << (shift + 3)))
    assert draws() != first


def test_derive_tells_words_apart():
    words = [
        *itertools.product(range(-3, 12), repeat=2),
        *((n,) for n in range(-20, 200)),
        *((0, 0, n) for n in range(9)),
    ]
    assert len({derive(*word) for word in words}) == len(words)


@given(st.lists(st.integers(), min_size=1, max_size=5), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_derive_stays_in_its_range_and_depends_on_order(words, others):
    assert 0 <= derive(*words) < 2**64
    assert derive(*words) == derive(*(word & (2**64 - 1) for word in words))
    if others != others[::-1]:
        assert derive(*others) != derive(*others[::-1])


def test_one_bit_of_a_word_moves_half_the_bits():
    flipped = [bin(derive(7, 1234) ^ derive(7, 1234 ^ (1 << bit))).count("1") for bit in range(64)]
    assert 28 < sum(flipped) / 64 < 36
    assert min(flipped) > 12


def test_derived_seeds_do_not_follow_the_layout_of_words():
    assert derive(1, 2, 3) != derive(derive(1, 2), 3)
    assert derive(0) != 0
