"""Plans for servers whose answer is known on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.errors import InputError
from lab.measure.planner import calibration, calibrator, heldout
from lab.measure.planner.calibration import Measured
from lab.measure.planner.engine_calibrator import EngineCalibrator, Tuned, engine_steps
from lab.measure.planner.engine_simulator import Asked, EngineRules, simulate_engine
from lab.measure.planner.planner import (
    error,
    fewest,
    highest_rate,
    in_turn,
    lengths,
    poisson,
    predict,
    predict_engine,
)
from lab.measure.planner.queueing import Rules, Users
from lab.measure.planner.service import steady
from lab.measure.planner.steps import Steps, fit_curve
from lab.measure.records import Requests, Window
from lab.measure.summary import Summary, summarize
from lab.spec import Batching, ModelSpec, Slo


def some(**figures) -> Summary:
    """A summary of ten answers of 10 ms each, with these figures in place of its own."""
    due = np.arange(10, dtype=np.int64) * 100_000_000
    requests = Requests(due, due, due + 10_000_000, np.zeros(10, np.uint8))
    whole = summarize(requests, window=Window(0, 0, 1_000_000_000), planned=10, slo=None)
    return replace(whole, **figures)


def test_below_capacity_everything_is_served_and_above_it_no_more_than_that():
    below = predict(poisson(50, 4000), Rules(), steady(0.01))
    above = predict(poisson(200, 4000), Rules(), steady(0.01))
    assert below.throughput_rps == pytest.approx(50, rel=0.05)
    assert below.utilisation_fraction == pytest.approx(0.5, rel=0.05)
    assert above.throughput_rps == pytest.approx(100, rel=0.01)


def test_a_closed_loop_has_as_many_answers_as_fit():
    together = predict(Users(4, 2000), Rules(max_batch_size=4, delay_s=0.001), steady(0.01, 0.0025))
    assert together.throughput_rps == pytest.approx(4 / 0.02, rel=0.01)
    assert together.batch_mean == pytest.approx(4, rel=0.01)
    # Without a delay the first to come back leaves alone, and the other three together: 12.5 and 17.5 ms.
    apart = predict(Users(4, 2000), Rules(max_batch_size=4), steady(0.01, 0.0025))
    assert apart.throughput_rps == pytest.approx(4 / 0.03, rel=0.01)


def test_goodput_counts_what_is_within_the_limit_of_all_that_came():
    found = predict(np.arange(100) * 0.1, Rules(max_queue_size=5), steady(0.01), Slo(latency_s=0.02))
    assert (found.slo_attainment_fraction, found.refused) == (1.0, 0)
    late = predict(np.arange(100) * 0.1, Rules(), steady(0.05), Slo(latency_s=0.02))
    assert (late.slo_attainment_fraction, late.goodput_rps) == (0.0, 0.0)


def test_an_engine_alone_writes_a_token_a_step():
    asked = Asked(np.arange(20) * 10.0, np.full(20, 5), np.full(20, 11))
    found = predict_engine(asked, EngineRules(), Steps(0.01, read_fixed_s=0.02, outside_s=0.004), Slo(ttft_s=0.03))
    assert found.ttft_p50_s == pytest.approx(0.024)
    assert found.itl_mean_s == pytest.approx(0.01)
    assert found.latency_p50_s == pytest.approx(0.024 + 10 * 0.01)
    assert found.slo_attainment_fraction == 1.0


@pytest.mark.parametrize("needs", [1, 2, 3, 7, 8, 33, 100])
def test_the_fewest_is_found_from_any_start(needs):
    for least in (1, 2, needs):
        if least <= needs:
            assert fewest(lambda n: n >= needs, least, 100) == needs


def test_what_no_number_is_enough_for_is_said():
    tried = []
    assert fewest(lambda n: bool(tried.append(n)), 1, 100) is None
    assert max(tried) == 100


def test_replicas_that_take_turns_are_one_pattern():
    whole = predict(poisson(340, 40_000), Rules(replicas=4), steady(0.01), Slo(latency_s=0.03))
    pattern = predict(in_turn(340, 4, 40_000), Rules(), steady(0.01), Slo(latency_s=0.03)).of(4)
    assert pattern.throughput_rps == pytest.approx(whole.throughput_rps, rel=0.02)
    assert pattern.latency_p95_s == pytest.approx(whole.latency_p95_s, rel=0.03)
    assert pattern.slo_attainment_fraction == pytest.approx(whole.slo_attainment_fraction, abs=0.01)


def test_the_highest_rate_is_below_capacity():
    def keeps(rate_rps: float) -> bool:
        found = predict(poisson(rate_rps, 3_000), Rules(), steady(0.01), Slo(latency_s=0.05))
        return (found.slo_attainment_fraction or 0) >= 0.99

    found = highest_rate(keeps, 100)
    assert found is not None and keeps(found) and not keeps(found * 1.2)
    assert highest_rate(lambda rate_rps: False, 1) is None


def test_an_error_is_relative_and_none_without_a_measurement():
    found = predict(np.arange(20) * 1.0, Rules(), steady(0.011))
    errors = error(found, {"latency_p50_s": 0.010, "latency_p99_s": None}, ["latency_p50_s", "latency_p99_s"])
    assert errors == {"latency_p50_s": pytest.approx(0.1), "latency_p99_s": None}


def test_lengths_are_drawn_from_first_to_last():
    assert set(lengths((3, 5), 200, 0)) == {3, 4, 5}
    assert set(lengths(7, 3, 0)) == {7}


def test_a_service_is_read_out_of_counters():
    model = ModelSpec(name="digits", batching=Batching(max_batch_size=8, max_queue_delay_us=500, max_queue_size=9))
    figures = {
        "item_compute_s": {1: 0.003, 2: 0.002},  # an infer of 3 and 4 ms
        "batch_sizes": {1: 10, 2: 10},
        "compute_mean_s": 0.004,
        "compute_infer_mean_s": 0.0035,  # half a millisecond of input and output
        "queue_mean_s": 0.0001,
        "latency_mean_s": 0.006,
    }
    found = calibrator.service([Measured(model, some(**figures), np.array([0.0059, 0.0061]))])
    assert (found.mean_s(1), found.mean_s(2)) == (pytest.approx(0.0035), pytest.approx(0.0045))
    assert found.outside_s.mean() == pytest.approx(0.0019)
    assert found.spread.tolist() == [1.0]  # two answers say nothing of scatter
    rules = calibration.rules(model)
    assert (rules.max_batch_size, rules.delay_s, rules.max_queue_size) == (8, 0.0005, 9)


@pytest.mark.parametrize(("rate_rps", "known"), [(45.0, False), (500.0, True)])
def test_an_instance_that_is_idle_hands_nothing_over(rate_rps, known):
    """Both answer 4 % less than came: of 90 requests these are a few at the window's end, of 1,000 a backlog."""
    figures = {
        "item_compute_s": {1: 0.0018},
        "batch_sizes": {1: 1000},
        "compute_mean_s": 0.0018,
        "compute_infer_mean_s": 0.0018,
        "queue_mean_s": 0.001,
        "latency_mean_s": 0.006,
        "batch_mean": 1.0,
        "offered_rps": rate_rps,
        "throughput_rps": 0.96 * rate_rps,
    }
    found = calibrator.service([Measured(ModelSpec(name="digits"), some(**figures), np.array([0.0059, 0.0061]))])
    between_s = 1 / (0.96 * rate_rps) - 0.0018 if known else 0.0
    assert found.handover_s(1) == pytest.approx(between_s, rel=0.01)


def test_steps_are_read_out_of_an_engines_counters():
    figures = {
        "itl_mean_s": 0.010,  # one user: while it waits for a token, nobody's prompt is read
        "prefill_fraction": 0.2,
        "engine_batch_mean": 1.0,
        "step_mean_s": 0.010,
        "prompt_tokens_mean": 25.0,
        "output_tokens_mean": 11.0,  # of which reading gives the first
        "ttft_p50_s": 0.030,
        "engine_waiting_mean": 0.0,
    }
    found = engine_steps([Measured(ModelSpec(name="llm"), some(**figures), np.empty(0))])
    assert found.write_fixed_s == pytest.approx(0.010)
    # A fifth of the time is a quarter of the rest: 25 ms, of which reading the weights takes what it takes to write.
    assert (found.read_fixed_s, found.read_token_s) == (pytest.approx(0.010), pytest.approx(0.015 / 25))
    assert found.outside_s == pytest.approx(0.030 - 0.025)


TRUE = Steps(0.008, 0.0005, 0.0, 0.008, 0.0004, rows=((1.0, 0.001), (3.0, 0.003), (8.0, 0.004)))


def run_by(users: int, prompt: int = 16) -> Measured:
    """What an engine with the steps TRUE would be measured to do when so many users ask it in turn."""
    n = 400
    output = np.random.default_rng(users).integers(8, 32, n, endpoint=True)
    asked = Asked(np.zeros(n), np.full(n, prompt), output, users)
    found = simulate_engine(asked, EngineRules(max_batch_size=8), TRUE)
    writing, steps = sum(s for s, _, _ in found.stretches), sum(count for _, _, count in found.stretches)
    figures = {
        "itl_mean_s": float(np.nanmean(found.itl_s)),
        "prefill_fraction": found.read_s / (found.read_s + writing),
        "engine_batch_mean": found.batch_mean,
        "step_mean_s": writing / steps,
        "prompt_tokens_mean": float(prompt),
        "output_tokens_mean": float(output.mean()),
        "ttft_p50_s": float(np.median(found.ttft_s)),
        "engine_waiting_mean": 0.0,
    }
    return Measured(ModelSpec(name="llm"), some(**figures), np.empty(0), number=100 * users + prompt)


BUSY = Steps(0.008, 0.0005, 0.0, 0.002, 0.0006, 0.006, 0.0045, rows=((1.0, 0.001), (3.0, 0.003), (8.0, 0.004)))
"""An engine on all the cores there are: of what a request takes outside, the most is taken from the others' steps."""


def block_of(number: int, users: int | None = None, rate_rps: float = 0.0) -> Measured:
    """What BUSY would be measured to do, as `run_by`, with all that a replay needs and the steps that read counted."""
    n, seconds = 400, 30.0
    rng = np.random.default_rng(number)
    output = rng.integers(8, 32, n, endpoint=True)
    due_s = np.zeros(n) if users else rng.exponential(1 / rate_rps, n).cumsum()
    found = simulate_engine(Asked(due_s, np.full(n, 16), output, users), EngineRules(max_batch_size=8), BUSY)
    writing, steps = sum(s for s, _, _ in found.stretches), sum(count for _, _, count in found.stretches)
    reads = (found.read_s - n * 16 * BUSY.read_token_s) / BUSY.read_fixed_s
    figures = {
        "itl_mean_s": float(np.nanmean(found.itl_s)),
        "prefill_fraction": found.read_s / (found.read_s + writing),
        "prefill_step_mean_s": found.read_s / reads,
        "prefill_tokens_mean": n * 16 / reads,
        "engine_batch_mean": found.batch_mean,
        "step_mean_s": writing / steps,
        "prompt_tokens_mean": 16.0,
        "output_tokens_mean": float(output.mean()),
        "ttft_p50_s": float(np.median(found.ttft_s)),
        "ttft_mean_s": float(found.ttft_s.mean()),
        "engine_waiting_mean": 0.0,
    }
    return Measured(
        ModelSpec(name="llm", max_batch_size=8),
        some(**figures),
        found.latency_s,
        due_s=found.due_s,
        window_s=(0.0, seconds),
        users=users,
        prompt_tokens=np.full(n, 16),
        output_tokens=output,
        number=number,
    )


def test_what_a_request_takes_from_others_is_found_by_replays():
    calibrator = EngineCalibrator([block_of(number, users) for number, users in enumerate((1, 3, 8))])
    tuned = calibrator.tune([0, 1, 2])
    found = calibrator.steps(tuned=tuned)
    assert (found.outside_s, found.intake_s) == (pytest.approx(0.006, rel=0.02), pytest.approx(0.0045, rel=0.02))
    assert (found.read_fixed_s, found.read_token_s) == (pytest.approx(0.002, rel=0.02), pytest.approx(0.0006, rel=0.02))
    at_a_rate = block_of(9, rate_rps=14.0)
    true_s = np.percentile(at_a_rate.latency_s[at_a_rate.due_s <= 30], 95)
    off = []
    for how in (tuned, Tuned()):
        (run, *_) = heldout.replays(at_a_rate, calibrator.steps(tuned=how))
        off.append(abs(np.percentile(run.latency_s, 95) / true_s - 1))
    assert off[0] < 0.02 < off[1]


def test_blocks_that_cannot_be_replayed_tune_nothing():
    assert EngineCalibrator([run_by(users) for users in (1, 3, 8)]).tune([116, 316, 816]) == Tuned()


def test_an_engine_of_known_steps_is_found_again():
    """The truth is the simulator's: what its users would measure leads back to what it was given."""
    found = engine_steps([run_by(users) for users in (1, 3, 8)])
    for rows in (1, 3, 8):
        assert found.write_s(rows, 0) == pytest.approx(TRUE.write_s(rows, 0), rel=0.04)
    read_s = found.read_fixed_s + 16 * found.read_token_s
    assert read_s == pytest.approx(TRUE.read_fixed_s + 16 * TRUE.read_token_s, rel=0.05)
    assert found.capacity_rps(8, 16, 20) == pytest.approx(TRUE.capacity_rps(8, 16, 20), rel=0.04)


def test_prompts_of_two_lengths_tell_what_is_fixed_of_reading():
    found = engine_steps([run_by(1, prompt) for prompt in (16, 64)])
    assert (found.read_fixed_s, found.read_token_s) == (pytest.approx(0.008, rel=0.01), pytest.approx(0.0004, rel=0.01))


def test_rows_have_a_curve_from_three_kinds_of_blocks_on():
    kinds = [(0.010, 1.0, 0.0), (0.013, 4.0, 0.0), (0.014, 8.0, 0.0)]
    assert fit_curve(kinds[:2], 0.009, 0.0) == ()
    curve = dict(fit_curve([*kinds, (0.0132, 4.1, 0.0)], 0.009, 0.0))
    assert curve == pytest.approx({1.0: 0.001, 4.05: 0.0041, 8.0: 0.005})
    steps = Steps(0.009, 0.0005, rows=tuple(curve.items()))
    assert steps.write_s(2.5, 0) < 0.5 * (steps.write_s(1, 0) + steps.write_s(4, 0)) + 1e-4
    assert steps.write_s(10, 0) == pytest.approx(0.014 + 2 * 0.0005)  # beyond, the line goes on
    assert steps.scaled(row=2.0).write_s(8, 0) == pytest.approx(0.009 + 0.010)


def test_an_engine_that_is_not_modelled_is_refused():
    with pytest.raises(InputError, match="kv_cache false"):
        calibration.engine_rules(ModelSpec(name="llm", kv_cache=False))
    with pytest.raises(InputError, match="max_tokens_in_cache 2000"):
        calibration.engine_rules(ModelSpec(name="llm", max_tokens_in_cache=2000))


def test_blocks_that_say_nothing_calibrate_nothing():
    with pytest.raises(InputError, match="nothing to calibrate on"):
        calibrator.service([Measured(ModelSpec(name="digits"), some(), np.empty(0))])
