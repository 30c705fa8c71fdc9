"""Two settings beside each other: what they are called, what forbids a verdict, and the sentence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lab.measure.compare import Effect
from lab.measure.phrases import interval_phrase, latency_phrase, ratio_phrase
from lab.measure.records import OK, REFUSED, Requests, Window
from lab.measure.sides import Side, differences, doubts, identical, labels
from lab.measure.summary import summarize
from lab.measure.versus import floor_fraction, metrics, versus
from lab.spec import ModelSpec, Slo, Workload, parse

SECOND = 1_000_000_000
SLO = Slo(latency_s=0.02)
MACHINE = {"cpu": "AMD EPYC", "cores": 2, "gpus": {"found": {}, "reason": "no GPU"}, "load_average_before": 0.1}


def side(
    name: str,
    latency_s: float = 0.005,
    *,
    rate: float = 200.0,
    refused: float = 0.0,
    seconds: float = 20.0,
    batching: dict[str, Any] | None = None,
    **more: Any,
) -> Side:
    """A setting that answers everything after about `latency_s`, or at once with a refusal."""
    rng = np.random.default_rng(3)
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds)))
    due_ns = (due[due < seconds] * SECOND).astype(np.int64)
    took_ns = (rng.gamma(20, latency_s / 20, len(due_ns)) * SECOND).astype(np.int64)
    turned_away = rng.random(len(due_ns)) < refused
    took_ns[turned_away] = 100_000
    outcome = np.where(turned_away, REFUSED, OK).astype(np.uint8)
    requests = Requests(due_ns, due_ns, due_ns + took_ns, outcome)
    window = Window(0, 0, int(seconds * SECOND))
    model = parse(ModelSpec, {"name": "digits", "batching": batching}).model_dump(mode="json")
    arrival = {"kind": "poisson", "rate_rps": rate}
    workload = parse(Workload, {"arrival": arrival, "duration_s": seconds}).model_dump(mode="json")
    summary = summarize(requests, window=window, planned=len(requests), slo=SLO).to_dict()
    return Side(
        **{
            "name": name,
            "run_id": name,
            "cell": 0,
            "state": "done",
            "quick": False,
            "created_utc": "",
            "model": model,
            "workload": workload,
            "slo": SLO,
            "environment": MACHINE,
            "blocks": [(requests, window)],
            "summaries": [summary],
            **more,
        }
    )


ON = {"max_batch_size": 32, "max_queue_delay_us": 2000}


def test_the_field_that_differs_comes_first_and_names_the_sides() -> None:
    sides = [side("run-a"), side("run-b", batching=ON)]
    assert differences(sides)[0].path == "model.batching"
    assert [d.path for d in differences(sides) if d.differs] == ["model.batching"]
    assert labels(sides) == ["A: batching off", "B: 2 ms delay"]


def test_names_are_short_and_told_apart() -> None:
    wide = [side("run-a", batching={**ON, "max_batch_size": n}) for n in (8, 16)]
    assert len(set(labels(wide))) == 2
    assert all(len(label) <= 40 for label in labels(wide))


def test_a_way_to_round_names_only_what_is_rounded() -> None:
    kinds = (("bf16", "rtn"), ("int8", "rtn"), ("int4", "gptq"))
    models = [parse(ModelSpec, {"name": "llm", "precision": p, "quantizer": q}) for p, q in kinds]
    sides = [replace(side(p.precision), model=p.model_dump(mode="json")) for p in models]
    assert labels(sides) == ["A: bf16", "B: int8", "C: int4, GPTQ"]
    assert labels(sides, 7)[2] == "C: int…"  # whole where there is room, cut where there is not
    told = {d.path: d.values for d in differences(sides) if d.differs}
    assert told["model.quantizer"] == (None, None, "gptq")
    assert "model.quantizer" not in {d.path for d in differences(sides[:2])}


def test_a_length_tells_sides_apart_only_where_nothing_else_does() -> None:
    assert labels([side("run-a"), side("run-b", seconds=10.0, batching=ON)])[1] == "B: 2 ms delay"
    assert labels([side("run-a"), side("run-b", seconds=10.0)])[1] == "B: duration 10.0 s"


def test_equal_runs_say_so_and_find_no_difference() -> None:
    a, b = side("run-a"), side("run-b")
    found = versus(a, b, "A", "B")
    assert identical(a, b) and found.identical
    assert found.text.startswith("Both are the same in every setting, so a difference between them is noise.")
    assert "No detectable difference between B and A in goodput within 20 ms" in found.text
    assert "would have been found" in found.text
    assert labels([a, b]) == ["A: the same", "B: the same"]


COMMIT, OTHER = "0" * 40, "1" * 40
CLEAN = {"commit": COMMIT, "dirty": False, "changes": None, "version": None}


@pytest.mark.parametrize(
    ("first", "second", "said", "called"),
    [
        ({}, {"commit": OTHER}, "The lab itself was another one: 000000000000 and 111111111111.", "B: 1111111"),
        ({}, {"dirty": True, "changes": "3f09ab12"}, "uncommitted changes in one of", "B: 0000000 with changes 3f09ab"),
        (
            {"dirty": True, "changes": "3f09ab12"},
            {"dirty": True, "changes": "77aa"},
            "with different uncommitted changes",
            "B: 0000000 with changes 77aa",
        ),
        ({"dirty": True}, {"dirty": True}, "both with uncommitted changes that were not kept", "B: the same"),
        ({}, {"commit": None, "dirty": None}, "another one: 000000000000 and unknown code", "B: unknown code"),
    ],
)
def test_other_code_is_told_and_is_no_noise(first: Any, second: Any, said: str, called: str) -> None:
    a, b = (
        side(name, environment={**MACHINE, "lab": {**CLEAN, **changed}})
        for name, changed in (("run-a", first), ("run-b", second))
    )
    found = versus(a, b, "A", "B")
    assert sum(said in text for text in found.read_with) == 1
    assert not found.identical and "is noise" not in found.text
    assert labels([a, b])[1] == called


def test_equal_changes_to_one_commit_are_the_same_code() -> None:
    changed = {**MACHINE, "lab": {**CLEAN, "dirty": True, "changes": "3f09ab12"}}
    a, b = side("run-a", environment=changed), side("run-b", environment=changed)
    assert identical(a, b) and not any("lab" in text for text in doubts(a, b)[1])


def test_other_versions_are_no_noise_either() -> None:
    b = side("run-b", environment={**MACHINE, "packages": {"torch": "2.14"}})
    assert not identical(side("run-a"), b) and labels([b]) == ["A: digits"]


def test_one_run_beside_itself_is_no_comparison() -> None:
    a = side("run-a")
    found = versus(a, a, "A", "B")
    assert found.effects == {}
    assert found.text == "This is one measurement beside itself: there is nothing to compare."


def test_a_slower_setting_is_called_slower_with_its_interval() -> None:
    found = versus(side("run-a"), side("run-b", latency_s=0.010, batching=ON), "A: off", "B: on")
    assert found.effects["latency_p50_s"].verdict == "higher"
    assert found.effects["latency_p50_s"].ratio == pytest.approx(2.0, rel=0.05)
    assert "adds 4." in found.text or "adds 5." in found.text


def test_whoever_turns_half_away_at_once_is_not_called_faster() -> None:
    """T11: A refuses half of what it is asked, B queues everyone and is slower for it."""
    refusing, queueing = side("run-a", refused=0.5), side("run-b", latency_s=0.012)
    found = versus(queueing, refusing, "A: queues", "B: refuses")
    assert found.effects["latency_p50_s"].verdict == "not comparable"
    assert "unequal completed load" in found.text
    assert "of its requests failed, against 0 %" in found.text
    assert "the goodput within 20 ms" in found.text and found.effects["goodput_rps"].verdict == "lower"


def test_sides_that_were_asked_for_different_rates_are_compared_by_share() -> None:
    a, b = side("run-a", rate=200), side("run-b", rate=400)
    found = versus(a, b, "A", "B")
    assert metrics(a, b)[0] == "slo_attainment_fraction"
    assert found.text.startswith("They were asked differently")
    assert any("asked differently" in text for text in found.read_with)


def test_runs_of_two_machines_get_no_verdict() -> None:
    b = side("run-b", environment={**MACHINE, "cores": 64})
    found = versus(side("run-a"), b, "A", "B")
    assert found.text.startswith("No verdict on B: they were measured on different machines (cores 2 and 64)")


def test_another_load_average_is_no_other_machine() -> None:
    assert doubts(side("run-a"), side("run-b", environment={**MACHINE, "load_average_before": 2.0}))[0] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"state": "cancelled"}, "run-b is cancelled: only a part of it was measured."),
        ({"changed": True}, "Settings of run-b were changed while it ran"),
        ({"quick": True}, "A quick run is rough"),
        ({"slo": Slo(latency_s=0.05)}, "Their objectives differ"),
    ],
)
def test_what_a_comparison_must_be_read_with(more: dict[str, Any], said: str) -> None:
    read_with = doubts(side("run-a"), side("run-b", **more))[1]
    assert any(text.startswith(said) for text in read_with)
    assert any("not measured in turns" in text for text in read_with)


def test_a_side_without_records_forbids_a_verdict() -> None:
    empty = replace(side("run-b"), blocks=[], summaries=[])
    found = versus(side("run-a"), empty, "A", "B")
    assert found.effects == {} and "no measured block" in found.text


def test_the_noise_floor_is_half_the_interval() -> None:
    effect = versus(side("run-a"), side("run-b"), "A", "B").effects["goodput_rps"]
    assert effect.ratio and effect.ci_high
    assert floor_fraction(effect) == pytest.approx(effect.ci_high / effect.ratio - 1)
    assert 0.005 < (floor_fraction(effect) or 0) < 0.2


def test_what_a_format_costs_in_quality_stands_beside_its_speed() -> None:
    read_with = doubts(side("run-a"), side("run-b", quality="cloze: 3 % fewer."))[1]
    assert "run-b answers otherwise than its baseline: cloze: 3 % fewer." in read_with


def test_an_interval_that_tells_no_size_tells_its_bound() -> None:
    wide = Effect("latency_p50_s", 0.0036, 2.88, 803.0, 13.0, 49_676.0, 2.876, 0.0435, 177.0, "higher", "")
    assert ratio_phrase(wide) == "at least 13×"
    assert interval_phrase(wide) == " (at least 13×)"
    assert latency_phrase([wide]) == "adds at least 43.5 ms to p50"
    less = replace(wide, ratio=1 / 803, ci_low=1 / 49_676, ci_high=0.08, verdict="lower")
    assert ratio_phrase(less) == "at most 0.08×"
    untold = replace(wide, ratio=2.0, ci_low=0.05, ci_high=80.0, verdict="no detectable difference")
    assert ratio_phrase(untold) == "2.0× (too few samples to bound it)"
    assert ratio_phrase(replace(wide, ratio=2.6, ci_low=2.4, ci_high=2.8)) == "2.6× (2.4 to 2.8×)"
