"""The batching page's charts, as dicts: what is drawn is what was measured, and what is not drawn says why."""

from typing import Any

import pytest

from lab.show.charts import batching, levels
from lab.show.charts.figure import Chart, values_of
from lab.show.grid import Grid

ON = {"max_batch_size": 32, "max_queue_delay_us": 2000}
LOAD = "workload.arrival.saturation_fraction"
PAIR = ("batching off", "2 ms delay")
LIGHT, HEAVY = "10 % of saturation", "120 % of saturation"
WITHHELD = "needs 459 successes, has 30; largest seen 12.0 ms"


def summary(
    rps: float | None = 100.0, p50: float | None = 0.001, p99: float | None = 0.004, **more: Any
) -> dict[str, Any]:
    notes = {} if p99 is not None else {"latency_p99_s": WITHHELD}
    return {
        "throughput_rps": rps,
        "latency_p50_s": p50,
        "latency_p99_s": p99,
        "latency_mean_s": 0.002,
        "queue_mean_s": 0.0005,
        "compute_mean_s": 0.001,
        "batch_sizes": {"1": 10},
        "item_compute_s": {},
        "notes": notes,
        **more,
    }


def grid_of(*cells: tuple[Any, float, dict[str, Any]]) -> Grid:
    rows = [{"factors": {LOAD: load, "model.batching": b}, "role": "cell", "summary": s} for b, load, s in cells]
    return Grid.of({"cells": rows}, "model.batching")


@pytest.fixture
def grid() -> Grid:
    return grid_of(
        (None, 0.1, summary(100.0, 0.001, 0.002)),
        (None, 1.2, summary(1000.0, 0.400, 0.900, batch_sizes={"1": 900})),
        (ON, 0.1, summary(100.0, 0.003, 0.004, batch_sizes={"1": 90, "2": 5})),
        (ON, 1.2, summary(1200.0, 0.004, None, batch_sizes={"4": 25, "8": 75})),
    )


def axis_titles(chart: Chart) -> list[str]:
    layout = chart.figure["layout"]
    return [layout[name]["title"]["text"] for name in ("xaxis", "yaxis")]


def test_throughput_is_drawn_against_latency_on_a_log_axis_with_units(grid: Grid) -> None:
    chart = batching.throughput_latency(grid, PAIR, 0.020)
    assert axis_titles(chart) == ["served, requests a second", "latency from the scheduled arrival, ms"]
    assert chart.figure["layout"]["yaxis"]["type"] == "log"
    off_p99 = next(trace for trace in chart.figure["data"] if trace["name"] == "batching off p99")
    assert list(values_of(off_p99["x"])) == [100.0, 1000.0]
    assert list(values_of(off_p99["y"])) == pytest.approx([2.0, 900.0])


def test_at_most_four_series_and_the_baseline_is_grey(grid: Grid) -> None:
    chart = batching.throughput_latency(grid, PAIR, 0.020)
    assert len(chart.figure["data"]) <= 4
    assert {t["line"]["color"] for t in chart.figure["data"] if t["name"].startswith("batching off")} == {"@grey"}


def test_a_withheld_percentile_is_not_drawn_and_says_why(grid: Grid) -> None:
    chart = batching.throughput_latency(grid, PAIR, 0.020)
    on_p99 = next(trace for trace in chart.figure["data"] if trace["name"] == "2 ms delay p99")
    assert list(values_of(on_p99["x"])) == [100.0]  # only the light load
    assert chart.notes == (f"p99 of 2 ms delay at {HEAVY} is not drawn: {WITHHELD}",)
    assert None in chart.table["p99, ms"]


def test_the_alternative_text_has_numbers_and_units(grid: Grid) -> None:
    alt = batching.throughput_latency(grid, PAIR, 0.020).alt
    assert "p99 of batching off goes from 2.0 ms at 100 req/s to 900 ms at 1,000 req/s" in alt


@pytest.mark.parametrize("loads", [0, 1, 2])
def test_any_number_of_load_points_renders(loads: int) -> None:
    cells = [(b, load, summary()) for load in (0.1, 1.2)[:loads] for b in (None, ON)]
    chart = batching.throughput_latency(grid_of(*cells), PAIR, None)
    assert len(chart.table.get("load", [])) == 2 * loads
    assert chart.alt


def test_batch_sizes_are_shares_of_executions(grid: Grid) -> None:
    chart = batching.batch_sizes(grid, PAIR, HEAVY)
    off, on = chart.figure["data"]
    assert off["x"] == on["x"] == ["1", "4", "8"]
    assert list(values_of(off["y"])) == [100.0, 0.0, 0.0]
    assert list(values_of(on["y"])) == [0.0, 25.0, 75.0]
    assert chart.table["2 ms delay, executions"] == [0, 25, 75]
    assert "100 executions of 7.0 requests on average" in chart.alt  # (4 * 25 + 8 * 75) / 100


def test_batch_sizes_of_repeats_are_added_up() -> None:
    grid = grid_of((ON, 0.1, summary(batch_sizes={"2": 1})), (ON, 0.1, summary(batch_sizes={"2": 2, "4": 3})))
    chart = batching.batch_sizes(grid, ("2 ms delay", "2 ms delay"), LIGHT)
    assert chart.table["batch size"] == [2, 4]
    assert chart.table["2 ms delay, executions"] == [3, 3]


def test_without_batch_counters_the_chart_says_so() -> None:
    chart = batching.batch_sizes(grid_of((None, 0.1, summary(batch_sizes={}))), PAIR, LIGHT)
    assert chart.figure["data"] == []
    assert "not read" in chart.alt


def test_a_requests_time_adds_up_to_its_mean_latency(grid: Grid) -> None:
    chart = batching.where_time_goes(grid, LIGHT)
    table = chart.table
    parts = [table["in queue, ms"][0], table["computing, ms"][0], table["outside Triton, ms"][0]]
    assert parts == pytest.approx([0.5, 1.0, 0.5])
    assert sum(parts) == pytest.approx(table["mean latency, ms"][0])


def test_an_impossible_remainder_is_missing_not_negative() -> None:
    # Triton's mean covers other requests than the client's: its parts can exceed the client's mean.
    grid = grid_of((None, 0.1, summary(latency_mean_s=0.00145, queue_mean_s=0.0005)))  # 0.5 + 1.0 in 1.45 ms
    chart = batching.where_time_goes(grid, LIGHT)
    assert chart.table["outside Triton, ms"] == [None]
    assert chart.notes == (
        "batching off: Triton's counters, read around the window, leave nothing of the mean latency",
    )


def test_a_request_cannot_take_longer_in_the_server_than_the_client_waited() -> None:
    """11.1 + 1.0 ms of a mean latency of 6.6 ms are of other requests: that is told, and no bar says 12.1 ms."""
    grid = grid_of(
        (None, 0.1, summary(latency_mean_s=0.0066, queue_mean_s=0.0111)),
        (ON, 0.1, summary()),
    )
    chart = batching.where_time_goes(grid, LIGHT)
    assert chart.table["level"] == ["2 ms delay"]
    assert chart.notes[0].startswith(
        "batching off is not drawn: by Triton's counters a request took 12.1 ms there, longer than the 6.6 ms"
    )


def test_the_parts_of_two_repeats_add_up() -> None:
    """Means: queue (0.3 + 0.9) / 2 = 0.6, computing 1.0, of (2.0 + 3.0) / 2 = 2.5 ms: 0.9 are outside."""
    grid = grid_of(
        (None, 0.1, summary(latency_mean_s=0.002, queue_mean_s=0.0003)),
        (None, 0.1, summary(latency_mean_s=0.003, queue_mean_s=0.0009)),
    )
    assert batching.where_time_goes(grid, LIGHT).table["outside Triton, ms"] == pytest.approx([0.9])


def test_a_level_without_counters_is_named() -> None:
    grid = grid_of(
        (None, 0.1, summary()),
        (ON, 0.1, summary(queue_mean_s=None, notes={"queue_mean_s": "Triton answered no request"})),
    )
    assert batching.where_time_goes(grid, LIGHT).notes == ("2 ms delay: Triton answered no request",)


def test_what_one_request_costs_says_that_batching_shares() -> None:
    costs = [
        summary(batch_sizes={"1": 300}, item_compute_s={"1": 0.0007}),
        summary(batch_sizes={"1": 100, "8": 50, "9": 2}, item_compute_s={"1": 0.0011, "8": 0.0002, "9": 0.5}),
    ]
    chart = batching.cost_of_one(costs, "digits")
    assert chart.table["batch size"] == [1, 8]
    assert chart.table["compute of one request, ms"] == pytest.approx([0.8, 0.2])  # (300 * 0.7 + 100 * 1.1) / 400
    assert "4.0× less" in chart.alt
    assert chart.notes == ("not drawn, with under 20 executions: batches of 9",)


def test_what_one_request_costs_says_that_there_is_nothing_to_share() -> None:
    costs = [summary(batch_sizes={"1": 10, "8": 10}, item_compute_s={"1": 0.0130, "8": 0.0125})]
    assert "nothing to share" in batching.cost_of_one(costs, "embedder").alt


def test_effects_draw_ratios_with_intervals_and_list_what_was_not_comparable(grid: Grid) -> None:
    effects = [
        {"level": ON, "at": {LOAD: 0.1}, "metric": "goodput_rps", "ratio": 0.99, "ci_low": 0.95, "ci_high": 1.03,
         "verdict": "no detectable difference", "reason": None},
        {"level": ON, "at": {LOAD: 1.2}, "metric": "goodput_rps", "ratio": None, "ci_low": None, "ci_high": None,
         "verdict": "not comparable", "reason": "too few successes"},
    ]  # fmt: skip
    chart = levels.effects({"verdict": {"effects": effects}}, grid, "goodput_rps", "Goodput")
    (trace,) = chart.figure["data"]
    assert list(values_of(trace["x"])) == pytest.approx([0.99])
    assert list(values_of(trace["error_x"]["arrayminus"])) == pytest.approx([0.04], abs=1e-6)
    assert list(values_of(trace["error_x"]["array"])) == pytest.approx([0.04], abs=1e-6)
    assert chart.notes == (f"2 ms delay at {HEAVY}: too few successes",)
    assert chart.table["ratio"] == [0.99, None]


def test_a_real_run_fills_every_chart(document: dict[str, Any]) -> None:
    grid = Grid.of(document, "model.batching")
    assert len(grid.levels) == 5 and len(grid.loads) == 3
    for chart in (
        batching.throughput_latency(grid, PAIR, 0.020),
        batching.batch_sizes(grid, PAIR, HEAVY),
        batching.where_time_goes(grid, HEAVY),
        levels.effects(document, grid, "goodput_rps", "Goodput"),
    ):
        assert chart.figure["data"], chart.alt
        assert len({len(column) for column in chart.table.values()}) == 1


def delays(*us: int) -> list[Any]:
    return [None, *({"max_batch_size": 32, "max_queue_delay_us": delay} for delay in us)]


def test_data_beside_a_chart_has_every_level_also_those_not_drawn() -> None:
    every = delays(0, 500, 2000, 5000, 8000)
    grid = grid_of(*((level, load, summary(goodput_rps=90.0)) for level in every for load in (0.1, 1.2)))
    document: dict[str, Any] = {"verdict": {"effects": []}}
    by_load = levels.by_load(grid, document, "goodput_rps", LOAD, HEAVY, "2 ms delay")
    curves = batching.throughput_latency(grid, PAIR, 0.020)
    sizes = batching.batch_sizes(grid, PAIR, HEAVY)
    assert len(by_load.figure["data"]) == 4
    for chart in (by_load, curves):
        assert set(chart.table["level"]) == set(grid.levels) and len(chart.table["level"]) == 6 * 2
        assert len({len(column) for column in chart.table.values()}) == 1
    assert {f"{level}, executions" for level in grid.levels} < sizes.table.keys()
    told = [chart.notes[-1].removeprefix("in the data, not drawn: ") for chart in (by_load, curves, sizes)]
    assert told == ["no delay and 0.5 ms delay", *["no delay, 0.5 ms delay, 5 ms delay and 8 ms delay"] * 2]


def test_a_verdict_without_a_ratio_says_at_its_place_what_it_stands_on() -> None:
    grid = grid_of(*((level, load, summary(goodput_rps=90.0)) for level in (None, ON) for load in (0.1, 1.2)))
    effect = {"level": ON, "at": {LOAD: 1.2}, "metric": "goodput_rps", "ratio": None, "ci_low": None, "ci_high": None,
              "difference": 374.0, "difference_low": 210.0, "difference_high": 538.0, "verdict": "higher",
              "reason": ""}  # fmt: skip
    document = {"verdict": {"effects": [effect]}}
    said = (
        "no ratio, as one side is zero or may be in parts of its window; the difference decides: +374 req/s "
        "(210 to 538 req/s)"
    )
    alone = levels.effects(document, grid, "goodput_rps", "Goodput")
    assert alone.table["why"] == [said] and alone.table["verdict"] == ["higher"] and said in alone.alt
    by_load = levels.by_load(grid, document, "goodput_rps", LOAD, HEAVY)
    assert by_load.table["note"] == ["the baseline", "the baseline", "", said]
