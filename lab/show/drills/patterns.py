"""Drills on ways of serving side by side, and on instances that come and go: from runs of `patterns`, `autoscaling`."""

from __future__ import annotations

import math
from typing import Any

from lab.measure.autoscale_words import ways
from lab.show.charts import autoscale
from lab.show.charts import patterns as patterns_charts
from lab.show.charts.figure import Chart
from lab.show.drills.drill import Choice, Drill, Number, Points, Values
from lab.show.drills.source import Source


def _made(source: Source) -> Chart:
    return patterns_charts.made(source.document["patterns"])


def _promises(source: Source) -> Chart:
    return patterns_charts.promises(source.document["patterns"])


def _over_time(source: Source) -> Chart:
    return autoscale.over_time(_scaled(source)[-1])


def _price(source: Source) -> Chart:
    return autoscale.price(ways(source.document["autoscaling"]))


def _way(source: Source, pattern: str) -> dict[str, Any] | None:
    found = source.document.get("patterns")
    return next((way for way in (found or {}).get("ways", ()) if way["pattern"] == pattern), None)


def _packed(source: Source) -> Values | None:
    online, batch = _way(source, "online"), _way(source, "batch")
    if online is None or batch is None or not online["output_tokens_per_s"] or not batch["output_tokens_per_s"]:
        return None
    return {
        "online": online["label"],
        "online_per_s": online["output_tokens_per_s"],
        "batch_per_s": batch["output_tokens_per_s"],
        "gain_ratio": batch["output_tokens_per_s"] / online["output_tokens_per_s"],
        "cost_fraction": online["output_tokens_per_s"] / batch["output_tokens_per_s"],
        "busy_fraction": online["engine_busy_fraction"],
    }


def _rows(source: Source) -> Values | None:
    batch = _way(source, "batch")
    found = source.document.get("patterns") or {}
    deadline = next((t["deadline_s"] for t in found.get("targets", ()) if t["deadline_s"]), None)
    if batch is None or not batch["throughput_rps"] or deadline is None:
        return None
    rows = batch["throughput_rps"] * deadline
    return {"rate_rps": batch["throughput_rps"], "deadline_s": deadline, "rows_n": round(rows)}


def _suits(source: Source) -> Values | None:
    """A promise of a first token, and who keeps it at the least."""
    found = source.document.get("patterns") or {}
    target = next((t for t in found.get("targets", ()) if "first token" in t["promise"]), None)
    kinds = ("online", "streaming", "batch")
    if target is None or target["suits"] is None:
        return None
    right = target["suits"].partition(",")[0]
    shares = {one["label"].partition(",")[0]: one["share"] for one in reversed(target["ways"])}
    if right not in kinds or any(shares.get(kind) is None for kind in kinds):
        return None
    return {
        "promise": target["promise"],
        "goal_fraction": target["percentile"],
        "right": kinds.index(right),
        **{f"{kind}_fraction": shares[kind] for kind in kinds},
    }


def _scaled(source: Source) -> list[dict[str, Any]]:
    found = source.document.get("autoscaling")
    return [] if found is None else [way for way in ways(found) if way["scales"]]


def _rules(source: Source) -> Values | None:
    """What the rule by concurrency wants at the day's peak, once it knows of it."""
    rules = next(
        (
            level["scaling"]
            for level in source.declared["factors"].get("model", ())
            if isinstance(level, dict) and (level.get("scaling") or {}).get("metric") == "concurrency"
        ),
        None,
    )
    arrival, sleeps = source.declared["workload"]["arrival"], source.declared["workload"]["sleep_s"]
    if rules is None or arrival["kind"] != "steps":
        return None
    peak, mean_s = max(arrival["rates_rps"]), sum(sleeps) / len(sleeps)
    busy = peak * mean_s
    wanted = min(max(math.ceil(busy / rules["target"] - 1e-9), rules.get("least", 1)), rules.get("most", 4))
    return {
        "peak_rps": peak,
        "service_s": mean_s,
        "target": f"{rules['target']:g}",
        "busy": f"{busy:.2f}",
        "most": str(rules.get("most", 4)),
        "wanted_n": wanted,
    }


def _saved(source: Source) -> Values | None:
    found = source.document.get("autoscaling")
    if found is None:
        return None
    every = ways(found)
    fixed = [way for way in every if not way["scales"]]
    scaled = _scaled(source)
    if not fixed or not scaled:
        return None
    always = max(fixed, key=lambda way: way["measured"]["instances_mean"])
    best = min(scaled, key=lambda way: way["measured"]["instances_mean"])
    mean, most = best["measured"]["instances_mean"], always["measured"]["instances_mean"]
    if best["measured"]["share"] is None or always["measured"]["share"] is None:
        return None
    return {
        "way": best["label"],
        "mean": f"{mean:.2f}",
        "always": f"{most:.2f}",
        "saved_fraction": 1 - mean / most,
        "kept_fraction": best["measured"]["share"],
        "always_fraction": always["measured"]["share"],
    }


def _late(source: Source) -> Values | None:
    scaled = [way for way in _scaled(source) if way["up_s"] is not None]
    return {"up_s": scaled[0]["up_s"], "way": scaled[0]["label"]} if scaled else None


DRILLS = (
    Drill(
        "packed", "serving", "batch", ("patterns",), _packed,
        ask="{online} makes {online_per_s} on this machine and keeps its promise. The same requests as a batch job, "
        "which nobody waits for: how many times as many tokens a second?",
        answer=Number("gain_ratio", "times", near=1.25),
        formula="batch ÷ online = {batch_per_s} ÷ {online_per_s} = {gain_ratio}",
        why="Online leaves headroom so that queues stay short; a batch job needs none. An item of it costs "
        "{cost_fraction} of what one costs online, on the same machine.",
        source="the run's blocks: the same requests, once by arrival, once with twice a batch under way",
        then="Your online machines idle at night. Would you run the batch job on them, and what must it never do?",
        chart=_made,
    ),
    Drill(
        "rows_by_then", "serving", "batch", ("patterns",), _rows,
        ask="The batch job ends {rate_rps}. How many rows may its file have, to be done in {deadline_s}?",
        answer=Number("rows_n", "rows"),
        formula="rate × deadline = {rate_rps} × {deadline_s} = {rows_n} rows",
        why="A deadline is a rate: a file twice as long needs a second machine or a second night. What a kill costs is "
        "the shards that were under way, since whole ones are kept.",
        source="the run's batch block",
        then="Half of the rows are five times as long. Does the answer change, and which figure would you plan with?",
    ),
    Drill(
        "who_reads_along", "serving", "streaming", ("patterns",), _suits,
        ask="The promise: {promise}, for {goal_fraction} of requests. Which way of serving keeps it, at the least?",
        answer=Choice(("online", "streaming", "batch"), lambda values: int(values["right"])),
        formula="within it: online {online_fraction}, streaming {streaming_fraction}, batch {batch_fraction}",
        why="An answer that comes whole shows its first token last. A batch job fills the machine, so a row waits for "
        "its turn. Only what is streamed at a load below saturation begins soon and goes on evenly.",
        source="every way's own records held to every promise",
        then="The reader is a program that parses JSON. What does streaming buy it?",
        chart=_promises,
    ),
    Drill(
        "wanted", "serving", "autoscaling", ("autoscaling",), _rules,
        ask="{peak_rps} arrive, each keeps an instance for {service_s}; the autoscaler's target is {target} requests "
        "in the system an instance, at most {most}. How many instances does it want, once it knows?",
        answer=Number("wanted_n", "instances"),
        formula="⌈λS ÷ target⌉ = ⌈{busy} ÷ {target}⌉, at most {most} = {wanted_n}",
        why="Little's law: rate × time in the system is what is in the system. A target below 1 keeps instances idle "
        "for the next arrival; near 1 a queue forms before the rule acts.",
        source="Knative's KPA: desired = ⌈concurrency in the window ÷ target⌉",
        then="Service time doubles after a deployment. What do rules by concurrency and by arrival rate each do?",
        chart=_over_time,
    ),
    Drill(
        "saved", "serving", "autoscaling", ("autoscaling",), _saved,
        ask="As many instances as the peak needs, always: {always}. {way}: {mean} on average over the same day. What "
        "share of the instance-seconds was saved, in %?",
        answer=Number("saved_fraction", "%", scale=100),
        formula="1 − {mean} ÷ {always} = {saved_fraction}; in time {kept_fraction} instead of {always_fraction}",
        why="What is saved is the day's valley; what it costs is the requests that came while instances started. A "
        "flat day saves nothing, a day of bursts shorter than a start loses both.",
        source="the run's scaled blocks; an instance is paid from when it is asked for",
        then="At which ratio of peak to mean would you not bother?",
        chart=_price,
    ),
    Drill(
        "late", "serving", "autoscaling", ("autoscaling",), _late,
        ask="An instance was there {up_s} after it was asked for ({way}). A burst comes out of nothing: why does a "
        "request wait longer than that at worst, and what would you change?",
        answer=Points(
            (
                "the rule acts on a mean over a window, so it learns late; a panic window is shorter",
                "the queue that grew meanwhile must be worked off, at the speed of the new instances",
                "a faster start (kept caches, a forked parent), or idle instances ahead of the burst",
            )
        ),
        formula="delay = window + tick + start ({up_s}) + backlog ÷ spare capacity",
        why="Only one of the parts is the start. Where bursts are known ahead, a schedule beats every rule.",
        source="the run's scaled events",
        then="Scale-to-zero adds one more term. Which, and for whom?",
    ),
)  # fmt: skip
