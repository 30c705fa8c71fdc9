"""Decisions by the published formulas, and the simulator against closed forms and hand-made cases."""

import math

import numpy as np
import pytest

from lab.errors import InputError
from lab.measure import autoscale_sim
from lab.measure.autoscale import SAMPLE_S, Autoscaler, Sample
from lab.measure.autoscale_sim import Change, Starts, paid_s, simulate
from lab.spec import Scaling, parse


def fed(rules, seconds, in_flight, waiting=0.0, rate=0.0, scaler=None, since=0.0):
    """A scaler that saw these constant figures for so long, and the last moment."""
    scaler = scaler or Autoscaler(rules)
    steps = round(seconds / SAMPLE_S)
    for n in range(1, steps + 1):
        t_s = since + n * SAMPLE_S
        scaler.observe(Sample(t_s, in_flight, waiting, round(rate * t_s)))
    return scaler, since + seconds


@pytest.mark.parametrize(
    ("metric", "in_flight", "waiting", "rate", "target", "wanted"),
    [
        ("concurrency", 7.0, 5.0, 0.0, 0.7, 10),  # Knative's ⌈7 ÷ 0.7⌉
        ("concurrency", 7.1, 5.0, 0.0, 0.7, 11),
        ("queue", 7.0, 5.0, 0.0, 2.0, 3),
        ("rps", 0.0, 0.0, 40.0, 15.0, 3),
        ("concurrency", 0.0, 0.0, 0.0, 1.0, 1),  # least
        ("concurrency", 99.0, 0.0, 0.0, 1.0, 12),  # most
    ],
)
def test_what_a_steady_load_wants(metric, in_flight, waiting, rate, target, wanted):
    rules = Scaling(metric=metric, target=target, most=12, window_s=5)
    scaler, now = fed(rules, 8, in_flight, waiting, rate)
    assert scaler.decide(now, 1) == wanted


def test_a_mean_over_the_window_knows_of_a_step_bit_by_bit():
    rules = Scaling(target=1.0, most=16, window_s=10)
    scaler, now = fed(rules, 20, 0.0)
    assert scaler.decide(now, 1) == 1
    scaler, now = fed(rules, 5, 8.0, scaler=scaler, since=now)
    assert scaler.decide(now, 1) == 4  # half of the window
    scaler, now = fed(rules, 5.5, 8.0, scaler=scaler, since=now)
    assert scaler.decide(now, 4) == 8


def test_within_the_tolerance_nothing_changes():
    """Kubernetes': ⌈current × metric ÷ target⌉ unless the ratio is within 0.1 of 1."""
    rules = Scaling(target=2.0, most=16, window_s=2, tolerance=0.1)
    for in_flight, wanted in ((8.7, 4), (7.3, 4), (8.9, 5), (7.1, 4)):
        scaler, now = fed(rules, 3, in_flight)
        assert scaler.decide(now, 4) == wanted
    scaler, now = fed(rules, 3, 5.9)
    assert scaler.decide(now, 4) == 3


def test_down_goes_to_the_most_that_was_wanted_lately():
    rules = Scaling(target=1.0, most=16, window_s=1, down_after_s=10)
    scaler, now = fed(rules, 2, 9.0)
    assert scaler.decide(now, 1) == 9
    scaler, now = fed(rules, 5, 3.0, scaler=scaler, since=now)
    assert scaler.decide(now, 9) == 9
    scaler, now = fed(rules, 6, 3.0, scaler=scaler, since=now)
    assert scaler.decide(now, 9) == 3


def test_panic_acts_on_the_short_window_and_never_goes_down():
    rules = Scaling(target=1.0, most=16, window_s=10, panic_window_s=1, panic_threshold=2)
    scaler, now = fed(rules, 20, 1.0)
    assert scaler.decide(now, 1) == 1
    scaler, now = fed(rules, 1.2, 8.0, scaler=scaler, since=now)
    assert scaler.decide(now, 1) == 8  # the long window would want 2
    scaler, now = fed(rules, 5, 2.0, scaler=scaler, since=now)
    assert scaler.decide(now, 8) == 8
    scaler, now = fed(rules, 10.5, 2.0, scaler=scaler, since=now)
    assert scaler.decide(now, 8) == 2


def test_after_a_change_it_cools_down():
    rules = Scaling(target=1.0, most=16, window_s=1, cooldown_s=5)
    scaler, now = fed(rules, 2, 3.0)
    assert scaler.decide(now, 1) == 3
    scaler, now = fed(rules, 2, 6.0, scaler=scaler, since=now)
    assert scaler.decide(now, 3) == 3
    scaler, now = fed(rules, 4, 6.0, scaler=scaler, since=now)
    assert scaler.decide(now, 3) == 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"least": 5}, "least 5 is above most 4"),
        ({"panic_window_s": 20}, "panic_window_s 20 is longer than window_s 10"),
    ],
)
def test_rules_that_contradict_themselves(wrong, said):
    with pytest.raises(InputError, match=said):
        parse(Scaling, wrong)


# --- the simulator ------------------------------------------------------------------------------------------------


def test_three_at_once_and_one_instance():
    found = simulate(np.zeros(3), np.ones(3), Starts([1.0]), first=1, rules=None, end_s=10, outside_s=0.25)
    assert found.latency_s.tolist() == [1.25, 2.25, 3.25]
    assert found.instance_s == 10


def test_an_instance_comes_when_it_has_started_and_is_paid_from_when_it_was_asked_for():
    """Ten requests wait from the first second on, each of one second. The rules see a mean of 10 at the look at 0.1 s
    at the earliest; they decide at 0 s (nothing in the system then but all ten, which have come), ask for two, and
    half a second later two work."""
    rules = Scaling(target=5.0, most=2, window_s=1, tick_s=1)
    found = simulate(np.zeros(10), np.ones(10), Starts([0.5], [0.0]), first=1, rules=rules, end_s=8)
    (up, down) = found.changes
    assert (up.asked_s, up.t_s, up.before, up.after) == (0.0, 0.5, 1, 2)
    assert found.start_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5]  # the last after one has gone
    assert down.after == 1 and down.asked_s >= 3.0  # five left of ten, a mean of five in the window
    assert found.instance_s == pytest.approx(2 * down.t_s + (8 - down.t_s))


def test_who_came_before_a_change_waits_for_the_old_ones_where_it_replaces():
    """Five at once and one later: with two new instances from 0.5 s on, the five are still served by the old one."""
    rules = Scaling(target=2.5, most=2, window_s=100, tick_s=100)
    due_s, service_s = np.array([0, 0, 0, 0, 0, 0.6]), np.ones(6)
    args = {"first": 1, "rules": rules, "end_s": 5.0}
    replaced = simulate(due_s, service_s, Starts([0.5]), **args, replaces=True)
    added = simulate(due_s, service_s, Starts([0.5]), **args)
    assert replaced.start_s.tolist() == [0, 1, 2, 3, 4, 0.6]
    assert added.start_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]


def test_reports_that_come_late_are_known_late():
    """One every 0.1 s but reports once a second: what comes at 0.05 s is known at 1 s."""
    rules = Scaling(target=2.0, most=4, window_s=0.1, tick_s=0.1)
    due_s, service_s = np.full(8, 0.05), np.full(8, 5.0)
    args = {"first": 1, "rules": rules, "end_s": 3.0}
    at_once = simulate(due_s, service_s, Starts([0.1]), **args)
    late = simulate(due_s, service_s, Starts([0.1]), **args, told_every_s=1.0)
    assert at_once.changes[0].asked_s == pytest.approx(0.1)
    assert late.changes[0].asked_s == pytest.approx(1.0, abs=0.11)


def test_paid_until_the_end():
    changes = (Change(2.0, 3.0, 1, 3), Change(6.0, 7.0, 3, 2))
    assert paid_s(1, changes, 10.0) == 2 * 1 + 5 * 3 + 3 * 2
    assert paid_s(1, changes, 2.5) == 2 * 1 + 0.5 * 3


def test_fixed_instances_wait_as_erlang_says():
    """M/M/3 at 80 %: mean wait C(3, 2.4) ÷ (3µ − λ) with Erlang's C = 0.6472."""
    rng = np.random.default_rng(5)
    n, rate, servers = 60_000, 2.4, 3
    due_s = np.cumsum(rng.exponential(1 / rate, n))
    found = simulate(due_s, rng.exponential(1.0, n), Starts([1.0]), first=servers, rules=None, end_s=float(due_s[-1]))
    offered = rate
    top = offered**servers / math.factorial(servers) * servers / (servers - offered)
    waits = top / (sum(offered**k / math.factorial(k) for k in range(servers)) + top)
    assert waits == pytest.approx(0.6472, abs=1e-4)
    assert (found.start_s - found.due_s).mean() == pytest.approx(waits / (servers - rate), rel=0.08)


def test_the_same_seed_gives_the_same_day():
    rng = np.random.default_rng(1)
    due_s = np.sort(rng.uniform(0, 60, 600))
    rules = Scaling(target=0.7, most=5, window_s=6, panic_window_s=1)
    one, two = (
        simulate(due_s, np.full(600, 0.2), Starts([0.5, 1.0], [0.1]), first=1, rules=rules, end_s=60, seed=3)
        for _ in range(2)
    )
    assert (one.done_s == two.done_s).all() and one.changes == two.changes and len(one.changes) > 0
    assert np.isfinite(one.done_s).all()


def test_nobody_comes_and_wrong_lengths():
    found = simulate(np.empty(0), np.empty(0), Starts([1.0]), first=2, rules=Scaling(), end_s=5)
    assert len(found.latency_s) == 0 and found.changes[0].after == 1
    assert autoscale_sim.attainment(found.latency_s, 1.0) is None
    with pytest.raises(InputError):
        simulate(np.zeros(2), np.ones(1), Starts([1.0]), first=1, rules=None, end_s=5)
