"""The search for the highest rate against servers whose limit is known, and the frontier against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lab.measure.instruments import near_ceiling
from lab.measure.pareto import frontier, importance
from lab.measure.records import Requests, Window
from lab.measure.search import Found, Probe, Search, judged, told
from lab.measure.summary import summarize
from lab.spec import Slo


def run(search: Search, limit: float, *, client: float = float("inf"), flaky: int = 0) -> Found:
    """A server that meets the objective up to `limit`; every `flaky`-th block is a stall."""
    count = itertools.count(1)
    while (rate := search.next()) is not None:
        number = next(count)
        assert number < 80, "it does not end"
        result = "client" if rate > client else "met" if rate <= limit else "missed"
        if flaky and number % flaky == 0 and result == "met":
            result = "missed"
        search.tell(Probe(rate, result, "", None, None, None))
    return search.found()


@pytest.mark.parametrize("limit", [3.0, 57.0, 100.0, 412.0, 9_000.0])
@pytest.mark.parametrize("first", [50.0, 200.0])
def test_the_limit_is_found_within_five_percent(limit: float, first: float) -> None:
    found = run(Search(first, 20_000.0), limit)
    assert found.highest_rps is not None and found.fails_rps is not None
    assert found.highest_rps <= limit < found.fails_rps <= 1.05 * found.highest_rps


def test_a_server_that_never_saturates_ends_at_the_bound() -> None:
    found = run(Search(100.0, 5_000.0), float("inf"))
    assert (found.ended, found.highest_rps, found.fails_rps) == ("bound", 5_000.0, None)
    assert "At least 5,000 req/s" in told(found, Slo(latency_s=0.02))


def test_where_the_client_is_the_limit_nothing_is_said_of_the_server() -> None:
    found = run(Search(100.0, 50_000.0), float("inf"), client=1_000.0)
    assert found.ended == "client" and found.highest_rps is not None and 900 < found.highest_rps <= 1_000
    assert "load generator is the limit" in told(found, Slo(latency_s=0.02))


@pytest.mark.parametrize(("sent_rps", "result"), [(690.0, "met"), (710.0, "met"), (1_000.0, "client")])
def test_beyond_the_load_generators_ceiling_a_rate_is_not_the_servers(sent_rps: float, result: str) -> None:
    problem = near_ceiling(sent_rps, 1_000.0)
    base = Requests(*(np.arange(700, dtype=np.int64) * 10**6 for _ in range(3)), np.zeros(700, np.uint8))
    summary = summarize(base, window=Window(0, 0, 10**9), planned=700, slo=Slo(latency_s=1.0))
    doubted = replace(summary, problems=(*summary.problems, *([problem] if problem else [])))
    assert judged(doubted, 700.0, Slo(latency_s=1.0)).result == result


def test_a_server_that_meets_it_at_no_rate_ends_too() -> None:
    found = run(Search(100.0, 5_000.0), 0.0)
    assert (found.ended, found.highest_rps) == ("nothing", None)
    assert "No rate meets the objective" in told(found, Slo(latency_s=0.02))


def test_one_stall_does_not_decide() -> None:
    found = run(Search(100.0, 5_000.0), 412.0, flaky=5)
    assert found.highest_rps is not None and 390 < found.highest_rps <= 412
    assert any(p.result == "missed" and p.rate_rps <= 412 for p in found.probes)


def test_the_frontier_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    points = [{"goodput": float(g), "p99": float(p), "memory": float(m)} for g, p, m in rng.integers(0, 6, (60, 3))]

    def beats(a: dict[str, float], b: dict[str, float]) -> bool:
        no_worse = a["goodput"] >= b["goodput"] and a["p99"] <= b["p99"] and a["memory"] <= b["memory"]
        return no_worse and a != b

    expected = [not any(beats(other, point) for other in points) for point in points]
    assert frontier(points, {"goodput": "higher", "p99": "lower", "memory": "lower"}) == expected


def test_what_failed_is_on_no_frontier() -> None:
    points = [{"goodput": None, "p99": 1.0}, {"goodput": 5.0, "p99": 9.0}]
    assert frontier(points, {"goodput": "higher", "p99": "lower"}) == [False, True]
    assert frontier([], {"goodput": "higher"}) == []


def test_importance_is_the_share_of_variance() -> None:
    """Two knobs, fully crossed and additive: shares add up to 1. 10 against 2: 100 / 104 and 4 / 104."""
    settings = [{"a": a, "b": b} for a in (0, 1) for b in (0, 1)]
    values = [10.0 * s["a"] + 2.0 * s["b"] for s in settings]
    found = importance(settings, values)
    assert list(found) == ["a", "b"] and found["a"] == pytest.approx(100 / 104) and found["b"] == pytest.approx(4 / 104)
    assert importance(settings, [1.0, None, None, None]) == {} and importance(settings, [1.0] * 4) == {}
