"""What the rollout's charts draw of what the guard wrote, and that they say it in words and in a table too."""

from __future__ import annotations

import numpy as np

from lab.measure.guard import Guard, Seen
from lab.show.charts.figure import values_of
from lab.show.charts.rollout import MOST, comparisons, traffic
from lab.spec import Tolerance


def looked(errors: int) -> list[dict[str, object]]:
    guard, random = Guard(Tolerance()), np.random.default_rng(0)
    for _ in range(60):
        guard.see(
            0.25, Seen(75, 0, random.lognormal(-3, 0.5, 75)), Seen(25, errors, random.lognormal(-3, 0.5, 25 - errors))
        )
    return [c.to_dict() for c in guard.verdict(last=True).comparisons]


def test_harm_is_drawn_in_units_of_what_is_tolerated() -> None:
    chart = comparisons(looked(errors=1))
    marks = [trace for trace in chart.figure["data"] if trace["mode"] == "markers"]
    by_name = {trace["name"]: float(values_of(trace["x"])[0]) for trace in marks}
    assert by_name["Errors: worse"] == MOST  # 4 points, of half a point tolerated: at the edge
    assert "Errors" in chart.alt and "worse" in chart.alt
    assert chart.table["effect"][0] == "+4.00 points" and chart.table["verdict"][0] == "worse"
    lines = [values_of(trace["x"]) for trace in chart.figure["data"] if trace["mode"] == "lines"]
    assert all(-MOST <= low <= high <= MOST for low, high in lines)


def test_nothing_looked_at_says_so() -> None:
    chart = comparisons([c.to_dict() for c in Guard(Tolerance()).verdict(last=True).comparisons])
    assert "not measured" in chart.alt and not chart.figure["data"]
    assert "no traffic" in traffic([], "2").alt


def test_traffic_is_a_step_at_each_decision() -> None:
    audit = [
        {"utc": "2026-11-30T10:00:00.000+00:00", "action": "begin", "by": "page", "after": {"1": 0.99, "2": 0.01}},
        {"utc": "2026-11-30T10:02:00.000+00:00", "action": "advance", "by": "guard", "after": {"1": 0.95, "2": 0.05}},
        {"utc": "2026-11-30T10:03:00.000+00:00", "action": "roll_back", "by": "guard", "after": {"1": 1.0, "2": 0.0}},
    ]
    chart = traffic(audit, "2")
    (trace,) = chart.figure["data"]
    assert values_of(trace["x"])[:3].tolist() == [0, 2, 3] and values_of(trace["y"])[:3].tolist() == [1, 5, 0]
    assert chart.table["what"] == ["begin", "advance", "roll_back"] and "0 % now" in chart.alt
