"""Drills on changing what serves: registry, canary, blue and green."""

from __future__ import annotations

import math

from lab.measure.percentile import needed
from lab.show.drills.drill import Choice, Drill, Number, Points, Values
from lab.show.drills.measures import ANY
from lab.show.drills.source import Source

SHARE = 0.05
USUAL, WORSE = 0.01, 0.02


def _tail(source: Source) -> Values | None:
    found = source.some("throughput_rps", "latency_p99_s")
    return found and {**found, "needed_n": needed(0.99), "share_fraction": SHARE,
                      "after_s": needed(0.99) / (SHARE * found["throughput_rps"])}  # fmt: skip


def _errors(source: Source) -> Values | None:
    found = source.some("throughput_rps")
    if found is None:
        return None
    mean = (USUAL + WORSE) / 2
    each = math.ceil(16 * mean * (1 - mean) / (WORSE - USUAL) ** 2)
    return {**found, "usual_fraction": USUAL, "worse_fraction": WORSE, "share_fraction": SHARE, "each_n": each,
            "after_s": each / (SHARE * found["throughput_rps"])}  # fmt: skip


def _both(source: Source) -> Values | None:
    found = source.some("memory_peak_bytes")
    return found and {**found, "model": source.model, "both_bytes": 2 * found["memory_peak_bytes"]}


def _back(source: Source) -> Values | None:
    found = source.some("throughput_rps")
    if found is None or not source.load_s:
        return None
    return {**found, "model": source.model, "ready_s": source.load_s, "lost_n": round(source.load_s *
            found["throughput_rps"])}  # fmt: skip


def _entry(source: Source) -> Values | None:
    environment, declared = source.document["environment"], source.declared
    packages = environment.get("packages") or {}
    if not environment.get("triton") or not packages:
        return None
    return {"triton": str(environment["triton"]), "numpy": str(packages.get("numpy", "its version")),
            "precision": str(declared["model"]["precision"]), "seed": str(declared["workload"]["seed"]),
            "model": source.model, "run": source.run_id}  # fmt: skip


def _peek(source: Source) -> Values | None:
    found = _tail(source)
    return found and {**found, "false_fraction": 1 - 0.95**10}


DRILLS = (
    Drill(
        "canary_tail", "change", "canary", ANY, _tail,
        ask="A canary gets {share_fraction} of {throughput_rps} ({cell}). How many seconds until its p99 may be "
        "quoted at all?",
        answer=Number("after_s", "s"),
        formula="{needed_n} ÷ ({share_fraction} × {throughput_rps}) = {after_s}",
        why="Until then its “p99” is the slowest request so far. A guard that decides earlier decides on something "
        "else, and should say on what.",
        source="MLPerf LoadGen's early stopping: 459 samples",
        then="Traffic is a hundredth of that. What would you watch instead of p99?",
    ),
    Drill(
        "canary_errors", "change", "canary", ANY, _errors,
        ask="Errors are at {usual_fraction}; you want to notice {worse_fraction} with 80 % power. With "
        "{share_fraction} of {throughput_rps}, how many seconds does the canary take?",
        answer=Number("after_s", "s", near=1.3),
        formula="n ≈ 16 p(1 − p) ÷ d² = {each_n} a side; {each_n} ÷ ({share_fraction} × {throughput_rps}) = {after_s}",
        why="Rare errors need many requests: half the difference takes four times as many. The small side is the "
        "canary, so its share decides how long you are exposed.",
        source="R. Lehr, Sixteen S-squared over D-squared, Statistics in Medicine 11, 1992",
        then="Why not give the canary half of the traffic, then?",
    ),
    Drill(
        "canary_peek", "change", "canary", ANY, _peek,
        ask="A guard looks at the canary every minute for ten minutes, each time with a 5 % test, and rolls back at "
        "the first alarm. The canary is as good as the old one. How many such canaries in a hundred are rolled back, "
        "about, if the looks were independent?",
        answer=Number("false_fraction", "in a hundred", scale=100, near=1.2),
        formula="1 − 0.95¹⁰ = {false_fraction}",
        why="Looks at growing data are not independent, so it is less, yet far above 5. A test that may be read at any "
        "time (always valid, sequential) keeps its promise while you watch.",
        source="P. Armitage et al., Repeated Significance Tests on Accumulating Data, JRSS A 132, 1969",
        then="What does the sequential test pay for that?",
    ),
    Drill(
        "canary_or", "change", "canary", ANY, _both,
        ask="The new version needs {memory_peak_bytes} like the old one, and the device has room for one of them. "
        "Which rollout is left?",
        answer=Choice(
            (
                "Blue/green on this device: load both, switch, unload.",
                "A canary on this device with 5 % of the traffic.",
                "Canary or green on another replica, and this one drained and replaced after it.",
            ),
            lambda values: 2,
        ),
        formula="two versions at once = 2 × {memory_peak_bytes} = {both_bytes}",
        why="Blue/green and canary both hold two versions at a time. Without room, a reload in place is an outage as "
        "long as the load, and its way back is as long again.",
        source="the run's own peak memory",
        then="Which cheaper evidence can you have before the first real request?",
    ),
    Drill(
        "blue_green", "change", "blue/green", ANY, _both,
        ask="Blue serves {model} and peaks at {memory_peak_bytes} ({cell}); green is loaded beside it before the "
        "switch. How many MiB must be there?",
        answer=Number("both_bytes", "MiB", scale=1 / 2**20),
        formula="2 × {memory_peak_bytes} = {both_bytes}",
        why="Less where pages or weights are shared, more while green warms up under shadow traffic. That is the "
        "price of a switch, and of a way back, that takes no time.",
        source="the run's own peak memory",
        then="The switch is done. When do you unload blue?",
    ),
    Drill(
        "reload", "change", "blue/green", ANY, _back,
        ask="Instead, {model} is replaced in place, and {ready_s} pass until it is ready. At {throughput_rps} "
        "({cell}), how many requests meet no server?",
        answer=Number("lost_n", "requests", near=1.15),
        formula="{ready_s} × {throughput_rps} = {lost_n}",
        why="Triton loads the new version before it unloads the old one when there is room; whoever lacks it pays with "
        "these requests, or with a queue that takes as long again to empty.",
        source="the run's load events",
        then="How long until the backlog is gone, at 80 % load?",
    ),
    Drill(
        "registry", "change", "registry", ANY, _entry,
        ask="A registry entry says “{model}, version 7, champion”. What must stand behind it so that this run's "
        "figures can be measured again?",
        answer=Points((
            "The weights by content hash, and the code that serves them by commit.",
            "The serving configuration, not only the model: batching, instances, precision (here {precision}).",
            "Versions of what computes: Triton {triton}, numpy {numpy}, and the machine.",
            "The load it was measured under, with its seed ({seed}) and its objective.",
            "The measurement itself ({run}) with its doubts, and who moved the alias, when, and on which verdict.",
        )),
        formula="entry = weights + configuration + environment + evidence",
        why="An alias moves on exactly one version, and old aliases are looked up from the model, not from a list of "
        "versions: some listings leave them out.",
        source="MLflow's registry (mlflow/mlflow#9952), MLPerf's rules on reproducibility",
        then="Two teams move “champion” at the same second. What must happen?",
    ),
    Drill(
        "rollback", "change", "registry", ANY, _back,
        ask="The new version is worse and you noticed after two hours. What do you need to have ready so that going "
        "back is a matter of seconds?",
        answer=Points((
            "The old version still loaded, or known to load in {ready_s} on this machine.",
            "An alias that points at it, so that going back is one move and no build.",
            "Requests that are under way end on the version that took them; sessions and caches are versioned.",
            "A rule that was written before the rollout: which figure, which bound, who decides.",
            "A rehearsal: a way back that was never used is a hope.",
        )),
        formula="time to go back = time to notice + time to decide + {ready_s}",
        why="Noticing takes longest; a guard that reads the right figure shortens that and nothing else does.",
        source="the run's load events",
        then="What can not be rolled back at all?",
    ),
)  # fmt: skip
