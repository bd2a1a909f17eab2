"""When a save is due."""

from __future__ import annotations

from resume_core.policy import SaveEvery
from resume_core.schedule import Schedule
from resume_core.state import Progress


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_save_is_due_when_a_multiple_of_the_steps_is_reached_or_passed():
    schedule = Schedule(SaveEvery(steps=5, minutes=None))
    assert not schedule.due(Progress(step=4))
    assert schedule.due(Progress(step=5))
    assert schedule.due(Progress(step=7))  # two optimizers may step in one batch


def test_every_attempt_saves_at_the_same_steps():
    schedule = Schedule(SaveEvery(steps=5, minutes=None))
    schedule.restart(Progress(step=7))
    assert not schedule.due(Progress(step=9))
    assert schedule.due(Progress(step=10))


def test_a_save_is_due_when_the_minutes_have_passed_since_the_last_one():
    clock = Clock()
    schedule = Schedule(SaveEvery(steps=None, minutes=2), clock=clock)
    clock.now_s += 119
    assert not schedule.due(Progress(step=1))
    clock.now_s += 1
    assert schedule.due(Progress(step=1))
    schedule.restart(Progress(step=1))
    assert not schedule.due(Progress(step=1))


def test_whichever_comes_first_decides():
    clock = Clock()
    schedule = Schedule(SaveEvery(steps=1000, minutes=1), clock=clock)
    clock.now_s += 60
    assert schedule.due(Progress(step=1))
    assert Schedule(SaveEvery(steps=1, minutes=60)).due(Progress(step=1))


def test_without_any_rule_nothing_is_ever_due():
    assert not Schedule(SaveEvery(steps=None, minutes=None)).due(Progress(step=10**9))
