"""What came of a sweep: each point with its figures, the frontier, which knob matters, and a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure import pareto
from lab.measure.pareto import Direction
from lab.measure.words import format_metric, join, level_label, metric_label, objective_label
from lab.run.designs import Measured
from lab.spec import ClosedLoop, Experiment, plain

OPEN: dict[str, Direction] = {"goodput_rps": "higher", "latency_p99_s": "lower", "memory_peak_bytes": "lower"}
CLOSED: dict[str, Direction] = {"throughput_rps": "higher", "latency_p99_s": "lower", "memory_peak_bytes": "lower"}
GENERATED: dict[str, Direction] = {
    "output_tokens_per_s": "higher",
    "ttft_p95_s": "lower",
    "memory_peak_bytes": "lower",
}


def better(experiment: Experiment) -> dict[str, Direction]:
    """What a setting is judged by, the first figure most; which way is better."""
    if experiment.model.family == "llm":
        return GENERATED
    return CLOSED if isinstance(experiment.workload.arrival, ClosedLoop) else OPEN


def swept(
    experiment: Experiment, events: Sequence[dict[str, Any]], blocks: Sequence[Measured]
) -> dict[str, Any] | None:
    """What a run's document says of its sweep; None for a run that is none. Each point has its factors, figures,
    whether it is on the frontier, met the objective, and why it has no figures."""
    if not any(event["kind"] == "sweep" for event in events):
        return None
    figures, cells = better(experiment), experiment.cells()
    points: list[dict[str, Any]] = []
    for block in blocks:
        summary = block.summary
        forbidden = next((p.text for p in summary.problems if p.forbids_verdict), None)
        attained = summary.slo_attainment_fraction
        points.append(
            {
                "cell": block.cell,
                "factors": {path: plain(level) for path, level in cells[block.cell].factors.items()},
                "figures": {name: getattr(summary, name) for name in figures},
                "met": None if attained is None else attained >= experiment.slo.percentile,
                "why": forbidden,
            }
        )
    for event in events:
        if event["kind"] == "infeasible":
            factors = {path: plain(level) for path, level in cells[event["cell"]].factors.items()}
            nothing = dict.fromkeys(figures)
            points.append(
                {"cell": event["cell"], "factors": factors, "figures": nothing, "met": False, "why": event["text"]}
            )
    usable = [point["figures"] if point["why"] is None else dict.fromkeys(figures) for point in points]
    # A figure that some setting lacks would keep it off the frontier for that alone.
    measured = [values for values in usable if any(value is not None for value in values.values())]
    judged = {n: way for n, way in figures.items() if all(values[n] is not None for values in measured)}
    for point, on in zip(points, pareto.frontier(usable, judged), strict=True):
        point["frontier"] = on
    first = next(iter(figures))
    shares = pareto.importance([p["factors"] for p in points], [figure[first] for figure in usable])
    left_out = [name for name in figures if name not in judged]
    whole = {
        "better": figures,
        "objective": objective_label(experiment.slo),
        "left_out": left_out,
        "points": points,
        "importance": shares,
        "combinations": len(cells),
    }
    return {**whole, "text": told(whole)}


def told(found: dict[str, Any]) -> str:
    """The frontier in a sentence, what matters most, and what is missing."""
    points, first = found["points"], next(iter(found["better"]))
    on = [point for point in points if point["frontier"]]
    if not on:
        return f"None of {len(points)} settings gave figures that can be compared."
    best = max(on, key=lambda point: point["figures"][first] or 0.0)
    label = ", ".join(level_label(path, level) for path, level in best["factors"].items())
    names = join([metric_label(name) for name in found["better"] if name not in found["left_out"]])
    verb = "is" if len(on) == 1 else "are"
    said = [
        f"{len(on)} of {len(points)} settings {verb} worth having: nothing is better in {names} at once.",
        f"The highest {metric_label(first)}, {format_metric(first, best['figures'][first])}, is with {label}.",
    ]
    if all(point["met"] is False for point in points):
        said.insert(1, f"None of them meets the objective of {found['objective']}.")
    if found["importance"]:
        knob, share = next(iter(found["importance"].items()))
        said.append(f"{knob.rsplit('.', 1)[-1].replace('_', ' ').capitalize()} explains {100 * share:.0f} % of it.")
    if found["left_out"]:
        missing = join([metric_label(name) for name in found["left_out"]])
        said.append(f"Not judged by {missing}, which was not measured for every setting.")
    failed = sum(point["why"] is not None for point in points)
    if failed:
        said.append(f"{failed} could not be used; the list says why.")
    if len(points) < found["combinations"]:
        said.append(f"{found['combinations'] - len(points)} of {found['combinations']} were not tried in the time.")
    said.append("One block each: settings that are close need `compare`.")
    return " ".join(said)
