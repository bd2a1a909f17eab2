"""Ranks agree through a store; here they are threads of one process."""

from __future__ import annotations

import time

import pytest
from rank_threads import together

from resume_core.errors import CorruptCheckpointError, ResumeError
from resume_core.ranks import Ranks


def test_every_rank_gets_the_values_of_all():
    found, _ = together(3, lambda ranks: [ranks.gather("numbers", ranks.rank + n) for n in range(20)])
    assert found == [[[n, n + 1, n + 2] for n in range(20)]] * 3


def test_rank_0_decides_for_all():
    found, _ = together(3, lambda ranks: ranks.agree("a sum", ranks.rank, sum))
    assert found == [3, 3, 3]
    found, _ = together(3, lambda ranks: ranks.share("a word", f"of rank {ranks.rank}"))
    assert found == ["of rank 0"] * 3


def test_a_single_rank_needs_no_store():
    ranks = Ranks()
    assert ranks.agree("a sum", 4, sum) == 4
    assert ranks.told("anything") is None
    ranks.tell("anything", "is not written")
    ranks.part()


def test_a_wait_ends_and_names_the_rank_that_did_not_come():
    found, _ = together(3, lambda ranks: ranks.gather("the roll call", None), timeout_s=0.2, only=[0, 1])
    assert "rank 0 waited" in str(found[0])
    assert "for rank 2 at 'the roll call'" in str(found[0])
    assert "for rank 0" in str(found[1])
    assert found[2] is None
    assert all(isinstance(error, ResumeError) for error in found[:2])


def test_an_error_of_the_decision_reaches_all_and_keeps_its_type_on_rank_0():
    def decide(values):
        raise OSError(28, "No space left on device")

    found, _ = together(2, lambda ranks: ranks.agree("a claim", None, decide))
    assert isinstance(found[0], OSError)
    assert isinstance(found[1], ResumeError)
    assert "rank 0 stopped at 'a claim': OSError" in str(found[1])
    assert "No space left" in str(found[1])


def test_what_was_said_does_not_pile_up_in_the_store():
    def meet(ranks):
        for n in range(50):
            ranks.gather("numbers", n)
        ranks.part()

    _, store = together(3, meet)
    assert store.num_keys() <= 6


def test_a_message_can_be_left_without_a_meeting():
    def leave(ranks):
        if ranks.rank == 1:
            ranks.tell("a save", "the disk is full")
        ranks.gather("wait", None)
        return ranks.told("a save"), ranks.told("another")

    found, _ = together(2, leave)
    assert found == [("on rank 1: the disk is full", None)] * 2


@pytest.mark.parametrize(("rank", "size", "store"), [(2, 2, object()), (-1, 1, None), (0, 2, None)])
def test_impossible_ranks_are_refused(rank, size, store):
    with pytest.raises(ValueError, match="rank"):
        Ranks(rank, size, store)


def test_rank_0_stays_until_all_have_heard_of_a_refusal():
    def refuse(ranks):
        ranks.gather("a question", None)
        ranks.part(5.0)

    found, store = together(3, refuse)
    assert found == [None] * 3
    assert all(store.check([f"the parting/0/{rank}"]) for rank in (1, 2))


def test_parting_ends_when_a_rank_is_gone():
    def leave(ranks):
        ranks.gather("a question", None)
        if ranks.is_first:
            ranks.part(0.2)

    found, _ = together(2, leave)
    assert "waited 0 s for rank 1" in str(found[0])


def test_what_fails_on_one_rank_fails_on_all_with_its_kind():
    def work(ranks):
        def read():
            if ranks.rank == 1:
                raise CorruptCheckpointError("it is torn", path="file")
            return ranks.rank

        return ranks.together("reading", read)

    found, _ = together(3, work)
    assert [type(error) for error in found] == [CorruptCheckpointError] * 3
    assert [str(error) for error in found] == ["on rank 1: it is torn", "it is torn", "on rank 1: it is torn"]
    found, _ = together(2, lambda ranks: ranks.together("dividing", lambda: 1 / ranks.rank))
    assert [type(error) for error in found] == [ZeroDivisionError, ResumeError]
    found, _ = together(2, lambda ranks: ranks.together("counting", lambda: ranks.rank + 1))
    assert found == [1, 2]


def test_rank_0_stays_until_all_have_read_its_decision():
    found, _ = together(2, lambda ranks: [ranks.share("a word", "x"), ranks.settle(), ranks.settle()])
    assert found == [["x", None, None]] * 2
    found, _ = together(2, lambda ranks: ranks.settle(), timeout_s=0.2, only=[0])
    assert "for rank 1" in str(found[0])
    Ranks().settle()


@pytest.mark.parametrize("way", ["agree", "together"])
def test_rank_0_stays_until_the_others_have_read_why_it_stops(way):
    done = []

    def fail(*_):
        raise CorruptCheckpointError("torn")

    def work(ranks):
        if not ranks.is_first:
            plain = ranks._get
            ranks._get = lambda *args: (plain(*args), time.sleep(0.2), done.append("read"))[0]
        try:
            ranks.agree("it", None, fail) if way == "agree" else ranks.together("it", fail)
        finally:
            done.append(f"rank {ranks.rank} stops")

    found, _ = together(2, work)
    assert isinstance(found[0], CorruptCheckpointError)
    assert "torn" in str(found[1])
    assert done.index("read") < done.index("rank 0 stops")
