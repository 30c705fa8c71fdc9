"""The engine's gauges and counters between two times, by paper arithmetic."""

import pytest

from lab.measure.server import server_delta
from lab.measure.summary import summarize

MS = 1_000_000


def counters(steps, decode_s, prefill_s, running=0, waiting=0, used=0, preemptions=0, **rest):
    return {
        "engine_steps": steps,
        "engine_decode_seconds": decode_s,
        "engine_prefill_seconds": prefill_s,
        "engine_preemptions": preemptions,
        "engine_running": running,
        "engine_waiting": waiting,
        "engine_cache_tokens_used": used,
        "engine_cache_tokens_total": 8192,
        "engine_weight_bytes": 269e6,
        "engine_cache_bytes": 188e6,
        **rest,
    }


def test_means_of_gauges_and_growth_of_counters(server_table):
    table = server_table(
        {
            0: counters(100, 2.0, 0.5, running=2, waiting=0, used=300),
            500: counters(150, 3.0, 0.6, running=8, waiting=5, used=900, preemptions=1),
            1000: counters(200, 4.0, 1.0, running=8, waiting=1, used=700, preemptions=3),
        },
        "llm",
    )
    engine = server_delta(table, "llm", 0, 1000 * MS).engine
    assert engine.engine_running_mean == 6
    assert engine.engine_waiting_mean == 2
    assert (engine.cache_tokens_used_peak, engine.cache_tokens_total) == (900, 8192)
    assert engine.step_mean_s == pytest.approx(2.0 / 100)
    assert engine.prefill_fraction == pytest.approx(0.5 / 2.5)
    assert engine.preemptions == 3
    assert (engine.engine_weight_bytes, engine.engine_cache_bytes) == (269e6, 188e6)


def test_steps_that_read_have_a_mean_of_their_own(server_table):
    told = (
        {"engine_prefill_tokens": 16, "engine_prefill_steps": 1},
        {"engine_prefill_tokens": 96, "engine_prefill_steps": 5},
    )
    table = server_table({0: counters(1, 0.0, 0.1, **told[0]), 500: counters(9, 1.0, 0.3, **told[1])}, "llm")
    engine = server_delta(table, "llm", 0, 500 * MS).engine
    assert engine.prefill_step_mean_s == pytest.approx(0.2 / 4)  # four more of them
    assert engine.prefill_tokens_mean == pytest.approx(80 / 4)


def test_answers_share_a_step_as_often_as_tokens_come_out_of_it(server_table):
    """8 answers over 100 steps, then one alone over 100 more: 900 tokens in 200 steps, whatever the gauge shows at the
    three moments at which it is read, an idle one among them."""
    table = server_table(
        {
            0: counters(0, 0.0, 0.0, running=0, engine_output_tokens=0),
            500: counters(100, 1.0, 0.0, running=8, engine_output_tokens=800),
            1000: counters(200, 2.0, 0.0, running=0, engine_output_tokens=900),
        },
        "llm",
    )
    assert server_delta(table, "llm", 0, 1000 * MS).engine.engine_batch_mean == pytest.approx(4.5)


def test_the_engines_counters_are_read_a_moment_after_tritons_own(server_table):
    """Neither reading stands for the other: both begin with their own last one before the window. 40 answers and 400
    steps in between; had Triton's begun with the first inside, 35."""
    at = {}
    for second, answers in ((0, 0), (1000, 5), (2000, 40), (3000, 45)):
        at[second] = {"success_count": answers}
        at[second + 4] = counters(10 * answers, 0.1 * answers, 0.0)
    delta = server_delta(server_table(at, "llm"), "llm", 500 * MS, 2000 * MS)
    assert delta.success_count == 40
    assert delta.engine.step_mean_s == pytest.approx(0.01)
    assert (delta.from_ns, delta.to_ns) == (0, 2000 * MS)


def test_a_gauge_that_falls_is_no_reload(server_table):
    table = server_table({0: counters(1, 1, 1, used=900), 1000: counters(2, 2, 2, used=10)}, "llm")
    assert server_delta(table, "llm", 0, 1000 * MS).resets == 0


def test_a_reload_that_triton_and_the_engine_both_tell_of_is_one(server_table):
    table = server_table(
        {
            0: counters(100, 10.0, 1.0, success_count=50),
            500: counters(120, 12.0, 1.2, success_count=60),
            1000: counters(30, 1.5, 0.3, success_count=5),
        },
        "llm",
    )
    delta = server_delta(table, "llm", 0, 1000 * MS)
    assert delta.resets == 1
    # 20 steps of 0.1 s before the reload, 30 of 0.05 s since.
    assert delta.engine.step_mean_s == pytest.approx((2.0 + 1.5) / (20 + 30))


def test_gauges_are_read_inside_the_window_only(server_table):
    table = server_table({0: counters(1, 1, 1, running=8), 600: counters(2, 2, 2, running=2), 2000: counters(3, 3, 3)})
    assert server_delta(table, "digits", 500 * MS, 1000 * MS).engine.engine_running_mean == 2


def test_what_the_engine_does_not_say_is_none_with_the_reason(server_table, answers_of, answer, window_of):
    table = server_table({0: counters(5, 1.0, 0.2), 1000: counters(5, 1.0, 0.2) | {"engine_waiting": "404"}}, "llm")
    delta = server_delta(table, "llm", 500 * MS, 1000 * MS)
    summary = summarize(
        answers_of(answer([(100, 1)])), window=window_of(1000), planned=1, slo=None, server=delta, model="llm"
    )
    assert summary.step_mean_s is None
    assert summary.notes["step_mean_s"] == "the engine computed nothing in the window"
    assert summary.engine_waiting_mean is None
    assert summary.notes["engine_waiting_mean"] == "404"
    assert summary.cache_tokens_total == 8192


def test_a_model_without_an_engine_says_so(server_table):
    table = server_table({0: {"success_count": 1}, 1000: {"success_count": 2}})
    delta = server_delta(table, "digits", 0, 1000 * MS)
    assert delta.engine.engine_running_mean is None
    assert delta.reasons["step_mean_s"] == "the model reports no engine counters"
