"""Charts of Compare and Cost with none, one and two points, and their tables against what was put in."""

import numpy as np
import pytest

from lab.measure.compare import Effect
from lab.measure.cost import Use, cost
from lab.measure.prices import Price
from lab.show.charts import compare, distribution
from lab.show.charts.compare import Load
from lab.show.charts.cost import Point, by_load, by_use
from lab.show.charts.figure import values_of

HOURLY = Price("cloud", "west", "T4", 1, "on_demand", 0.526, "page", "2026-11-09", "high")
PLAN = Price("cloud", "west", "T4", 1, "1yr_plan", 0.331, "page", "2026-11-09", "high")


def loads(*served: float) -> list[Load]:
    return [Load(f"{rate:g} req/s", rate, rate, 0.001 * rate, met=rate < 15) for rate in served]


@pytest.mark.parametrize("served", [(), (10.0,), (10.0, 20.0)])
def test_a_curve_of_none_one_and_two_loads_shows_what_its_table_says(served: tuple[float, ...]) -> None:
    chart = compare.curves({"A": loads(*served)}, "p99", 0.015)
    if not served:
        assert "nothing to draw" in chart.alt and chart.table == {}
        return
    (trace,) = chart.figure["data"]
    assert values_of(trace["x"]).tolist() == chart.table["served, req/s"] == list(served)
    assert values_of(trace["y"]).tolist() == pytest.approx(chart.table["p99, ms"])
    assert trace["marker"]["symbol"][0] == "circle"  # the objective was met
    assert "met it up to 10.0 req/s" in chart.alt
    assert compare.offered_served({"A": loads(*served)}).table["served, req/s"] == list(served)


def test_a_load_without_a_percentile_is_named_and_not_drawn() -> None:
    chart = compare.curves(
        {"A": [*loads(10.0), Load("20 req/s", 20, 20, None, "needs 459 successes, has 30")]}, "p99", None
    )
    assert len(values_of(chart.figure["data"][0]["x"])) == 1
    assert chart.notes == ("A at 20 req/s is not drawn: needs 459 successes, has 30",)
    assert chart.table["p99, ms"] == [10.0, None]


def test_a_ratio_stands_on_the_noise_floor_of_its_own_comparison() -> None:
    effect = Effect("goodput_rps", 100.0, 120.0, 1.2, 1.2 / 1.1, 1.2 * 1.1, 20.0, 9.0, 32.0, "higher", "")
    none = Effect("goodput_rps", None, None, None, None, None, None, None, None, "not comparable", "no successes")
    chart = compare.ratios({"B": effect, "C": none}, "A")
    band, marks = chart.figure["data"]
    assert values_of(band["base"])[0] == pytest.approx(1 / 1.1)
    assert values_of(band["base"])[0] + values_of(band["x"])[0] == pytest.approx(1.1)
    assert values_of(marks["x"]).tolist() == pytest.approx([1.2])
    assert chart.table["noise floor, %"] == [pytest.approx(10.0), None]
    assert chart.notes == ("C: no successes",)
    assert "nothing to draw" in compare.ratios({}, "A").alt


def test_memory_goes_from_one_total_to_the_other_part_by_part() -> None:
    mib = 2**20
    chart = compare.memory(
        {"A": {"weights": 100 * mib, "KV cache": 50 * mib}, "B": {"weights": 60 * mib, "KV cache": 70 * mib}}
    )
    (trace,) = chart.figure["data"]
    assert values_of(trace["x"]).tolist() == [150, -40, 20, 130]
    assert trace["measure"] == ["absolute", "relative", "relative", "total"]
    assert "nothing to draw" in compare.memory({"A": {}, "B": {"weights": 1.0}}).alt


def test_a_distribution_ends_at_the_largest_and_counts_what_is_in_time() -> None:
    chart = distribution.ecdf({"A": np.arange(1, 101) / 1e3, "B": np.zeros(0)}, 0.05)
    (trace,) = chart.figure["data"]
    assert values_of(trace["x"])[-1] == 100 and values_of(trace["y"])[-1] == 100
    assert "50.0 % within the objective" in chart.alt
    assert chart.notes == ("B is not drawn: it has no success",)
    assert chart.table["A, ms"][3] == pytest.approx(50.5)  # the linear median of 1 to 100


def test_a_heat_map_counts_every_answer_once_and_says_what_it_clips() -> None:
    due, took = np.linspace(0, 10, 1000), np.full(1000, 0.02)
    took[:10] = 0.0
    chart = distribution.heat_map("A", due, took, 0.1)
    counted = sum(10**cell for row in chart.figure["data"][0]["z"] for cell in row if cell is not None)
    assert counted == pytest.approx(990, rel=0.01)
    assert chart.notes == ("10 answers without a positive latency are left out",)
    assert "nothing to draw" in distribution.heat_map("A", due, np.zeros(1000), None).alt


def test_cost_by_load_marks_where_the_objective_was_missed() -> None:
    def point(rate: float, met: bool) -> Point:
        found = cost({"throughput_rps": rate, "goodput_rps": rate, "output_tokens_per_s": None}, HOURLY)
        return Point(f"{rate:g}", rate, found, met)

    chart = by_load({"off": [point(10, True), point(20, True), point(40, False)]}, "off", "within 20 ms")
    (trace,) = chart.figure["data"]
    assert trace["marker"]["symbol"] == ["circle", "circle", "circle-open"]
    assert values_of(trace["y"]).tolist() == pytest.approx(
        [0.526 / 3600 / rate * 1e6 for rate in (10, 20, 40)], rel=1e-5
    )
    assert "off costs least with the objective met at 20, $7.306 a million good requests" in chart.alt
    nothing = Point("10", 0.0, cost({"throughput_rps": 5.0, "goodput_rps": 0.0}, HOURLY), False)
    assert "no answer was within the objective" in by_load({"off": [nothing]}, "off", "within 20 ms").alt


def test_lines_of_two_ways_to_pay_cross_where_they_break_even() -> None:
    chart = by_use([HOURLY, PLAN], HOURLY, Use(), None, "requests")
    hourly, plan = (values_of(trace["y"]) for trace in chart.figure["data"])
    share = values_of(chart.figure["data"][0]["x"])
    cheaper = share[plan < hourly]
    assert cheaper.min() == pytest.approx(62.9, abs=2.6)  # the grid's step
    assert "1-year plan breaks even with on demand at 62.9 %" in chart.alt
