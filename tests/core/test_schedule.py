"""When a save is due, and how often that is where the run decides."""

from __future__ import annotations

import logging
import time

import pytest

from resume_core.history import History
from resume_core.policy import SaveEvery
from resume_core.schedule import Cadence, Schedule
from resume_core.state import Progress


def made(save, clock=time.monotonic):
    log = logging.getLogger("test")
    return Schedule(save, Cadence(save, History(log), log), clock=clock)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_save_is_due_when_a_multiple_of_the_steps_is_reached_or_passed():
    schedule = made(SaveEvery(steps=5, minutes=None))
    assert not schedule.due(Progress(step=4))
    assert schedule.due(Progress(step=5))
    assert schedule.due(Progress(step=7))  # two optimizers may step in one batch


def test_every_attempt_saves_at_the_same_steps():
    schedule = made(SaveEvery(steps=5, minutes=None))
    schedule.restart(Progress(step=7))
    assert not schedule.due(Progress(step=9))
    assert schedule.due(Progress(step=10))


def test_a_save_is_due_when_the_minutes_have_passed_since_the_last_one():
    clock = Clock()
    schedule = made(SaveEvery(steps=None, minutes=2), clock=clock)
    clock.now_s += 119
    assert not schedule.due(Progress(step=1))
    clock.now_s += 1
    assert schedule.due(Progress(step=1))
    schedule.restart(Progress(step=1))
    assert not schedule.due(Progress(step=1))


def test_nothing_is_due_where_the_last_save_was():
    clock = Clock()
    schedule = made(SaveEvery(steps=None, minutes=1, epochs=1), clock=clock)
    ends = Progress(step=3, batch=3, ends_epoch=True)
    schedule.restart(ends)
    clock.now_s += 120
    assert not schedule.due(ends)  # asked again at the same boundary, after a save that took its time
    assert schedule.due(Progress(step=4, batch=4, epoch=1))


def test_whichever_comes_first_decides():
    clock = Clock()
    schedule = made(SaveEvery(steps=1000, minutes=1), clock=clock)
    clock.now_s += 60
    assert schedule.due(Progress(step=1))
    assert made(SaveEvery(steps=1, minutes=60)).due(Progress(step=1))


def test_without_any_rule_nothing_is_ever_due():
    assert not made(SaveEvery(steps=None, minutes=None)).due(Progress(step=10**9))


def test_a_save_is_due_at_the_end_of_each_second_epoch():
    schedule = made(SaveEvery(steps=None, minutes=None, epochs=2))
    ends = [Progress(step=n, epoch=n // 3, ends_epoch=n % 3 == 2) for n in range(12)]
    assert [n for n, at in enumerate(ends) if schedule.due(at)] == [5, 11]


class Lived:
    """A history in which saves took what it is told, at times of its own."""

    def __init__(self, save):
        self.clock = Clock()
        self.log = logging.getLogger("exact_resume.test")
        self.history = History(self.log, clock=self.clock)
        self.history.begin(Progress(), resumed=False)
        self.cadence = Cadence(save, self.history, self.log)

    def save(self, step, *, blocked_s, durable_s, after_s=0.0):
        self.clock.now_s += after_s
        path = f"attempt-0001-aaaa/step-{step:09d}"
        self.history.took(path, Progress(step=step, batch=step), "schedule", blocked_s)
        self.history.note(path, durable_s=durable_s, end="durable")
        self.cadence.learn()
        return self


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO)
    return caplog


def test_the_interval_follows_from_what_saves_cost(messages):
    lived = Lived(SaveEvery(mtbf_hours=2.5))
    assert lived.cadence.interval_s == 600
    lived.save(1, blocked_s=0.45, durable_s=20)
    assert lived.cadence.interval_s == pytest.approx((2 * 0.45 * 9000) ** 0.5, rel=0.01)  # Young
    assert "the optimum of Young and Daly" in messages.text
    assert "0.450 s" in messages.text
    assert "20.00 s" in messages.text
    assert "2.50 h" in messages.text


def test_it_is_said_again_only_when_it_has_changed(messages):
    lived = Lived(SaveEvery(mtbf_hours=2.5)).save(1, blocked_s=0.45, durable_s=20)
    lived.save(2, blocked_s=0.46, durable_s=20)
    assert messages.text.count("a save every") == 1
    for step in range(3, 6):  # the median counts: 0.455, 0.98 and 1.5 s
        lived.save(step, blocked_s=1.5, durable_s=20)
    assert [text.split()[3] for text in messages.messages if "a save every" in text] == ["89.7", "132.2", "163.3"]


def test_until_a_save_is_measured_there_is_an_interval_in_any_case():
    assert Lived(SaveEvery(minutes=None, mtbf_hours=2.5)).cadence.interval_s == 600
    assert Lived(SaveEvery(minutes=None)).cadence.interval_s is None


def test_it_is_never_shorter_than_the_directory_can_take(messages):
    lived = Lived(SaveEvery(mtbf_hours=0.1)).save(1, blocked_s=0.01, durable_s=90)
    assert lived.cadence.interval_s == pytest.approx(89.99)
    assert "as often as the directory can take it" in messages.text


def test_it_never_costs_more_than_the_cap(messages):
    lived = Lived(SaveEvery(mtbf_hours=1, max_overhead=0.02)).save(1, blocked_s=10, durable_s=11)
    assert lived.cadence.interval_s == pytest.approx(490)
    assert "2.00%" in messages.text


def test_interruptions_that_were_observed_count():
    lived = Lived(SaveEvery(mtbf_hours=10))
    lived.cadence.observe(3, 2 * 3600)  # 3 h between interruptions, the hours given counted as one of them
    lived.save(1, blocked_s=0.1, durable_s=1)
    assert lived.cadence.interval_s == pytest.approx((2 * 0.1 * 3 * 3600) ** 0.5, rel=0.01)


def test_a_run_without_the_hours_keeps_to_its_minutes():
    lived = Lived(SaveEvery(minutes=7))
    lived.cadence.observe(3, 2 * 3600)
    assert lived.save(1, blocked_s=0.1, durable_s=1).cadence.interval_s == 420


def test_one_warning_says_that_saving_costs_more_than_it_may(messages):
    lived = Lived(SaveEvery(steps=1))
    for step in range(8):
        lived.save(step, blocked_s=1.0, durable_s=2, after_s=30)
    warnings = [record.getMessage() for record in messages.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "3.3 % of the time" in warnings[0]
    assert "max_overhead=0.01" in warnings[0]
    assert "1.6 minutes" in warnings[0]  # 99 s


@pytest.mark.parametrize("after_s", [200, 10])  # below the cap, and too early to tell
def test_no_warning(messages, after_s):
    lived = Lived(SaveEvery(steps=1))
    for step in range(4):
        lived.save(step, blocked_s=1.0, durable_s=2, after_s=after_s)
    assert not messages.records
