"""Cells found again by the words for their level and load."""

from typing import Any

from lab.show.grid import Grid, forbidding, middle, why_missing

ON = {"max_batch_size": 32, "max_queue_delay_us": 2000, "preferred_batch_sizes": [], "max_queue_size": None}
LOAD = "workload.arrival.saturation_fraction"


def cell(batching: Any, load: float, repeat: int, value: float | None, role: str = "cell") -> dict[str, Any]:
    summary = {"goodput_rps": value, "notes": {} if value is not None else {"goodput_rps": "needs 7 successes, has 2"}}
    return {"factors": {LOAD: load, "model.batching": batching}, "repeat": repeat, "role": role, "summary": summary}


DOCUMENT: dict[str, Any] = {
    "cells": [
        cell(None, 0.1, 0, 999.0, role="saturation"),
        cell(None, 0.1, 0, 10.0),
        cell(ON, 0.1, 0, 20.0),
        cell(ON, 0.1, 1, 22.0),
        cell(ON, 0.1, 2, 99.0),
        cell(None, 1.2, 0, None),
    ],
    "verdict": {
        "effects": [
            {"level": {"max_batch_size": 32, "max_queue_delay_us": 2000}, "at": {LOAD: 0.1}, "metric": "goodput_rps"},
        ]
    },
}


def test_levels_and_loads_have_words_in_the_order_of_the_experiment() -> None:
    grid = Grid.of(DOCUMENT, "model.batching")
    assert grid.levels == ("batching off", "2 ms delay")
    assert grid.loads == ("10 % of saturation", "120 % of saturation")
    assert grid.baseline == "batching off"
    assert grid.others() == ("2 ms delay",)


def test_saturation_runs_are_no_cells() -> None:
    grid = Grid.of(DOCUMENT, "model.batching")
    assert [s["goodput_rps"] for s in grid.at("batching off", "10 % of saturation")] == [10.0]


def test_of_three_repeats_the_middle_one_counts_and_of_two_their_mean() -> None:
    """20, 22, 99: 22. Of 20 and 22 either would be an extreme: 21."""
    found = Grid.of(DOCUMENT, "model.batching").at("2 ms delay", "10 % of saturation")
    assert middle(found, "goodput_rps") == 22.0
    assert middle(found[:2], "goodput_rps") == 21.0


def pooled(**effect: Any) -> Grid:
    verdict = {"effects": [{**DOCUMENT["verdict"]["effects"][0], **effect}]}
    return Grid.of({**DOCUMENT, "verdict": verdict}, "model.batching")


def test_a_cells_figure_is_the_one_that_the_verdict_pooled() -> None:
    """The verdict says 10.5 against 47 = (20 + 22 + 99) / 3: so do a card and a mark, and none says 22."""
    grid = pooled(a=10.5, b=47.0, verdict="higher")
    assert grid.figure("2 ms delay", "10 % of saturation", "goodput_rps") == 47.0
    for beside in ("2 ms delay", "batching off", None):
        assert grid.figure("batching off", "10 % of saturation", "goodput_rps", beside) == 10.5


def test_what_the_verdict_could_not_compare_is_the_middle_of_the_repeats() -> None:
    grid = pooled(a=10.5, b=47.0, verdict="not comparable")
    assert grid.figure("2 ms delay", "10 % of saturation", "goodput_rps") == 22.0
    assert grid.figure("batching off", "10 % of saturation", "goodput_rps") == 10.0
    assert pooled(a=1.0, b=2.0, verdict="higher").figure("batching off", "120 % of saturation", "goodput_rps") is None


def test_a_missing_figure_has_its_reason() -> None:
    found = Grid.of(DOCUMENT, "model.batching").at("batching off", "120 % of saturation")
    assert middle(found, "goodput_rps") is None
    assert why_missing(found, "goodput_rps") == "needs 7 successes, has 2"


def test_an_effect_is_found_whether_or_not_defaults_were_written_out() -> None:
    grid = Grid.of(DOCUMENT, "model.batching")
    assert grid.effect(DOCUMENT, "2 ms delay", "10 % of saturation", "goodput_rps") is not None
    assert grid.effect(DOCUMENT, "2 ms delay", "120 % of saturation", "goodput_rps") is None
    assert grid.effect(DOCUMENT, "2 ms delay", "10 % of saturation", "latency_p99_s") is None


def test_a_run_that_measured_nothing_has_no_levels() -> None:
    grid = Grid.of({"cells": []}, "model.batching")
    assert grid.levels == () and grid.loads == ()


def test_an_experiment_without_a_second_factor_has_one_load() -> None:
    plain = {"cells": [{"factors": {"model.batching": None}, "role": "cell", "summary": {"notes": {}}}]}
    assert Grid.of(plain, "model.batching").loads == ("this load",)


def test_the_highest_load_that_can_be_compared_is_found_in_any_order() -> None:
    def cell(batching: Any, load: float, **more: Any) -> dict[str, Any]:
        factors = {"model.batching": batching, "workload.arrival.saturation_fraction": load}
        return {"factors": factors, "summary": {"offered_rps": load * 1000, **more}}

    on, text = {"max_batch_size": 8}, "the client was the limit"
    too_hard = {"problems": [{"text": text, "forbids_verdict": True}, {"text": "rough", "forbids_verdict": False}]}
    cells = [cell(level, load) for load in (0.8, 0.1) for level in (None, on)]
    cells += [cell(None, 1.2, **too_hard), cell(on, 1.2, **too_hard)]
    effects = [
        {"level": on, "at": {"workload.arrival.saturation_fraction": load}, "metric": "goodput_rps", "verdict": verdict}
        for load, verdict in ((0.8, "higher"), (0.1, "no detectable difference"), (1.2, "not comparable"))
    ]
    document = {"cells": cells, "verdict": {"effects": effects}}
    grid = Grid.of(document, "model.batching", None)
    fit = grid.comparable(document, "goodput_rps")
    assert set(fit) == {"80 % of saturation", "10 % of saturation"}
    assert grid.highest(fit) == "80 % of saturation"
    assert grid.highest(grid.loads) == "120 % of saturation"
    assert forbidding(grid.at(grid.baseline, "120 % of saturation")) == [text]
    assert forbidding(grid.at(grid.baseline, "80 % of saturation")) == []


# --- what the headline is about ---------------------------------------------------------------------------------

JUDGE = {"primary": "goodput_rps", "expect": "higher"}
LATE = {**ON, "max_queue_delay_us": 5000}


def judged(headline: dict[str, Any] | None, *ratios: tuple[Any, float, float | None]) -> dict[str, Any]:
    """Effects (level, load, ratio; None: not comparable) of batching on two loads."""
    effects = [
        {
            "level": level,
            "at": {LOAD: load},
            "metric": "goodput_rps",
            "ratio": ratio,
            "verdict": "not comparable" if ratio is None else "higher",
        }
        for level, load, ratio in ratios
    ]
    cells = [cell(level, load, 0, 1.0) for load in (0.1, 1.2) for level in (None, ON, LATE)]
    return {"cells": cells, "verdict": {"effects": effects, **({"headline": headline} if headline else {})}}


def test_cards_open_on_what_the_verdict_begins_with() -> None:
    every = [(ON, 0.1, 1.0), (LATE, 0.1, 1.0), (ON, 1.2, 2.0), (LATE, 1.2, 3.0)]
    told = judged({"level": {"max_batch_size": 32, "max_queue_delay_us": 2000}, "at": {LOAD: 0.1}}, *every)
    assert Grid.of(told, "model.batching").headline(told, JUDGE) == ("2 ms delay", "10 % of saturation")


def test_without_its_word_they_open_on_the_best_at_the_highest_load() -> None:
    document = judged(None, (ON, 0.1, 9.0), (LATE, 0.1, 1.0), (ON, 1.2, 2.0), (LATE, 1.2, 3.0))
    assert Grid.of(document, "model.batching").headline(document, JUDGE) == ("5 ms delay", "120 % of saturation")
    alike = judged(None, (ON, 1.2, 2.9), (LATE, 1.2, 3.0))
    assert Grid.of(alike, "model.batching").headline(alike, JUDGE)[0] == "2 ms delay"  # the first that is as good
    fewer = judged(None, (ON, 0.1, 2.0), (LATE, 0.1, 1.0), (ON, 1.2, None), (LATE, 1.2, None))
    assert Grid.of(fewer, "model.batching").headline(fewer, JUDGE) == ("2 ms delay", "10 % of saturation")
    lower = judged(None, (ON, 1.2, 0.8), (LATE, 1.2, 0.5))
    assert Grid.of(lower, "model.batching").headline(lower, {**JUDGE, "expect": "lower"})[0] == "5 ms delay"
    nothing = judged(None)
    assert Grid.of(nothing, "model.batching").headline(nothing, JUDGE) == ("2 ms delay", "120 % of saturation")


def test_of_many_levels_the_one_that_is_told_of_is_among_those_drawn() -> None:
    delays = [None, *({"max_batch_size": 32, "max_queue_delay_us": us} for us in (1000, 2000, 3000, 4000, 5000))]
    grid = Grid.of({**DOCUMENT, "cells": [cell(one, 0.1, 0, 1.0) for one in delays]}, "model.batching")
    assert grid.few() == ("batching off", "3 ms delay", "4 ms delay", "5 ms delay")
    assert grid.few("1 ms delay") == ("batching off", "1 ms delay", "4 ms delay", "5 ms delay")
    assert grid.few("5 ms delay", 2) == ("batching off", "5 ms delay")
    assert grid.few("batching off") == grid.few()
