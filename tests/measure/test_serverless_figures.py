"""Scale to zero made sense of: shares and times from known records, costs and the break-even by paper arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lab.errors import InputError
from lab.measure import billing, break_even, serverless
from lab.measure.billing import Billing
from lab.measure.records import ERROR, OK, REQUESTS
from lab.measure.serverless_sim import Rules, simulate
from lab.run import billing as shipped
from lab.run import prices

SECOND = 1_000_000_000
HOW = {"idle_s": 5.0, "concurrency": 2, "max_workers": 1, "keep_warm": 0}


def run() -> tuple[list[dict[str, Any]], pa.Table, list[dict[str, Any]]]:
    """A block of 60 s from 1,000 s on: four requests, of which the first waited 2 s for a start and one failed."""
    at = 1_000 * SECOND
    due = [at + s * SECOND for s in (0, 1, 2, 30)]
    took = [2.5, 0.5, 0.5, 0.1]
    rows = {
        "block": [0] * 4, "request": [0, 1, 2, 3], "due_ns": due, "sent_ns": due,
        "done_ns": [d + int(t * SECOND) for d, t in zip(due, took, strict=True)],
        "outcome": [OK, OK, OK, ERROR], "detail": [None, None, None, "gone"],
    }  # fmt: skip
    columns = [pa.array(rows.get(field.name, [None] * 4), field.type) for field in REQUESTS]
    workload = {"arrival": {"kind": "poisson", "rate_rps": 0.05}}
    events = [
        {"kind": "serverless", "t_ns": at, "enforced_by": "rlimit"},
        {"kind": "block_start", "t_ns": at, "block": 0, "cell": 0, "repeat": 0, "workload": workload,
         "start_ns": at, "measured_from_ns": at, "end_ns": at + 60 * SECOND},
        {"kind": "worker_ready", "t_ns": at + 2 * SECOND, "worker": 1, "seconds": 2.0,
         "stages": [["process", 0.5], ["convert", 1.5]], "pid": 1},
        {"kind": "waited", "t_ns": at + 2 * SECOND, "block": 0, "request": 0, "cold": True, "waited_ns": 2 * SECOND},
        {"kind": "worker_ended", "t_ns": at + 8 * SECOND, "worker": 1, "why": "idle", "up_s": 8.0, "asked_ns": at},
        {"kind": "block_end", "t_ns": at + 60 * SECOND, "block": 0, "planned": 4, "end_ns": at + 60 * SECOND},
    ]  # fmt: skip
    return events, pa.Table.from_arrays(columns, schema=REQUESTS), [{"factors": {}, "serverless": HOW}]


def test_cold_requests_their_wait_and_the_seconds_that_a_worker_was_up() -> None:
    found = serverless.serverless(*run())
    (block,) = found["blocks"]
    assert (block["requests"], block["answered"], block["cold"]) == (4, 3, 1)
    assert block["cold_fraction"] == pytest.approx(1 / 3)
    assert block["cold_mean_s"] == pytest.approx(2.5) and block["warm_p50_s"] == pytest.approx(0.5)
    assert block["up_s"] == pytest.approx(8.0) and block["p99_s"] is None
    assert found["cold_s"]["mean"] == 2.0 and found["stages"] == {"process": 0.5, "convert": 1.5}
    assert found["curve"][0]["rate_rps"] == pytest.approx(1 / 60)
    assert found["curve"][-1]["rate_rps"] == pytest.approx(0.8 * 2 / 0.5)


def test_repeats_of_a_rate_are_taken_together_so_that_there_is_a_tail() -> None:
    def block(rate: float, latency_s: float, cold: int) -> dict[str, Any]:
        ran = simulate(20 * np.arange(300.0), [latency_s], [1.0], Rules(0.5))  # each is cold
        return {"rate_rps": rate, "answered": 300, "cold": cold, "_latency_s": np.full(300, latency_s),
                "_simulated": ran}  # fmt: skip

    slow, fast = serverless._rates([block(4.0, 1.0, 30), block(0.5, 9.0, 300), block(4.0, 3.0, 0)])
    assert (slow["rate_rps"], slow["repeats"], slow["cold_fraction"], slow["p99_s"]) == (0.5, 1, 1.0, None)
    assert (fast["repeats"], fast["answered"], fast["cold_fraction"]) == (2, 600, 0.05)
    assert (fast["p50_s"], fast["p99_s"]) == (2.0, 3.0)
    assert fast["modelled"]["cold_fraction"] == 1.0 and fast["modelled"]["p99_s"] == pytest.approx(4.0)


def test_what_is_modelled_says_so_and_a_simulation_that_is_off_is_told() -> None:
    found = serverless.serverless(*run())
    assert "Modelled at one request a minute" in serverless.text(found)
    assert any("modelled from this run's own times" in text for text in serverless.problems(found))
    found["blocks"][0]["modelled"]["cold_fraction"] = 0.7
    assert not any("the simulation says" in text for text in serverless.problems(found))  # one request of three
    found["blocks"][0]["answered"] = 30
    assert any("the simulation says 70 % cold, measured were 33.3 %" in text for text in serverless.problems(found))


def test_a_run_whose_workers_never_came_up_says_why() -> None:
    events, requests, cells = run()
    kept = [e for e in events if e["kind"] in ("serverless", "block_start", "block_end")]
    failed = {"kind": "worker_failed", "t_ns": 1, "worker": 1, "why": "memory", "text": "killed: memory limit: 1 of 2"}
    found = serverless.serverless([*kept, failed], requests.slice(0, 0), cells)
    assert found["curve"] == [] and serverless.text(found).startswith("Nothing was measured: killed: memory limit")


def rule(*, start: bool, idle: bool, step_s: float = 0.0) -> Billing:
    return Billing("somebody", "kind", start, idle, step_s, 5.0, "openai", "r", "s", "2026-01-01")


def test_whose_seconds_are_paid() -> None:
    ran = simulate([0.0, 4.0, 20.0], [1.0], [2.0], Rules(3.0), span_s=30.0)  # start 4, busy 3, idle 7, two lives
    assert rule(start=True, idle=True).paid_s(ran) == 14
    assert rule(start=True, idle=False).paid_s(ran) == 7
    assert rule(start=False, idle=False).paid_s(ran) == 3
    assert rule(start=False, idle=False, step_s=1.0).paid_s(ran) == 4  # 1.5 s a life becomes 2 s
    assert rule(start=True, idle=True, step_s=60.0).paid_s(ran) == 120


def point(rate: float, up: float) -> dict[str, float]:
    return {"rate_rps": rate, "start_s_per_h": 0.0, "busy_s_per_h": 3600 * up, "idle_s_per_h": 0.0, "starts_per_h": 0.0}


def test_the_rate_at_which_an_always_on_machine_becomes_cheaper() -> None:
    """2 USD an hour by the second, 1 USD always on: at half of the time up. Log-linear between 1 and 100: at 10."""
    points = [point(1.0, 0.25), point(100.0, 0.75)]
    assert break_even.usd_per_hour(points[0], 2.0, rule(start=True, idle=True)) == pytest.approx(0.5)
    assert break_even.break_even_rps(points, 2.0, rule(start=True, idle=True), 1.0) == pytest.approx(10.0)
    assert break_even.break_even_rps(points, 2.0, rule(start=True, idle=True), 5.0) is None
    assert break_even.break_even_rps(points, 2.0, rule(start=True, idle=True), 0.1) is None


def test_a_break_even_has_the_range_by_which_the_simulation_was_off() -> None:
    """Workers were up half as long as simulated in one block, as long in another: half the cost is reached later."""
    points = [point(1.0, 0.25), point(100.0, 0.75), point(10_000.0, 1.25)]
    blocks = [{"up_s": 5.0, "modelled": {"up_s": 10.0}}, {"up_s": 10.0, "modelled": {"up_s": 10.0}}]
    every = rule(start=True, idle=True)
    found = {"curve": points, "blocks": blocks}
    assert break_even.break_even_range(found, 2.0, every, 1.0) == pytest.approx([10.0, 1000.0])
    assert break_even.even_label(break_even.break_even_range(found, 2.0, every, 1.0)) == "10.0 to 1,000 req/s"
    found["blocks"] = [{"up_s": 1.0, "modelled": {"up_s": 10.0}}, {"up_s": 0.0, "modelled": None}]
    assert break_even.break_even_range(found, 2.0, every, 1.0) == [pytest.approx(10.0), None]
    assert break_even.even_label([10.0, None]) == "10.0 req/s or none" and break_even.even_label([None]) == "none"
    assert break_even.even_label([0.5, 0.25]) == "15 to 30 a minute"
    assert len(break_even.break_even_range({"curve": points, "blocks": []}, 2.0, every, 1.0)) == 1


def test_every_rule_that_ships_has_its_source_and_a_price_to_go_with_it() -> None:
    providers = {price.provider for price in prices.catalogue() if price.billing == "second"}
    assert {rule.provider for rule in shipped.rules()} == {"modal", "runpod", "replicate"} <= providers
    assert all(rule.source and rule.as_of and rule.form in ("openai", "replicate") for rule in shipped.rules())
    assert shipped.find("runpod-flex").step_s == 1
    with pytest.raises(InputError, match='did you mean "runpod-flex"'):
        shipped.find("runpod-flexx")


@pytest.mark.parametrize("row", ["a,b,maybe,yes,0,0,openai,r,s,2026", "a,b,yes,yes,-1,0,openai,r,s,2026", "a,b"])
def test_a_rule_that_cannot_be_is_refused(row: str) -> None:
    with pytest.raises(InputError, match="billing row 1"):
        billing.read(",".join(billing.FIELDS) + "\n" + row + "\n")
