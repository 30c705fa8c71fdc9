"""Which settings a sweep tries, and what is said of them; no server."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.measure.records import OK, Requests, Window
from lab.measure.summary import Summary, summarize
from lab.run import sweep
from lab.run.catalogue import single
from lab.run.swept import better, swept
from lab.spec import Experiment, set_paths


def experiment() -> Experiment:
    asked = {"arrival": {"kind": "poisson", "rate_rps": 100.0}, "duration_s": 2.0}
    knobs = {"model.instances": (1, 2, 3), "model.precision": ("fp32", "int8"), "workload.seed": (0, 1, 2)}
    return set_paths(single({"name": "digits"}, asked, name="sweep"), [("factors", knobs)])


def tried(order: Any, answers: Any) -> list[int]:
    found, answer = [], None
    while (cell := order.send(answer)) is not None:
        found.append(cell)
        answer = answers(cell)
    return found


@pytest.mark.parametrize("guided", [False, True])
def test_every_combination_is_tried_once_also_where_some_fail(guided: bool) -> None:
    asked = experiment()

    def answers(cell: int) -> dict[str, float | None]:
        levels = asked.cells()[cell].factors
        if levels["workload.seed"] == 2:
            return dict.fromkeys(better(asked))
        instances = float(levels["model.instances"])
        return {"goodput_rps": instances, "latency_p99_s": 1 / instances, "memory_peak_bytes": instances}

    order = sweep._guided(asked, better(asked)) if guided else sweep._grid(asked)
    found = tried(order, answers)
    assert sorted(found) == list(range(18)) and (found == sorted(found)) is not guided


def summary(latency_s: float, memory: float | None, asked: Experiment | None = None) -> Summary:
    due = (np.arange(1000) * 10_000_000).astype(np.int64)
    requests = Requests(due, due, due + int(latency_s * 1e9), np.full(1000, OK, np.uint8))
    found = summarize(requests, window=Window(0, 0, 10_000_000_000), planned=1000, slo=(asked or experiment()).slo)
    return replace(found, memory_peak_bytes=memory)


def test_failed_settings_stay_in_sight_and_a_figure_that_is_missing_judges_nobody() -> None:
    events = [{"kind": "sweep"}, {"kind": "infeasible", "cell": 5, "text": "it does not load"}]
    blocks = [
        SimpleNamespace(cell=0, summary=summary(0.010, 1e8)),
        SimpleNamespace(cell=1, summary=summary(0.020, 1e8)),
        SimpleNamespace(cell=2, summary=summary(0.005, None)),
    ]
    found = swept(experiment(), events, blocks)
    assert found is not None and found["left_out"] == ["memory_peak_bytes"]
    assert [point["frontier"] for point in found["points"]] == [False, False, True, False]
    assert found["points"][3]["why"] == "it does not load"
    assert "1 could not be used" in found["text"] and "14 of 18 were not tried" in found["text"]
    assert "None of them meets" not in found["text"]
    strict = set_paths(experiment(), [("slo.latency_s", 0.001)])
    missed = swept(strict, [{"kind": "sweep"}], [SimpleNamespace(cell=0, summary=summary(0.010, 1e8, strict))])
    assert missed is not None and "None of them meets the objective of 1 ms." in missed["text"]
    assert swept(experiment(), [], blocks) is None
