"""Drills on starts: what a cold start is made of, what remedies buy, and when scale to zero pays."""

from __future__ import annotations

import math
from typing import Any

from lab.measure.cold import is_remedied
from lab.measure.serverless import up_fraction
from lab.measure.start_words import stage_label
from lab.show.charts import cold as cold_charts
from lab.show.charts import serverless as serverless_charts
from lab.show.charts.figure import Chart
from lab.show.drills.drill import Choice, Drill, Number, Points, Values
from lab.show.drills.source import Source


def _cells(source: Source) -> list[dict[str, Any]]:
    found = source.document.get("cold")
    return [one for one in found["cells"] if one["starts"]] if isinstance(found, dict) else []


def _plain(source: Source) -> Values | None:
    cells = _cells(source)
    if not cells or len(cells[0]["stages"]) < 3:
        return None
    plain, total = cells[0], cells[0]["total_s"]["mean"]
    ordered = sorted(plain["stages"].items(), key=lambda item: -item[1]["mean"])
    names = [stage_label(name, plain["start"]) for name, _ in ordered[:3]]
    return {
        "model": plain["model"],
        "total_s": total,
        "stage0": names[0],
        "stage1": names[1],
        "stage2": names[2],
        "largest_s": ordered[0][1]["mean"],
        "largest_fraction": ordered[0][1]["mean"] / total,
        "rest_s": total - ordered[0][1]["mean"],
    }


def _remedied(source: Source) -> Values | None:
    found = _plain(source)
    other = next((one for one in _cells(source) if is_remedied(one["start"])), None)
    if found is None or other is None or other["parent_bytes"] is None:
        return None
    left = other["total_s"]["mean"]
    return {**found, "left_s": left, "left_ratio": left / found["total_s"], "parent_bytes": other["parent_bytes"],
            "worker_bytes": other["memory_bytes"]}  # fmt: skip


def _gap(source: Source) -> Values | None:
    """A Poisson stream whose mean gap is twice the idle timeout."""
    found = source.document.get("serverless")
    if not isinstance(found, dict) or not found.get("how") or not found["cold_s"]["mean"]:
        return None
    idle = found["how"]["idle_s"]
    gap = 2 * idle
    share = math.exp(-idle / gap)
    start, warm = found["cold_s"]["mean"], found["service_s"]
    return {"idle_s": float(idle), "gap_s": float(gap), "cold_fraction": share, "start_s": start, "warm_s": warm,
            "mean_s": share * start + (warm or 0.0)}  # fmt: skip


def _up(source: Source) -> Values | None:
    found = source.document.get("serverless")
    if not isinstance(found, dict) or not found.get("curve"):
        return None
    first = found["curve"][0]
    up = up_fraction(first)
    return {"up_fraction": up, "factor_ratio": 1 / up, "rate_rps": first["rate_rps"], "idle_s": found["how"]["idle_s"],
            "cold_fraction": first["cold_fraction"]}  # fmt: skip


def waterfall(source: Source) -> Chart:
    found = source.document["cold"]
    return cold_charts.waterfall(*cold_charts.pair(found, cold_charts.models(found)[0]))


def shares(source: Source) -> Chart:
    return serverless_charts.cold_share(source.document["serverless"])


DRILLS = (
    Drill(
        "cold_stages", "serving", "cold start", ("cold_start",), _plain,
        ask="{model} takes {total_s} from no process to its first answer, with nothing kept. Which stage takes most of "
        "it?",
        answer=Choice(("{stage1}", "{stage0}", "{stage2}"), lambda values: 1),
        formula="{stage0}: {largest_s} of {total_s} = {largest_fraction}",
        why="Take it apart before you mend it: without that stage {rest_s} would be left, however fast the rest gets.",
        source="the run's own stages, stamped by the process",
        then="Which of these would a snapshot of the whole process save?",
        chart=waterfall,
    ),
    Drill(
        "cold_remedies", "serving", "cold start", ("cold_start",), _remedied,
        ask="Plain it takes {total_s}. With code that is kept, weights that are mapped and a parent that forks: what "
        "share of that is left, in %?",
        answer=Number("left_ratio", "%", scale=100, near=2.0),
        formula="{left_s} ÷ {total_s} = {left_ratio}",
        why="Nothing was computed faster: it had been done before. The price is {parent_bytes} that the parent holds "
        "while nothing runs; a worker holds {worker_bytes}.",
        source="the run's own starts, plain and with remedies",
        then="When is keeping one worker warm the better buy?",
        chart=waterfall,
    ),
    Drill(
        "cold_share", "serving", "serverless", ("serverless",), _gap,
        ask="Requests come at random, one every {gap_s} on average; a worker leaves after {idle_s} without one. What "
        "share of them is cold, in %?",
        answer=Number("cold_fraction", "%", scale=100, near=1.2),
        formula="P(gap > idle) = exp(−idle ÷ gap) = exp(−{idle_s} ÷ {gap_s}) = {cold_fraction}",
        why="A mean gap of twice the timeout is far from “all cold”: random requests come in bunches. On average a "
        "request then takes {mean_s} ({start_s} to start, {warm_s} to answer).",
        source="exponential gaps; the run's own cold start and warm answer",
        then="What does it become when each of your users has a worker of their own?",
        chart=shares,
    ),
    Drill(
        "scale_to_zero", "serving", "serverless", ("serverless",), _up,
        ask="At one request a minute a worker is up {up_fraction} of the time (idle timeout {idle_s}). A second by the "
        "second may cost how many times that of an always-on machine before scale to zero stops paying?",
        answer=Number("factor_ratio", "times", near=1.3),
        formula="1 ÷ share of time up = 1 ÷ {up_fraction} = {factor_ratio}",
        why="Seconds are paid while it starts, answers and waits for another request, whatever they are used for. And "
        "{cold_fraction} of the users wait for a start: the bill does not show that.",
        source="modelled from the run's own times (lab/measure/serverless_sim.py)",
        then="Halve the idle timeout: what happens to the bill, and to the p99?",
        chart=shares,
    ),
    Drill(
        "scale_to_zero_when", "serving", "serverless", ("serverless",), _up,
        ask="A team wants to move its model to a platform that scales to zero. What do you ask?",
        answer=Points((
            "How the requests come: rate, bunches, nights. At one a minute {cold_fraction} were cold here.",
            "What a cold user may wait, as a percentile; and whether something can be shown meanwhile.",
            "Whose seconds are billed: start and idle time too, or processing alone.",
            "How large the image and the weights are, and what is kept between starts.",
            "From which rate an always-on machine is cheaper, and how far the traffic is from it.",
        )),
        formula="cost = price × (start + busy + idle); always on = price × all hours",
        why="Scale to zero trades the tail for the bill: worth it for rare, patient traffic.",
        source="the page Cold start & serverless",
        then="And if they keep one worker warm?",
    ),
)  # fmt: skip
