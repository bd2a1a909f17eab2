"""Every kind of loader, interrupted and continued, against one that ran through."""

import collections

import pytest
from loader_kinds import KINDS, NUM_EPOCHS, READS_ONCE, Run, ids, whole

WORKERS = {
    "two workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
    "deep prefetch": {"num_workers": 3, "prefetch_factor": 8},
}
EVERYWHERE = (
    "shuffled",
    "stateful",
    "sampler with a generator",
    "varying batches",
    "single indices",
    "mixing subclass",
)
WITH_WORKERS = [
    pytest.param(kind, workers, marks=[] if workers == "two workers" or kind in EVERYWHERE else pytest.mark.slow)
    for kind in KINDS
    for workers in WORKERS
]


def batches_of(kind):
    return [batches for batches, _ in whole(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_start_gives_the_same_batches(kind):
    again = Run.start(kind, seed=50)
    assert [again.epoch(epoch)[0] for epoch in range(NUM_EPOCHS)] == batches_of(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_pass_continues_as_if_it_had_run_through(kind):
    num_batches = len(whole(kind)[1][0])
    for epoch, cut in [(0, 2), (1, 0), (1, 1), (1, num_batches - 1), (1, num_batches), (2, 3)]:
        batches, states = whole(kind)[epoch]
        resumed = Run.start(kind, seed=77, state=states[cut])
        assert resumed.epoch(epoch)[0] == batches[cut:]
        for later in range(epoch + 1, NUM_EPOCHS):
            assert resumed.epoch(later)[0] == whole(kind)[later][0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_of_interruptions_continues_too(kind):
    batches = batches_of(kind)
    first = Run.start(kind, seed=50)
    first.epoch(0)
    second = Run.start(kind, seed=60, state=first.epoch(1, 2)[1][-1])
    third = Run.start(kind, seed=70, state=second.epoch(1, 1)[1][-1])
    assert third.epoch(1)[0] == batches[1][3:]
    assert third.epoch(2)[0] == batches[2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_epoch_may_begin_straight_from_the_state_at_the_end_of_one(kind):
    resumed = Run.start(kind, seed=77, state=whole(kind)[1][1][-1])
    assert resumed.epoch(2)[0] == whole(kind)[2][0]


@pytest.mark.parametrize(("kind", "workers"), WITH_WORKERS)
def test_workers_change_nothing_before_or_after_an_interruption(kind, workers):
    expected, options = batches_of(kind), WORKERS[workers]
    cut = len(expected[1]) // 2
    first = Run.start(kind, seed=50, **options)
    assert first.epoch(0)[0] == expected[0]
    batches, states = first.epoch(1, cut)
    assert batches == expected[1][:cut]

    resumed = Run.start(kind, seed=77, state=states[-1], **options)
    assert resumed.epoch(1)[0] == expected[1][cut:]
    assert resumed.epoch(2)[0] == expected[2]


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_of_every_epoch_draws_something_else(kind):
    for name in ("batch", "mixed"):
        drawn = [tuple(batch[name]) for batches in batches_of(kind) for batch in batches if name in batch]
        assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["no worker", "two workers"])
@pytest.mark.parametrize("kind", READS_ONCE)
def test_no_consumed_sample_is_read_again(kind, workers):
    batches, states = whole(kind)[1]
    resumed = Run.start(kind, seed=77, state=states[-3], **workers)
    resumed.epoch(1)
    reads = dict(enumerate(resumed.loader.dataset.reads.tolist()))
    assert {index: times for index, times in reads.items() if times} == collections.Counter(ids(batches[-2:]))
