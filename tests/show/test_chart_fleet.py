"""Charts of many models: what is drawn, the takeaway, and what is not drawn and why."""

import numpy as np
import pytest

from lab.measure.tenancy import Stay
from lab.show.charts import fleet, fleet_memory
from lab.show.charts.figure import values_of

MIB = 2**20


def cell(models, rps, hits, misses=0, hit_p99=0.005, miss_p50=2.0, swaps=0):
    return {
        "models": models,
        "throughput_rps": rps,
        "hit_fraction": hits / (hits + misses) if hits + misses else None,
        "hit_n": hits,
        "hit_p50_s": 0.002 if hits else None,
        "hit_p99_s": hit_p99,
        "miss_n": misses,
        "miss_p50_s": miss_p50 if misses else None,
        "miss_p99_s": None,
        "swaps": swaps,
        "load_median_s": 0.5 if swaps else None,
        "unload_median_s": 1.2 if swaps else None,
        "swapping_fraction": 0.9 if swaps else 0.0,
    }


def entry(model, total, predicted=None):
    sizes = {"alone_bytes": 100 * MIB, "own_bytes": 90 * MIB, "total_bytes": total * MIB, "pss_bytes": None}
    return {
        "model": model,
        "load_s": 1.0,
        "first_answer_s": 0.02,
        "planned_bytes": predicted and predicted * MIB,
        **sizes,
    }


def pair(victim, disturber, p99, p95=0.002, p50=0.001):
    return {
        "victim": victim,
        "disturber": disturber,
        "victim_rps": 50.0,
        "disturber_rps": disturber and 400.0,
        "n": 1000,
        "p50_s": p50,
        "p95_s": p95,
        "p99_s": p99,
    }


@pytest.fixture
def found():
    return {
        "budget_bytes": 260 * MIB,
        "filled": [entry("digits_1", 100), entry("embedder_2", 180), entry("digits_3", 270, 265)],
        "cells": [cell(2, 900.0, 9000), cell(3, 12.0, 90, 30, swaps=20), cell(3, 11.0, 80, 30, swaps=20)],
        "pairs": [
            pair("digits_1", None, 0.003),
            pair("digits_1", "embedder_2", 0.03),
            pair("embedder_2", None, 0.03),
            pair("embedder_2", "digits_1", 0.033),
        ],
        "fit_error_fraction": 265 / 270 - 1,
    }


def test_throughput_falls_off_the_cliff_and_the_alt_text_tells_why(found):
    chart = fleet.throughput(found)
    (trace,) = chart.figure["data"]
    assert values_of(trace["y"]).tolist() == [900.0, 12.0]  # one point a number of models: the middle repeat
    assert chart.table["hits, %"] == [100.0, 75.0]
    assert "between 2 and 3 models" in chart.alt


def test_hits_and_misses_have_lines_of_their_own_and_what_is_missing_is_none(found):
    chart = fleet.waits(found)
    assert [trace["name"] for trace in chart.figure["data"]] == ["hits p50", "hits p99", "misses p50"]
    misses = values_of(chart.figure["data"][2]["y"])
    assert np.isnan(misses[0])
    assert misses[1] == 2000.0
    assert chart.table["p99, ms"][-1] is None
    assert "misses take 2.00 s at the median with 3 models" in chart.alt


def test_a_tail_with_too_few_answers_is_the_largest_that_was_seen(found):
    level = {"models": 3, "hit_n": 9000, "hit_p50_s": 0.002, "hit_p99_s": 0.005, "hit_max_s": 0.02}
    found["waited"] = [level | {"miss_n": 400, "miss_p50_s": 2.0, "miss_p99_s": None, "miss_max_s": 9.5}]
    chart = fleet.waits(found)
    assert chart.notes == ("p99 of misses needs 459 answers; there are 400 with 3 models, the largest 9.50 s",)
    assert chart.table["largest seen, ms"] == [20.0, 9500.0]
    assert [trace["name"] for trace in chart.figure["data"]] == ["hits p50", "hits p99", "misses p50"]


def test_a_bar_begins_where_the_one_before_ended_and_beyond_the_budget_it_is_hatched(found):
    chart = fleet_memory.waterfall(found)
    bars, predicted = chart.figure["data"]
    assert values_of(bars["base"]).tolist() == [0.0, 100.0, 180.0]
    assert values_of(bars["y"]).tolist() == [100.0, 80.0, 90.0]
    assert bars["marker"]["pattern"]["shape"] == ["", "", "/"]
    assert np.isnan(values_of(predicted["y"])[:2]).all()
    assert values_of(predicted["y"])[2] == 265.0
    assert "3 models take 270 MiB together" in chart.alt


def test_a_plan_says_how_many_would_fit():
    names = ["a_1", "a_2", "a_3", "b_4"]
    chart = fleet_memory.plan(names, [100 * MIB, 150 * MIB, 200 * MIB, None], 160 * MIB)
    assert chart.alt == "2 of 4 models would fit: together they take 150 MiB of the 160 MiB that they may take."
    assert chart.notes == ("b_4 is not predicted: no model of its kind was loaded here before",)
    assert chart.table["together, MiB"] == [100.0, 150.0, 200.0, None]


def test_a_plan_of_models_never_loaded_says_so():
    chart = fleet_memory.plan(["a_1"], [None], None)
    assert chart.figure["data"] == []
    assert "none of these models was loaded here before" in chart.alt


def test_the_matrix_shows_the_tail_that_all_pairs_have(found):
    chart = fleet.matrix(found)
    (trace,) = chart.figure["data"]
    assert trace["y"] == ["digits", "embedder"]
    assert trace["x"] == ["others idle", "digits<br>at work", "embedder<br>at work"]
    assert trace["text"][0] == ["3.0 ms", "not measured", "30.0 ms<br>10.0×"]
    assert chart.figure["layout"]["yaxis"]["title"]["text"] == "p99 of"
    assert "embedder_2 at work raises p99 of digits_1 from 3.0 ms to 30.0 ms" in chart.alt
    found["pairs"][1] |= {"p99_s": None, "n": 400}
    chart = fleet.matrix(found)
    assert chart.figure["layout"]["yaxis"]["title"]["text"] == "p95 of"
    assert chart.notes == ("p95 is shown: p99 needs 459 answers, a pair here has 400",)
    assert "p95" in chart.alt


def test_stays_are_bars_and_swaps_are_hatched():
    stays = [Stay("a_1", 0.0, 1.0, 5.0, 6.0, "evicted"), Stay("b_2", 6.0, 7.0)]
    chart = fleet_memory.tenancy(stays, 10.0, [(2.0, "3 models")])
    loaded, swapping = chart.figure["data"]
    assert (values_of(loaded["base"]).tolist(), values_of(loaded["x"]).tolist()) == ([1.0, 7.0], [4.0, 3.0])
    assert values_of(swapping["x"]).tolist() == [1.0, 1.0, 1.0]
    assert chart.alt == "2 loads of 2 models; once one had to go so that another fitted."


def test_memory_over_the_run_is_thinned_and_has_its_budget():
    t_s = np.arange(5000.0)
    chart = fleet_memory.course(t_s, 100 * MIB + t_s, 200 * MIB)
    assert len(values_of(chart.figure["data"][0]["y"])) <= 600
    assert chart.figure["layout"]["annotations"][0]["text"] == "budget 200 MiB"


def test_models_that_come_and_go_are_marked_on_the_curve():
    """100 MiB from the start, 250 from second 5 on, when b_2 is there; a_1 is gone at 8."""
    t_s = np.arange(10.0)
    size_bytes = np.where(t_s < 5, 100 * MIB, 250 * MIB)
    stays = [Stay("a_1", 0.0, 1.0, 7.5, 8.0, "evicted"), Stay("b_2", 4.0, 5.0)]
    chart = fleet_memory.course(t_s, size_bytes, None, stays=stays)
    _, loaded, unloaded = chart.figure["data"]
    assert (values_of(loaded["x"]).tolist(), values_of(loaded["y"]).tolist()) == ([1.0, 5.0], [100.0, 250.0])
    assert (values_of(unloaded["x"]).tolist(), unloaded["text"]) == ([8.0], ["a_1 evicted"])
    assert chart.alt.endswith("2 loads and 1 unloads are marked.")


@pytest.mark.parametrize(
    "draw", [fleet.throughput, fleet.waits, fleet.matrix, fleet_memory.waterfall], ids=lambda f: f.__name__
)
def test_nothing_measured_is_said(draw):
    chart = draw({"budget_bytes": None, "filled": [], "cells": [], "pairs": [], "fit_error_fraction": None})
    assert chart.figure["data"] == []
    assert chart.notes
