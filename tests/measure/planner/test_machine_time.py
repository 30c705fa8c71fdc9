"""Machines whose speed is known at every moment: it is found again, and a queue on them waits as it must."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.measure.planner import machine_time
from lab.measure.planner.machine_time import Clock, Stretch, alike
from lab.measure.planner.planner import poisson
from lab.measure.planner.queueing import Rules, Users
from lab.measure.planner.service import Service, steady
from lab.measure.planner.simulator import simulate

HALVED = Stretch(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 1.5]))
"""As fast as usual for a second, half as fast for another."""


def on(service: Service, *stretches: Stretch) -> Service:
    return replace(service, stretches=stretches)


def test_a_slow_machine_takes_longer_by_as_much_as_it_is_slow():
    found = simulate(np.array([0.5, 0.95, 1.5]), Rules(), on(steady(0.1), HALVED))
    # In the fast second 0.1 s; half of the work in each of the two: 0.05 + 0.1; in the slow one twice as long.
    assert found.done_s == pytest.approx([0.6, 1.1, 1.7])
    assert found.busy_s == pytest.approx(0.1 + 0.15 + 0.2)


def test_a_machine_that_stands_still_holds_whoever_is_there_until_it_goes_on():
    stands = Stretch(np.array([0.0, 1.0, 1.5, 3.0]), np.array([0.0, 1.0, 1.0 + 1e-9, 2.5]))
    found = simulate(np.array([0.99, 1.2, 1.4]), Rules(), on(steady(0.02), stands))
    assert found.done_s == pytest.approx([1.51, 1.53, 1.55], abs=1e-6)


def test_time_is_put_back_as_it_was():
    clock = Clock([HALVED], 7.0, np.random.default_rng(0))
    real_s = np.linspace(0, 9, 91)
    assert clock.real(clock.own(real_s)) == pytest.approx(real_s)
    # Each round of two seconds does 1.5 seconds' work, and beyond what was asked for the machine is as usual.
    assert clock.own(np.array([2.0, 4.0, 8.0, 9.0])) == pytest.approx([1.5, 3.0, 6.0, 7.0])
    assert [clock.after(at_s, 0.3) for at_s in (0.5, 0.9, 1.5)] == pytest.approx([0.8, 1.4, 2.05])
    assert clock.worked(-np.inf, 1.0) == np.inf and clock.worked(0.5, 1.5) == pytest.approx(0.75)


def test_every_stretch_has_its_turn_before_one_comes_again():
    stretches = [Stretch(np.array([0.0, 1.0]), np.array([0.0, speed])) for speed in (0.5, 1.0, 2.0)]
    clock = Clock(stretches, 6.0, np.random.default_rng(1))
    done = np.diff(clock.own(np.arange(7.0)))
    assert sorted(done[:3]) == sorted(done[3:]) == pytest.approx([0.5, 1.0, 2.0])


@pytest.mark.parametrize("rules", [
    Rules(),
    Rules(max_batch_size=4, delay_s=0.006),
    Rules(max_batch_size=3, delay_s=0.002, instances=3),
])  # fmt: skip
def test_the_loop_and_the_events_agree_on_a_machine_that_changes(rules: Rules):
    uneven = Service(0.004, 0.001, np.array([0.5, 1.0, 1.5]), np.array([0.001]), ((1, 0.1), (4, 0.05)), 0.003, 0.010)
    due_s = poisson(120, 1500)
    loop = simulate(due_s, rules, on(uneven, HALVED), seed=3)
    events = simulate(due_s, replace(rules, max_queue_size=10**9), on(uneven, HALVED), seed=3)
    assert np.allclose(loop.done_s, events.done_s, rtol=0, atol=1e-7) and (loop.batch == events.batch).all()


def test_users_are_answered_as_often_as_the_machine_does_work():
    found = simulate(Users(2, 400), Rules(), on(steady(0.01), HALVED))
    # Never idle: 1.5 seconds' work in 2, so 0.75 of the usual 100 a second.
    assert 300 / found.done_s[299] == pytest.approx(75, rel=0.03)


def test_a_queue_in_a_changing_environment_waits_as_its_phases_do():
    """M/M/1 whose speed changes so rarely that each phase is a queue of its own: the mean of 1 / (μ - λ) by time."""
    draws = -np.log((np.arange(4000) + 0.5) / 4000)
    service = replace(steady(0.01), spread=draws / draws.mean())
    fast, slow = 150.0, 75.0  # requests a second that each phase can do
    phases = Stretch(np.array([0.0, 150.0, 300.0]), np.array([0.0, 150 * fast / 100, 150 * (fast + slow) / 100]))
    rate_rps = 40.0
    found = simulate(poisson(rate_rps, 48_000, 5), Rules(), on(service, phases), seed=4)
    expected_s = (1 / (fast - rate_rps) + 1 / (slow - rate_rps)) / 2
    assert found.latency_s.mean() == pytest.approx(expected_s, rel=0.06)


def made(speeds: np.ndarray, spread: float, seed: int = 0, each_s: float = 0.1) -> tuple[np.ndarray, ...]:
    """(start, end, usual work) of batches of 1 ms on a machine that has these speeds for `each_s` each, never idle."""
    rng = np.random.default_rng(seed)
    start_s, now_s, until_s = [], 0.0, each_s * len(speeds)
    end_s = []
    while now_s < until_s:
        took_s = 0.001 * (1 + spread * rng.uniform(-1, 1)) / speeds[int(now_s / each_s)]
        start_s.append(now_s)
        now_s += took_s
        end_s.append(now_s)
    return np.array(start_s), np.array(end_s), np.full(len(start_s), 0.001)


def test_how_the_speed_moved_is_found_in_batches():
    speeds = np.repeat([1.0, 0.6, 1.3], 8)
    start_s, end_s, work_s = made(speeds, 0.2)
    found = machine_time.measured(start_s, end_s, work_s, end_s[-1])
    assert found is not None
    told = np.array([np.ptp(found.own(np.array([at, at + 0.7]))) / 0.7 for at in (0.05, 0.85, 1.65)])
    assert told / told[0] == pytest.approx([1.0, 0.6, 1.3], rel=0.05)
    assert found.own_s[-1] == pytest.approx(end_s[-1], rel=0.02)  # as much as usual in all


def test_a_steady_machine_is_not_taken_for_one_that_moves():
    start_s, end_s, work_s = made(np.ones(30), 0.5)
    found = machine_time.measured(start_s, end_s, work_s, end_s[-1])
    assert found is not None
    speeds = np.diff(found.own(np.linspace(0, end_s[-1], 60))) / np.diff(np.linspace(0, end_s[-1], 60))
    # Means of 15 batches whose deviation is 0.29 would scatter by 0.075.
    assert speeds.std() < 0.045


def test_a_stall_is_the_machine_s_and_stays_where_it_was():
    start_s, end_s, work_s = made(np.ones(10), 0.1)
    late = start_s > 0.5
    start_s, end_s = start_s + 0.080 * late, end_s + 0.080 * (end_s > 0.5)
    found = machine_time.measured(start_s, end_s, work_s, end_s[-1])
    assert found is not None
    assert np.ptp(found.own(np.array([0.505, 0.575]))) < 0.01  # nothing is done
    assert np.ptp(found.own(np.array([0.2, 0.4]))) == pytest.approx(0.2, rel=0.15)


def test_a_machine_is_never_so_fast_as_two_answers_seen_at_once_say():
    """The last batch before a pause ends 10 ns after it began, by the client's clock."""
    start_s, end_s, work_s = made(np.ones(10), 0.1)
    start_s, end_s = np.r_[start_s, end_s[-1] + 1e-8], np.r_[end_s, end_s[-1] + 2e-8]
    found = machine_time.measured(start_s, end_s, np.r_[work_s, 0.001], end_s[-1] + 1.0)
    assert found is not None
    assert np.ptp(found.own(np.array([0.2, 0.4]))) == pytest.approx(0.2, rel=0.15)
    assert found.own_s[-1] <= end_s[-1] + 1.1 * machine_time.STALL


def test_too_little_says_nothing_and_all_together_are_as_usual():
    assert machine_time.measured(np.array([0.0, 0.1]), np.array([0.01, 0.11]), np.full(2, 0.01), 1.0) is None
    both = alike([HALVED, replace(HALVED, own_s=HALVED.own_s * 3, batched=True)])
    assert [one.own_s[-1] for one in both] == pytest.approx([2.0, 2.0])
