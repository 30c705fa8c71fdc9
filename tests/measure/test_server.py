"""Truth: paper arithmetic on counters as Triton gives them (cumulative, nanoseconds, per request)."""

import pytest

from lab.measure.server import server_delta

MS = 1_000_000


def test_queue_time_is_growth_of_time_over_growth_of_count(server_table):
    """T31: queue 1000 → 6000 µs while 10 → 20 requests: 500 µs a request."""
    table = server_table(
        {
            0: {"queue_ns": 1_000_000, "queue_count": 10, "success_count": 10},
            1000: {"queue_ns": 6_000_000, "queue_count": 20, "success_count": 20},
        }
    )
    delta = server_delta(table, "digits", 0, 1000 * MS)
    assert delta.queue_mean_s == pytest.approx(500e-6)
    assert delta.success_count == 10
    assert delta.resets == 0


def test_a_counter_that_falls_was_reset_by_a_reload(server_table):
    """20 → 4: 4 were counted since the reload. Counters that rise in the same scrape restarted too."""
    table = server_table(
        {
            0: {"success_count": 10, "execution_count": 2, "inference_count": 10},
            500: {"success_count": 20, "execution_count": 3, "inference_count": 20},
            1000: {"success_count": 4, "execution_count": 4, "inference_count": 4},
            1500: {"success_count": 9, "execution_count": 5, "inference_count": 9},
        }
    )
    delta = server_delta(table, "digits", 0, 1500 * MS)
    assert delta.success_count == 10 + 4 + 5
    assert delta.executions == 1 + 4 + 1
    assert delta.resets == 1


def test_counters_of_the_process_do_not_make_a_reset(server_table):
    """The Prometheus counters outlive a reload; a new server process starts them anew."""
    table = server_table(
        {
            0: {"success_count": 1, "prometheus:nv_inference_request_success": 100},
            1000: {"success_count": 2, "prometheus:nv_inference_request_success": 0},
        }
    )
    assert server_delta(table, "digits", 0, 1000 * MS).resets == 0


def test_nothing_answered_gives_no_mean(server_table):
    """T31: Δcount 0 is no 0 µs."""
    scrape = {"queue_ns": 6e6, "queue_count": 20, "success_count": 20, "execution_count": 5, "inference_count": 20}
    delta = server_delta(server_table({0: scrape, 1000: scrape}), "digits", 0, 1000 * MS)
    assert delta.queue_mean_s is None
    assert delta.batch_mean is None
    assert delta.success_count == 0
    assert "no request" in delta.reasons["queue_mean_s"]


def test_a_missing_counter_leaves_the_others(server_table):
    """T32: one family is unavailable, with its reason; the rest counts."""
    table = server_table(
        {
            0: {"queue_ns": "HTTP 404", "queue_count": 0, "inference_count": 0, "execution_count": 0},
            1000: {"queue_ns": "HTTP 404", "queue_count": 8, "inference_count": 8, "execution_count": 1},
        }
    )
    delta = server_delta(table, "digits", 0, 1000 * MS)
    assert delta.queue_mean_s is None
    assert "HTTP 404" in delta.reasons["queue_mean_s"]
    assert delta.batch_mean == 8


@pytest.mark.parametrize(
    ("success", "inference", "execution", "mean"),
    [(1, 8, 1, 8.0), (8, 8, 1, 8.0), (8, 8, 8, 1.0)],
    ids=["one call of batch 8", "8 calls joined", "8 calls alone"],
)
def test_mean_batch_is_inferences_an_execution(server_table, success, inference, execution, mean):
    """P17."""
    zero = {"success_count": 0, "inference_count": 0, "execution_count": 0}
    last = {"success_count": success, "inference_count": inference, "execution_count": execution}
    delta = server_delta(server_table({0: zero, 1000: last}), "digits", 0, 1000 * MS)
    assert delta.batch_mean == mean


def test_cache_hits_count_as_success_and_not_as_compute(server_table):
    """P23: 5 calls of one tensor, 75 ms of compute once, 4 hits."""
    zero = {"success_count": 0, "cache_hit_count": 0, "compute_infer_ns": 0, "inference_count": 0}
    last = {"success_count": 5, "cache_hit_count": 4, "compute_infer_ns": 75e6, "inference_count": 1}
    delta = server_delta(server_table({0: zero, 1000: last}), "digits", 0, 1000 * MS)
    assert delta.cache_hit_fraction == pytest.approx(0.8)
    assert delta.compute_infer_mean_s == pytest.approx(0.075)
    assert delta.success_count == 5


def test_batch_sizes_and_what_an_item_costs_in_each(server_table):
    """4 executions of 1 item at 2 ms, 2 of 8 items at 4 ms: 2 ms and 0.5 ms an item. Size 8 was first seen late."""
    first = {"batch_count:1": 1, "batch_infer_ns:1": 2e6, "batch_infer_count:1": 1}
    last = {
        "batch_count:1": 5,
        "batch_infer_ns:1": 10e6,
        "batch_infer_count:1": 5,
        "batch_count:8": 2,
        "batch_infer_ns:8": 8e6,
        "batch_infer_count:8": 2,
    }
    delta = server_delta(server_table({0: first, 1000: last}), "digits", 0, 1000 * MS)
    assert delta.batch_sizes == {1: 4, 8: 2}
    assert delta.item_compute_s == {1: pytest.approx(2e-3), 8: pytest.approx(0.5e-3)}


def test_scrapes_around_the_window_are_used(server_table):
    table = server_table({t: {"success_count": t / 100} for t in (0, 400, 800, 1200, 1600)})
    delta = server_delta(table, "digits", 500 * MS, 1000 * MS)
    assert (delta.from_ns, delta.to_ns, delta.success_count) == (400 * MS, 1200 * MS, 8)


def test_one_scrape_or_another_model_measures_nothing(server_table):
    assert server_delta(server_table({0: {"success_count": 1}}), "digits", 0, MS) is None
    assert server_delta(server_table({0: {"success_count": 1}, 1: {"success_count": 2}}), "null", 0, MS) is None


def test_compute_is_input_infer_and_output(server_table):
    zero = {"success_count": 0, "compute_input_ns": 0, "compute_infer_ns": 0, "compute_output_ns": 0, "success_ns": 0}
    last = {
        "success_count": 10,
        "compute_input_ns": 1e6,
        "compute_infer_ns": 20e6,
        "compute_output_ns": 4e6,
        "success_ns": 50e6,
    }
    delta = server_delta(server_table({0: zero, 1000: last}), "digits", 0, 1000 * MS)
    assert delta.compute_mean_s == pytest.approx(2.5e-3)
    assert delta.compute_infer_mean_s == pytest.approx(2e-3)
    assert delta.server_mean_s == pytest.approx(5e-3)
