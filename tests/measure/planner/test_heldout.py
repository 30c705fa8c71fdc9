"""Blocks made by a server whose truth is known: what is left out is predicted, and the error is told as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.measure.planner import calibrator, heldout, seen
from lab.measure.planner.calibration import Measured, rules
from lab.measure.planner.calibrator import Tuned
from lab.measure.planner.heldout import Trust
from lab.measure.planner.machine_time import Stretch
from lab.measure.planner.planner import poisson
from lab.measure.planner.queueing import Users
from lab.measure.planner.service import Service
from lab.measure.planner.simulator import simulate
from lab.measure.records import OK, REFUSED, Requests, Window
from lab.measure.summary import summarize
from lab.spec import Batching, ModelSpec

TRUTH = Service(0.002, 0.0006, np.array([0.9, 1.0, 1.1]), np.array([0.0004, 0.0006]), (), 0.001, 0.003)
"""2.6 ms alone and awake, 1 ms more after a pause."""
SECONDS = 5.0


def model(size: int, delay_us: int = 0) -> ModelSpec:
    return ModelSpec(
        name="digits",
        batching=None if size == 1 else Batching(max_batch_size=size, max_queue_delay_us=delay_us),
    )


def block(
    number: int,
    spec: ModelSpec,
    rate_rps: float,
    *,
    speed: float = 1.0,
    seed: int = 0,
    users: int | None = None,
    refused: int = 0,
    truth: Service = TRUTH,
) -> Measured:
    """What such a server does with it, as a run's records and counters would tell. `refused`: so many requests more
    that are turned away at once."""
    server = truth.scaled(speed)
    n = round(rate_rps * SECONDS)
    asked = poisson(rate_rps, n, seed) if users is None else Users(users, n)
    found = simulate(asked, rules(spec), server, seed=seed + 1)
    due_ns, done_ns = (np.round(t * 1e9).astype(np.int64) for t in (found.due_s, found.done_s))
    outcome = np.full(n, OK, np.uint8)
    if refused:
        extra = np.linspace(0, due_ns[-1], refused).astype(np.int64)
        due_ns, done_ns = np.concatenate([due_ns, extra]), np.concatenate([done_ns, extra + 1000])
        outcome = np.concatenate([outcome, np.full(refused, REFUSED, np.uint8)])
    requests = Requests(due_ns, due_ns, done_ns, outcome)
    window = Window(0, 1_000_000_000, int(found.due_s[-1] * 1e9))
    summary = summarize(requests, window=window, planned=len(requests), slo=None)
    starts, first = np.unique(found.start_s, return_index=True)
    sizes = found.batch[first]
    took = (found.done_s - found.start_s)[first] - 0.00025
    counted = {int(size): took[sizes == size] for size in np.unique(sizes)}
    compute_s = float(sum(times.sum() * size for size, times in counted.items()) / sizes.sum())
    summary = replace(
        summary,
        item_compute_s={size: float(times.mean()) / size for size, times in counted.items()},
        batch_sizes={size: len(times) for size, times in counted.items()},
        batch_mean=float(sizes.mean()),
        executions=len(starts),
        compute_mean_s=compute_s,
        compute_infer_mean_s=compute_s,
        queue_mean_s=max(0.0, float((found.start_s - found.due_s).mean()) - 0.00025),
    )
    ok = (requests.outcome == OK) & (requests.due_ns >= window.measured_from_ns)
    order = np.argsort(requests.due_ns, kind="stable")
    return Measured(
        spec,
        summary,
        (requests.done_ns - requests.due_ns)[ok] / 1e9,
        due_s=requests.due_ns[order] / 1e9,
        took_s=np.where(requests.outcome == OK, (requests.done_ns - requests.due_ns) / 1e9, np.nan)[order],
        window_s=(1.0, window.end_ns / 1e9),
        users=users,
        number=number,
        label=f"{heldout.setting(spec)} {rate_rps:g}",
        reference=users is not None,
    )


@pytest.fixture(scope="module")
def blocks() -> list[Measured]:
    """Three settings at three rates each, the middle ones twice, and one with nobody ever idle."""
    plan = [(1, 0, 40), (1, 0, 120), (1, 0, 200), (8, 0, 60), (8, 0, 300), (8, 0, 600), (8, 2000, 60), (8, 2000, 300)]
    plan += [(8, 2000, 600), (8, 0, 300), (1, 0, 120)]
    found = [block(n, model(size, delay), rate, seed=10 * n) for n, (size, delay, rate) in enumerate(plan)]
    return [*found, block(len(plan), model(8), 900, users=32)]


def test_a_server_that_never_changes_is_predicted_closely(blocks):
    found = heldout.trust(blocks)
    assert all(one.judged for one in found.held_out)
    for metric, limit in (("throughput_rps", 0.02), ("latency_p95_s", 0.09), ("latency_p99_s", 0.15)):
        assert found.typical(metric, fitted=True) < limit
    assert found.typical("latency_p95_s", fitted=False) < 0.12


def test_waking_is_found(blocks):
    found = calibrator.service(blocks)
    assert found.wake_s == pytest.approx(0.001, rel=0.35)
    assert found.mean_s(1) == pytest.approx(TRUTH.mean_s(1), rel=0.08)
    assert found.mean_s(8) == pytest.approx(TRUTH.mean_s(8), rel=0.08)


def test_a_machine_that_slows_down_is_no_machine_that_sleeps():
    """Quiet blocks fill most of its slow hour and busy ones most of its fast hour."""
    slow = [(1.8, 250 if n % 4 == 3 else 40) for n in range(12)]
    fast = [(1.0, 40 if n % 4 == 3 else 250) for n in range(12)]
    every = [block(n, model(1), rate, speed=speed, seed=n) for n, (speed, rate) in enumerate([*slow, *fast])]
    found = calibrator.Calibrator(every).service(tuned=Tuned(TRUTH.asleep_s))
    assert found.wake_s / found.mean_s(1) == pytest.approx(TRUTH.wake_s / TRUTH.mean_s(1), rel=0.18)


def stalled(found: Measured) -> Measured:
    """The same block where whoever is in the slowest tenth takes twice as much longer: no queue explains it."""

    def longer(took_s: np.ndarray) -> np.ndarray:
        return np.where(took_s > usual_s, usual_s + 2 * (took_s - usual_s), took_s)

    usual_s = np.quantile(found.latency_s, 0.9)
    latency_s = longer(found.latency_s)
    told = {f"latency_p{p}_s": float(np.quantile(latency_s, p / 100)) for p in (50, 95, 99)}
    return replace(found, latency_s=latency_s, took_s=longer(found.took_s), summary=replace(found.summary, **told))


def test_what_replays_leave_is_expected_at_loads_between():
    rates = (100, 140, 220, 260)
    known = [stalled(block(n, model(1), rate, seed=10 * n)) for n, rate in enumerate(rates * 3)]
    held = stalled(block(40, model(1), 180, seed=7))
    server = calibrator.service(known)
    with_it, without = (
        heldout.replay(held, one).latency_p95_s / held.summary.latency_p95_s - 1
        for one in (server, replace(server, rests=()))
    )
    assert abs(with_it) < 0.1 and abs(with_it) < abs(without)


def uneven(seed: int) -> Service:
    """The same server on a machine that is a third as fast for some 150 ms once or twice a second: its own truth, which
    is not made of measured stretches."""
    rng = np.random.default_rng(seed)
    lasts_s = np.stack([rng.exponential(0.6, 40), rng.uniform(0.1, 0.2, 40)], axis=1).ravel()
    real_s = np.r_[0.0, lasts_s.cumsum()]
    own_s = np.r_[0.0, (lasts_s * np.tile([1.2, 0.4], 40)).cumsum()]
    return replace(TRUTH, stretches=(Stretch(real_s, own_s),))


def test_slow_stretches_are_kept_together():
    """A queue at most of its capacity waits for as long as they last, which the same batches in any order would not."""
    rates = (100, 160, 230, 260)
    known = [block(n, model(1), rate, seed=10 * n, truth=uneven(n)) for n, rate in enumerate(rates * 4)]
    held = [block(100 + n, model(1), 240, seed=500 + n, truth=uneven(50 + n)) for n in range(6)]
    server = replace(calibrator.service(known), rests=())
    true_s = np.quantile(np.concatenate([one.latency_s for one in held]), 0.95)

    def off(by: Service) -> float:
        found = [run.latency_s for one in held for run in heldout.replays(one, by)]
        return abs(float(np.quantile(np.concatenate(found), 0.95)) / true_s - 1)

    assert off(server) < 0.25 and off(server) < 0.5 * off(replace(server, stretches=()))


def test_batches_are_read_out_of_the_answers():
    """Each answer's time is known, and what came of it: when each batch began and ended."""
    spec = model(8, 2000)
    one = block(0, spec, 300, seed=4)
    found = seen.batches(one, 0.0005)
    truth = simulate(one.due_s, rules(spec), TRUTH, seed=5)
    _, first = np.unique(truth.start_s, return_index=True)
    took_s = (truth.done_s - truth.start_s)[first] - 0.00025
    assert found is not None and found.size.sum() == pytest.approx(len(one.due_s), rel=0.02)
    assert len(found.size) == pytest.approx(len(first), rel=0.05)
    assert (found.end_s - found.start_s).mean() == pytest.approx(took_s.mean(), rel=0.05)


def test_a_drift_that_nobody_could_know_is_in_the_errors(blocks):
    moved = replace(block(20, model(1), 120, speed=1.5, seed=5), label="moved")
    found = heldout.trust([*blocks[:3], moved]).held_out
    errors = [one.errors["latency_p95_s"] for one in found if one.label == "moved"]
    assert all(error < -0.2 for error in errors)


def test_noise_is_how_far_equal_cells_are_apart():
    pair = [block(n, model(1), 120, seed=n) for n in (0, 1)]
    low, high = sorted(one.summary.latency_p95_s for one in pair)
    assert heldout.trust(pair).noise["latency_p95_s"] == pytest.approx((high / low - 1,))
    assert heldout.trust(pair[:1]).typical_noise("latency_p95_s") is None


def test_beyond_85_percent_nobody_is_judged(blocks):
    near_full = block(30, model(1), 360, seed=3)  # of 385 a second
    found = [one for one in heldout.trust([*blocks[:3], near_full]).held_out if one.number == 30]
    assert len(found) == 1 and not any(one.judged for one in found)


def test_one_block_has_no_other_to_be_predicted_from(blocks):
    assert heldout.trust(blocks[:1]).known is False


def test_refused_requests_are_no_latency(blocks):
    some = [*blocks, block(50, model(1), 120, refused=200)]
    assert some[-1].summary.error_fraction == pytest.approx(0.25, abs=0.05)
    # The planner is asked all that came; it must not believe that refusals were quick answers.
    found = calibrator.service(some)
    assert found.mean_s(1) == pytest.approx(TRUTH.mean_s(1), rel=0.1)


@pytest.mark.parametrize("answers", [1, 2, 53])
def test_a_few_answers_judge_no_tail(answers, blocks):
    few = block(60, model(1), answers / SECONDS + 0.05, seed=2)
    few = replace(few, due_s=few.due_s[:answers], took_s=few.took_s[:answers], latency_s=few.latency_s[:answers])
    found = [one for one in heldout.trust([*blocks[:3], few]).held_out if one.number == 60]
    assert all(one.errors["latency_p99_s"] is None for one in found)  # 459 are needed


def test_blocks_in_which_nothing_succeeded_are_left_out(blocks):
    dead = replace(blocks[1], number=70, latency_s=np.empty(0), summary=replace(blocks[1].summary, latency_p50_s=None))
    assert 70 not in {one.number for one in heldout.trust([*blocks[:3], dead]).held_out}


def test_an_interval_is_where_the_truth_is():
    def one(error: float) -> heldout.HeldOut:
        made = heldout.trust([block(n, model(1), 100, seed=n) for n in (0, 1)]).held_out[0]
        return replace(made, fitted=True, load_fraction=0.5, errors={"latency_p95_s": error})

    found = Trust((one(0.25), one(-0.2)), {})
    # A model that says 25 % too much: the truth is 10 / 1.25; one that says 20 % too little: 10 / 0.8.
    assert found.interval("latency_p95_s", 10.0, fitted=True) == pytest.approx((8.0, 12.5))
    assert found.interval("latency_p95_s", None, fitted=True) is None
    assert found.interval("latency_p95_s", 10.0, fitted=False) is None
