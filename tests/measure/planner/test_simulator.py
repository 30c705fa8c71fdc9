"""Queues whose answers are in the textbook."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.errors import InputError
from lab.measure.planner.queueing import Rules, Users
from lab.measure.planner.service import Seen, Service, divided, fit, in_rounds, steady
from lab.measure.planner.simulator import simulate


def poisson(rate_rps: float, n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1 / rate_rps, n).cumsum()


def exponential(mean_s: float, seed: int = 2) -> Service:
    draws = np.random.default_rng(seed).exponential(1.0, 200_000)
    return Service(mean_s, 0.0, draws / draws.mean(), np.zeros(1))


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_exponential_server_waits_as_mm1(load):
    found = simulate(poisson(load / 0.01, 30_000), Rules(), exponential(0.01))
    # M/M/1: time in the system is exponential with mean s / (1 - load).
    mean_s = 0.01 / (1 - load)
    assert found.latency_s.mean() == pytest.approx(mean_s, rel=0.06)
    assert np.quantile(found.latency_s, 0.95) == pytest.approx(mean_s * np.log(20), rel=0.1)


def test_one_regular_server_waits_half_as_long_as_md1():
    found = simulate(poisson(80, 30_000), Rules(), steady(0.01))
    # Pollaczek-Khinchine: load × s / (2 (1 - load)) in the queue.
    assert (found.start_s - found.due_s).mean() == pytest.approx(0.8 * 0.01 / (2 * 0.2), rel=0.06)


def test_two_instances_wait_as_mm2():
    found = simulate(poisson(140, 30_000), Rules(instances=2), exponential(0.01))
    # Erlang C with two servers at 70 % load: in the queue s × load² / (1 - load²).
    assert (found.start_s - found.due_s).mean() == pytest.approx(0.01 * 0.49 / 0.51, rel=0.08)


def test_users_who_wait_for_their_answer_are_a_machine_repair_shop():
    users, think_s, service_s = 8, 0.05, 0.01
    found = simulate(Users(users, 20_000, think_s), Rules(), exponential(service_s))
    # Mean value analysis of one queue and a delay station, n = 1 … users (Reiser and Lavenberg 1980), for a think time
    # of any distribution.
    queue = 0.0
    for n in range(1, users + 1):
        response_s = service_s * (1 + queue)
        queue = n / (response_s + think_s) * response_s
    span_s = found.done_s.max()
    assert 20_000 / span_s == pytest.approx(users / (response_s + think_s), rel=0.03)
    assert found.latency_s.mean() == pytest.approx(response_s, rel=0.06)


def test_a_batch_takes_who_waits_and_no_more_than_its_size():
    due = np.array([0.0, 0.001, 0.002, 0.003, 0.004])
    found = simulate(due, Rules(max_batch_size=3), steady(0.010))
    assert found.batch.tolist() == [1, 3, 3, 3, 1]
    assert found.done_s == pytest.approx([0.010, 0.020, 0.020, 0.020, 0.030])


def test_a_delay_holds_a_request_until_its_time_or_a_whole_batch():
    due = np.array([0.0, 0.001, 0.100, 0.101, 0.102])
    found = simulate(due, Rules(max_batch_size=3, delay_s=0.005), steady(0.010))
    assert found.start_s == pytest.approx([0.005, 0.005, 0.102, 0.102, 0.102])


def test_what_is_outside_is_added_before_and_after():
    found = simulate(np.array([0.0]), Rules(), steady(0.010, outside_s=0.004))
    assert (found.start_s[0], found.done_s[0]) == pytest.approx((0.002, 0.014))


def test_a_full_queue_turns_away():
    found = simulate(np.zeros(5), Rules(max_queue_size=2), steady(0.010))
    assert found.refused == 2  # one runs, two wait
    assert np.isnan(found.done_s).tolist() == [False, False, False, True, True]


def test_routing_by_what_is_known_beats_routing_by_turn():
    rules = {r: Rules(replicas=8, routing=r) for r in ("round_robin", "two_choices", "least_outstanding")}
    due = poisson(0.85 * 8 / 0.01, 12_000)
    wait = {r: np.quantile(simulate(due, rule, exponential(0.01)).latency_s, 0.99) for r, rule in rules.items()}
    assert wait["least_outstanding"] < wait["two_choices"] < wait["round_robin"]


def test_draws_come_in_rounds_of_all_samples():
    samples = np.arange(7.0)
    found = in_rounds(samples, 17, np.random.default_rng(3))
    assert len(found) == 17
    assert sorted(found[:7]) == sorted(found[7:14]) == samples.tolist() and set(found[14:]) < set(samples)
    assert found[:7].tolist() != found[7:14].tolist() and in_rounds(np.ones(1), 3, np.random.default_rng(0)).sum() == 3


def test_a_seed_fixes_everything():
    runs = [simulate(poisson(70, 500), Rules(replicas=2, routing="two_choices"), exponential(0.01)) for _ in range(2)]
    assert (runs[0].done_s == runs[1].done_s).all()


def test_rules_that_fit_nothing_are_refused():
    with pytest.raises(InputError, match="replicas 0: allowed is 1 or more"):
        simulate(np.zeros(1), Rules(replicas=0), steady(1))


def test_the_line_through_batches_is_found():
    true = {size: 0.002 + 0.0005 * size for size in (1, 2, 4, 8)}
    found = fit([Seen(true, {1: 100, 2: 50, 4: 20, 8: 10}, 0.001)])
    assert (found.fixed_s, found.item_s) == pytest.approx((0.002, 0.0005))
    assert found.outside_s.tolist() == [0.001]
    assert found.capacity_rps(8) == pytest.approx(8 / 0.006)


def test_a_line_never_has_a_negative_part():
    assert fit([Seen({1: 0.010, 2: 0.008}, {1: 1, 2: 1})]).item_s == 0
    through_zero = fit([Seen({1: 0.001, 2: 0.004}, {1: 1, 2: 1})])
    assert through_zero.fixed_s == 0
    assert through_zero.item_s == pytest.approx((0.001 + 2 * 0.004) / (1 + 4))


def test_of_one_size_only_the_whole_is_known():
    found = fit([Seen({1: 0.010}, {1: 7})])
    assert (found.fixed_s, found.item_s) == (0.010, 0.0)


def test_without_batches_there_is_nothing_to_calibrate_on():
    with pytest.raises(InputError, match="nothing to calibrate on"):
        fit([Seen({1: 0.010}, {})])


SCATTERED = Service(
    0.004, 0.001, np.array([0.5, 1.0, 1.5]), np.array([0.001, 0.002]), ((1, 0.1), (4, 0.05)), 0.003, 0.010, 0.0002
)


@pytest.mark.parametrize("rules", [
    Rules(),
    Rules(max_batch_size=4),
    Rules(max_batch_size=4, delay_s=0.006),
    Rules(instances=2),
    Rules(max_batch_size=3, delay_s=0.002, instances=3),
])  # fmt: skip
@pytest.mark.parametrize("rate_rps", [20, 150, 600])
def test_the_loop_and_the_events_serve_alike(rules, rate_rps):
    due = poisson(rate_rps, 1500)
    loop = simulate(due, rules, SCATTERED, seed=3)
    events = simulate(due, replace(rules, max_queue_size=10**9), SCATTERED, seed=3)
    assert np.allclose(loop.done_s, events.done_s, rtol=0, atol=1e-9)
    assert (loop.batch == events.batch).all()
    assert loop.busy_s == pytest.approx(events.busy_s)


def test_who_comes_while_a_group_gathers_is_left_for_the_next_batch():
    # The instance works from 1 to 11 ms. The group of 4 and 4.5 ms closes at 5, that of 10.5 ms only at 11.5.
    due = np.array([0.0, 0.004, 0.0045, 0.0105])
    found = simulate(due, Rules(max_batch_size=8, delay_s=0.001), steady(0.010))
    assert found.start_s == pytest.approx([0.001, 0.011, 0.011, 0.021])


def test_groups_that_closed_meanwhile_are_taken_together():
    due = np.array([0.0, 0.002, 0.005, 0.008])
    found = simulate(due, Rules(max_batch_size=8, delay_s=0.001), steady(0.010))
    assert found.batch.tolist() == [1, 3, 3, 3]


def test_an_instance_that_slept_takes_longer_and_one_that_works_does_not():
    sleepy = replace(steady(0.010), wake_s=0.004, asleep_s=0.020)
    found = simulate(np.array([0.0, 0.001, 0.034, 0.100]), Rules(), sleepy)
    # Asleep at first; at work; idle for 10 of 20 ms; asleep again.
    assert found.done_s == pytest.approx([0.014, 0.024, 0.046, 0.114])


def test_a_handover_holds_the_next_batch_and_not_the_answer():
    found = simulate(np.array([0.0, 0.0]), Rules(), replace(steady(0.010), handover=((1, 0.2),)))
    assert found.done_s == pytest.approx([0.010, 0.022])


def test_a_handover_is_found_by_size_and_at_the_pace_of_its_block():
    alone = Seen({1: 0.010}, {1: 100}, cycle_s=0.0102)
    full = Seen({8: 0.020}, {8: 100}, cycle_s=0.022)
    found = fit([alone, full.times(3.0)])
    assert [found.handover_s(size) for size in (1, 8)] == pytest.approx([0.0002, 0.1 * found.mean_s(8)])
    assert found.capacity_rps(8) == pytest.approx(8 / (1.1 * 0.060))
    assert 0.02 < found.handover_s(4) / found.mean_s(4) < 0.1


def test_waking_is_told_from_working_where_blocks_differ_in_it():
    asleep = Seen({1: 0.014}, {1: 100}, woken={1: 1.0})
    busy = Seen({1: 0.010, 4: 0.016}, {1: 100, 4: 50}, woken={1: 0.0, 4: 0.0})
    found = fit([asleep, busy])
    assert (found.wake_s, found.mean_s(1), found.mean_s(4)) == pytest.approx((0.004, 0.010, 0.016))
    assert fit([asleep]).wake_s == 0  # one kind of block cannot tell


def test_a_size_that_ran_often_has_its_own_time_and_a_rare_one_the_line():
    seen = Seen({1: 0.001, 2: 0.002, 4: 0.002, 8: 0.003, 5: 0.9}, {1: 500, 2: 500, 4: 500, 8: 500, 5: 1})
    found = fit([seen])
    assert [found.mean_s(size) for size in (1, 2, 4, 8)] == pytest.approx([0.001, 0.002, 0.002, 0.003])
    assert 0.002 < found.mean_s(5) < 0.003
    assert found.mean_s(12) == pytest.approx(0.003 + 4 * found.item_s)


def test_scatter_moves_outside_without_changing_what_one_request_alone_takes():
    whole = Service(0.010, 0.0, np.random.default_rng(0).lognormal(0, 0.3, 4000), np.array([0.002]))
    whole = replace(whole, spread=whole.spread / whole.spread.mean())
    shared = divided(whole, 0.5)
    quiet = [simulate(np.arange(4000) * 1.0, Rules(), one).latency_s for one in (whole, shared)]
    assert quiet[1].mean() == pytest.approx(quiet[0].mean(), rel=0.02)
    assert quiet[1].std() == pytest.approx(quiet[0].std(), rel=0.15)
    busy = [simulate(poisson(80, 4000), Rules(), one).latency_s for one in (whole, shared)]
    assert np.quantile(busy[1], 0.95) < np.quantile(busy[0], 0.95)
