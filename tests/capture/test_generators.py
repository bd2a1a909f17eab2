import collections
import copy
import dataclasses
import functools
import pickle
import random
import types

import numpy as np
import pytest
import torch
from loader_kinds import hugging_face
from loader_parts import Collate, Compose, Jitter, Own, Samples, Transformed

from resume_core.capture.generators import (
    OwnedStream,
    apply_generators,
    capture_generators,
    find_generators,
    seed_generators,
)
from resume_core.capture.global_generators import find_global_generators

MAKERS = {
    "pcg64": lambda: np.random.default_rng(),
    "mt19937": lambda: np.random.Generator(np.random.MT19937()),
    "philox": lambda: np.random.Generator(np.random.Philox()),
    "sfc64": lambda: np.random.Generator(np.random.SFC64()),
    "legacy": lambda: np.random.RandomState(),
    "legacy over pcg64": lambda: np.random.RandomState(np.random.PCG64()),
    "torch": lambda: torch.Generator(),
    "python": lambda: random.Random(),
}

module_rng = np.random.default_rng(0)
tools = types.ModuleType("tools")
tools.shared_rng = random.Random(0)


def make():
    return random.Random()


def draw(generator):
    """Uniform draws, and an odd number of Gaussian ones."""
    if isinstance(generator, torch.Generator):
        return [*torch.rand(2, generator=generator).tolist(), *torch.randn(1, generator=generator).tolist()]
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1)]
    if isinstance(generator, np.random.RandomState):
        return [generator.rand(), generator.randn()]
    return [generator.random(), generator.normal(), int(generator.integers(9, dtype=np.uint32))]


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("__hidden", "empty", "rng")

    def __init__(self, rng, hidden):
        self.rng, self.__hidden = rng, hidden


class BelowSlotted(Slotted):
    __slots__ = ("more",)


@dataclasses.dataclass
class Blur:
    sigma: float = 1.0
    rng: random.Random = dataclasses.field(default_factory=random.Random)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    rng: random.Random = dataclasses.field(default_factory=random.Random)


class Listing(list):
    pass


class Naming(dict):
    pass


class Module(torch.nn.Module):
    def __init__(self, *children):
        super().__init__()
        self.rng = make()
        self.layers = torch.nn.ModuleList(children)


class OfClass:
    rng = np.random.RandomState()


class BelowOfClass(OfClass):
    pass


class Careful:
    """Answers every unknown name, as proxies do."""

    __slots__ = ("rng",)

    def __getattr__(self, name):
        raise KeyError(name)


class Lazy(dict):
    def values(self):
        raise AssertionError("reading this loads everything")

    __iter__ = __len__ = items = values


# ---- finding


def in_a_closure(rng):
    def transform(value):
        return value + rng.random()

    return transform


def with_defaults(rng, other):
    def transform(value, generator=rng, *, second=other):
        return value

    return transform


PLACES = {
    "attribute": lambda a, b: Thing(a=a, b=b),
    "nested dicts": lambda a, b: Thing(options={"inner": {"x": a, "y": [1, b]}}),
    "lists and tuples": lambda a, b: Thing(both=[(a,), ([b],)]),
    "deeply nested": lambda a, b: Compose(Compose(Compose(Compose(Compose(Compose(Thing(a=a, b=b))))))),
    "slots": lambda a, b: Slotted(a, b),
    "inherited slots": lambda a, b: BelowSlotted(a, b),
    "partial": lambda a, b: functools.partial(draw, a, option=b),
    "closure": lambda a, b: Thing(transforms=[in_a_closure(a), in_a_closure(b)]),
    "defaults": lambda a, b: with_defaults(a, b),
    "bound method": lambda a, b: Thing(call=Compose(Thing(a=a), Thing(b=b)).__call__),
    "bound builtin": lambda a, b: Thing(first=a.random, second=b.random),
    "dataclasses": lambda a, b: Compose(Blur(rng=a), Frozen(rng=b)),
    "named tuple": lambda a, b: collections.namedtuple("Pair", "a b")(a, b),
    "simple namespace": lambda a, b: types.SimpleNamespace(a=a, b=b),
    "partial of a method": lambda a, b: functools.partial(Compose(Thing(a=a), Thing(b=b)).__call__, 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_generators_are_found_in(place):
    rngs = [make(), make()]
    found = find_generators(PLACES[place](*rngs))
    assert {id(rng) for rng in found} == {id(rng) for rng in rngs}
    assert len(found) == 2


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_generator_is_found(kind):
    generator = MAKERS[kind]()
    assert find_generators(Thing(transform=Thing(rng=generator))) == (generator,)


def test_a_generator_itself_is_found():
    rng = make()
    assert find_generators(rng) == (rng,)


def test_generators_are_found_beside_the_items_of_containers_with_attributes():
    listing, naming = Listing([make()]), Naming(a=make())
    listing.rng, naming.rng = make(), make()
    assert len(find_generators((listing, naming))) == 4


def test_generators_are_found_in_modules_and_their_children():
    assert len(find_generators(Module(Module(), torch.nn.Sequential(Module(), Module())))) == 4


def test_a_generator_that_a_class_holds_for_its_objects_is_found():
    assert find_generators(Thing(one=OfClass(), other=BelowOfClass())) == (OfClass.rng,)


def test_a_generator_in_two_places_is_found_once():
    rng = make()
    assert find_generators([Thing(a=rng), Thing(b=rng)]) == (rng,)


def test_what_is_closed_is_not_looked_into():
    rng, other = random.Random(), Thing(rng=random.Random())
    assert find_generators(Thing(hook=lambda: other, rng=rng), closed=(other,)) == (rng,)


def test_global_generators_are_not_taken():
    shared = Thing(
        a=torch.default_generator,
        b=random._inst,
        c=np.random.mtrand._rand,
        d=random.random,
        e=np.random.rand,
        f=random,
        g=np.random,
    )
    assert find_generators(shared) == ()


def test_what_cannot_be_seeded_is_passed_over():
    assert find_generators(Thing(rng=random.SystemRandom())) == ()


def test_unfilled_slots_and_cells_and_hostile_attributes_are_passed_over():
    def unfilled():
        return later

    assert find_generators([BelowSlotted.__new__(BelowSlotted), unfilled, Careful()]) == ()
    later = None
    careful = Careful()
    careful.rng = make()
    assert find_generators(careful) == (careful.rng,)


def test_code_of_containers_is_not_run():
    assert find_generators(Thing(rows=Lazy(a=make()))) != ()


@pytest.mark.parametrize(
    "loader_part",
    [Samples, Transformed, Collate, hugging_face],
    ids=["samples", "transforms", "collate", "hugging face"],
)
def test_the_order_is_the_same_in_another_build(loader_part):
    one, other = find_generators(loader_part()), find_generators(loader_part())
    assert [type(rng) for rng in one] == [type(rng) for rng in other]
    drawn = []
    for found in (one, other):
        seed_generators(found, 7)
        drawn.append([draw(rng) for rng in found])
    assert drawn[0] == drawn[1]


def test_the_order_is_the_same_in_a_pickled_copy():
    original = Thing(b=[Own(), Jitter()], a={"x": Blur(), "y": Frozen(), "z": Slotted(make(), make())})
    for copied in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        one, other = find_generators(original), find_generators(copied)
        assert len(one) == 10
        seed_generators(one, 7)
        seed_generators(other, 7)
        assert [draw(rng) for rng in one] == [draw(rng) for rng in other]


def test_cycles_end():
    one, other = Thing(rng=make()), Thing(rng=make())
    one.other, other.one, one.listed = other, one, [one, [other]]
    one.listed.append(one.listed)
    assert len(find_generators(one)) == 2


def test_large_containers_hold_data_and_are_not_walked():
    data = Thing(rng=make(), rows=[Thing(rng=make()) for _ in range(1000)], names={n: make() for n in range(1000)})
    assert find_generators(data) == (data.rng,)


def test_a_search_ends_in_a_graph_without_end():
    chain = Thing(rng=make(), far=make())
    for _ in range(50_000):
        chain = Thing(rng=chain.rng, inner=chain)
    wide = [[[[Thing() for _ in range(200)]] * 3 for _ in range(200)] for _ in range(3)]
    assert find_generators(Thing(near=chain, wide=wide)) == (chain.rng,)


# ---- generators of modules


def uses_a_global(value):
    return value + module_rng.random()


def calls_what_uses_a_global(value):
    return uses_a_global(value)


def uses_a_member_of_a_module(value):
    return value + tools.shared_rng.random()


class UsesAGlobal:
    def __call__(self, value):
        return [module_rng.random() for _ in range(value)]


class UsesItInAProperty:
    @property
    def value(self):
        return module_rng.random()


class UsesItInAStaticMethod:
    @staticmethod
    def value():
        return module_rng.random()


@pytest.mark.parametrize(
    "root",
    [
        uses_a_global,
        calls_what_uses_a_global,
        UsesAGlobal(),
        UsesItInAProperty(),
        UsesItInAStaticMethod(),
        Compose(functools.partial(uses_a_global)),
        lambda value: (lambda inner: inner + module_rng.random())(value),
    ],
)
def test_a_generator_of_a_module_is_named(root):
    assert find_global_generators(Thing(transform=root)) == (f"{__name__}.module_rng",)
    assert module_rng not in find_generators(root)


def test_a_generator_in_another_module_is_named():
    assert find_global_generators(uses_a_member_of_a_module) == ("tools.shared_rng",)


def test_nothing_is_named_where_only_own_and_global_generators_are_used():
    assert find_global_generators((Samples(), Transformed(), Collate(), hugging_face())) == ()


def test_generators_of_no_concern_are_not_named():
    assert find_global_generators(Thing(transform=make)) == ()


# ---- seeding


@pytest.mark.parametrize("kind", MAKERS)
def test_seeding_decides_the_draws_and_clears_what_is_pending(kind):
    generator, other = MAKERS[kind](), MAKERS[kind]()
    seed_generators([generator], 5)
    expected = draw(generator)
    draw(generator), draw(other)
    seed_generators([generator], 5)
    seed_generators([other], 5)
    assert draw(generator) == draw(other) == expected
    seed_generators([generator], 6)
    assert draw(generator) != expected


@pytest.mark.parametrize("kind", MAKERS)
def test_any_64_bits_are_a_seed(kind):
    generator = MAKERS[kind]()
    drawn = set()
    for seed in (0, 1, 2**31, 2**32, 2**63, 2**64 - 1):
        seed_generators([generator], seed)
        drawn.add(tuple(draw(generator)))
    assert len(drawn) == 6


@pytest.mark.parametrize("kind", MAKERS)
def test_two_generators_of_an_owner_draw_apart(kind):
    pair = [MAKERS[kind](), MAKERS[kind]()]
    seed_generators(pair, 5)
    assert draw(pair[0]) != draw(pair[1])


def test_seeded_pcg64_is_uniform_and_streams_are_independent():
    generator = np.random.default_rng()
    first = np.empty((4000, 2))
    for place in range(4000):
        seed_generators([generator], place)
        first[place] = generator.random(2)
    assert np.abs(first.mean(axis=0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(first.T)[0, 1]) < 0.06
    assert np.abs(np.corrcoef(first[1:, 0], first[:-1, 0])[0, 1]) < 0.06


# ---- streams


@pytest.mark.parametrize("kind", MAKERS)
def test_an_owned_stream_continues_inside_and_is_not_seen_outside(kind):
    generator, twin = MAKERS[kind](), MAKERS[kind]()
    seed_generators([generator, twin], 1)
    seed_generators([twin], 1)
    seed_generators([generator], 1)
    stream = OwnedStream(5, (generator,))
    with stream:
        first = draw(generator)
    assert draw(generator) == draw(twin)
    with stream:
        second = draw(generator)
    assert draw(generator) == draw(twin)
    seed_generators([twin], 5)
    assert [draw(twin), draw(twin)] == [first, second]


def test_an_owned_stream_covers_the_global_generators():
    stream = OwnedStream(5, ())
    state = random.getstate()
    with stream:
        first = random.random()
    assert random.getstate() == state
    with OwnedStream(5, ()):
        assert random.random() == first


@pytest.mark.parametrize("name", ["pcg", "mt", "state", "torch", "python"])
def test_a_generators_state_comes_back_with_what_was_pending(name):
    make = {
        "pcg": lambda: np.random.default_rng(1),
        "mt": lambda: np.random.Generator(np.random.MT19937(1)),
        "state": lambda: np.random.RandomState(1),
        "torch": lambda: torch.Generator().manual_seed(1),
        "python": lambda: random.Random(1),
    }[name]
    draw = {
        "torch": lambda g: torch.randn(3, generator=g).tolist(),
        "python": lambda g: [g.gauss(0, 1), g.random()],
    }.get(name, lambda g: g.standard_normal(3).tolist())
    first = make()
    draw(first)
    saved = capture_generators([first])
    expected = draw(first)
    second = make()
    apply_generators([second], saved)
    assert draw(second) == expected


def test_generators_that_do_not_fit_are_a_value_error():
    with pytest.raises(ValueError, match="shorter"):
        apply_generators([random.Random()], [])
    with pytest.raises(ValueError, match="Generator"):
        apply_generators([torch.Generator()], capture_generators([random.Random()]))
