"""The best interval between saves, against published numbers and against its own cost curve."""

import math

import pytest

from resume_core.cadence import best_interval, daly_s, wall_per_work


def test_a_run_interrupted_every_150_minutes_saves_about_every_15():
    # the optimum of Young for a save of 45 s: sqrt(2 * 45 * 9000) s = 15 min
    assert daly_s(45, 150 * 60) / 60 == pytest.approx(15, rel=0.06)


@pytest.mark.parametrize(("mtbf_h", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_figures_3_to_5_of_daly_2006(mtbf_h, minutes):
    assert daly_s(5 * 60, mtbf_h * 3600) / 60 == pytest.approx(minutes, abs=0.5)


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(300, 24 * 3600), (300, 6 * 3600), (60, 3600), (1, 100)])
def test_no_other_interval_costs_less(cost_s, mtbf_s):
    best = wall_per_work(daly_s(cost_s, mtbf_s), cost_s, mtbf_s)
    others = [wall_per_work(daly_s(cost_s, mtbf_s) * 1.05**k, cost_s, mtbf_s) for k in range(-60, 61)]
    assert best <= min(others) * (1 + 1e-4)


def test_it_is_youngs_where_saves_are_short():
    assert daly_s(0.01, 1e6) == pytest.approx(math.sqrt(2 * 0.01 * 1e6), rel=1e-3)


def test_saves_longer_than_the_time_between_interruptions():
    assert daly_s(500, 100) == 100


def test_never_more_often_than_the_store_can_drain():
    found = best_interval(0.1, 120, mtbf_s=1000)
    assert (found.why, found.seconds) == ("store", pytest.approx(119.9))
    assert found.optimum_s < found.seconds


def test_never_above_the_cap():
    found = best_interval(10, 20, mtbf_s=3600)
    assert (found.why, found.seconds, found.overhead) == ("cap", pytest.approx(990), pytest.approx(0.01))


def test_the_optimum_where_nothing_is_in_its_way():
    found = best_interval(0.5, 5, mtbf_s=24 * 3600)
    assert (found.why, found.seconds) == ("optimum", found.optimum_s)
    assert found.overhead < 0.01


def test_a_run_that_never_ends_costs_infinitely_much():
    assert wall_per_work(1e9, 1, 1) == math.inf
    assert wall_per_work(1, 1, 1, restart_s=1e9) == math.inf


@pytest.mark.parametrize(("cost_s", "mtbf_s", "cap"), [(-1, 100, 0.01), (1, 0, 0.01), (1, 100, 0), (1, 100, 1)])
def test_numbers_out_of_range(cost_s, mtbf_s, cap):
    with pytest.raises(ValueError, match=r"must be"):
        best_interval(cost_s, 1, mtbf_s, cap)
