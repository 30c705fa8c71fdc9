"""What the live page shows at one moment, as plain JSON: for its first paint, and for what its browser asks for later.

State and settings in force, four figures, their cost, and the flight recorder; each in the words and with the rounding
of the rest of the lab, so that a browser only puts text in place and draws lines.
"""

from __future__ import annotations

from typing import Any

from lab.measure import cost
from lab.measure.cost import Use
from lab.measure.cost_words import sentence
from lab.measure.formats import format_label
from lab.measure.prices import Price
from lab.measure.summary import Summary
from lab.measure.words import NOT_MEASURED, format_fraction, format_metric, format_rate, format_seconds, level_label
from lab.run import floors, prices
from lab.run.folder import RunFolder
from lab.run.live import RECENT_S, LiveView
from lab.run.status import Status
from lab.run.told import Told, model_changed
from lab.serve.process import last_lines
from lab.show.charts.figure import Chart
from lab.show.charts.live import recorder
from lab.show.in_force import in_force
from lab.show.states import STATES
from lab.spec import ModelSpec, Slo, Workload, parse


def moment(
    folder: RunFolder, view: LiveView, drawn: Chart, *, price: Price | None, whole: Summary | None = None
) -> dict[str, Any]:
    """`drawn` is `draw`'s; `whole` are the figures of the whole block, once the run is over."""
    one_cell = len(folder.document["cells"]) == 1
    slo = parse(Slo, folder.document["experiment"]["slo"])
    summary, now = view.summary or whole, in_force(folder.document, view)
    return {
        "active": view.status.active,
        "state": STATES.get(view.status.state, (view.status.state, "gray"))[:2],
        "settings": " · ".join(_settings(view, one_cell=one_cell)) if view.status.active else "",
        "progress": None if one_cell or not view.status.active else view.status.progress,
        "covers": _covers(folder, view, summary),
        "cards": [] if summary is None else _cards(summary),
        "floor": "" if summary is None else _floor(folder, view, summary),
        "cost": ""
        if summary is None or price is None
        else sentence(cost.cost(vars(summary), price, Use()), slo, summary.slo_attainment_fraction),
        "caveats": [] if summary is None or price is None else _caveats(folder, price),
        "figure": drawn.figure,
        "alt": drawn.alt,
        "notes": list(drawn.notes),
        "in_force": None if now is None else now.token,
    }


def draw(folder: RunFolder, view: LiveView, *, window_s: int | None, log: bool) -> Chart:
    """The recorder's chart; `window_s` and `log` as in `recorder`."""
    declared, active = folder.document["experiment"], view.status.active
    return recorder(
        view.series,
        view.memory_mib,
        view.events,
        limits=declared["slo"],
        window_s=window_s,
        log=log,
        view=f"{folder.run_id} {window_s} {log}",
        over=not active,
        # Each load worker writes once a second, and they take turns.
        unfinished_s=2 if active and declared["workload"]["workers"] > 1 else 1,
    )


def _floor(folder: RunFolder, view: LiveView, summary: Summary) -> str:
    """What a language model's decode step takes at least on this machine, and how close it came."""
    if view.model is None or view.workload is None or summary.step_mean_s is None:
        return ""
    model, workload = parse(ModelSpec, view.model), parse(Workload, view.workload)
    if _mixed(folder, view, summary):
        return ""
    return floors.now(model, workload, summary, Told.by(folder.events())) or ""


def _mixed(folder: RunFolder, view: LiveView, summary: Summary) -> bool:
    """Whether the model was changed by hand in the time that the figures are of."""
    end_ns = view.status.heartbeat_ns if view.status.active else None
    from_ns = 0 if end_ns is None or summary.window_s is None else end_ns - round(summary.window_s * 1e9)
    return model_changed(folder.events(), from_ns, end_ns)


def _caveats(folder: RunFolder, price: Price) -> list[str]:
    """What the cost must be read with."""
    device = folder.document["experiment"]["model"].get("device", "cpu")
    fit = cost.fit(price, folder.document["environment"], device)
    return list(cost.caveats(price, Use(), fit, today=prices.today()))


def _settings(view: LiveView, *, one_cell: bool) -> list[str]:
    """What is in force, and what the run says of itself."""
    status, words = view.status, []
    if not one_cell and status.phase != status.state:
        words.append(status.phase)
    if view.model is not None and view.workload is not None:
        fields = ("kv_cache", "scheduler") if view.model["family"] == "llm" else ("batching",)
        settings = [level_label(f"model.{field}", view.model[field]) for field in fields]
        if view.model["family"] == "llm":
            settings.insert(0, format_label(parse(ModelSpec, view.model)))
        words.append(", ".join([view.model["name"], *settings, _load(view.workload["arrival"])]))
    return [*words, status.message] if status.message else words


def _load(arrival: dict[str, Any]) -> str:
    field = "concurrency" if arrival["kind"] == "closed" else "rate_rps"
    return level_label(field, arrival[field]) if arrival.get(field) is not None else str(arrival["kind"])


def _covers(folder: RunFolder, view: LiveView, summary: Summary | None) -> str:
    """Which time the figures below it are of; where there are none yet, what is waited for."""
    if summary is None:
        return _awaited(folder, view.status) if view.status.active else ""
    if not view.status.active:
        whole = "The whole run, without its warm-up"
        mixed = _mixed(folder, view, summary)
        return f"{whole}: its model was changed meanwhile, so they mix what was before and after" if mixed else whole
    if summary.window_s is None or summary.window_s >= RECENT_S - 1:
        return "Last minute"
    return f"Last {summary.window_s:.0f} s"


def _awaited(folder: RunFolder, status: Status) -> str:
    if status.state == "warm-up":
        return "Warming up: figures begin when it is over; the chart shows it already."
    if status.state == "queued":
        return f"One run measures at a time, and this one waits for its turn: {status.phase}."
    said = next(iter(last_lines(folder.path / "log.txt", 1)), "").partition(" ")[2]
    return f"Nothing is measured yet: {said or 'its process has begun'}."


def _cards(summary: Summary) -> list[dict[str, str]]:
    """Four figures: of the newest minute of the block in progress, or of the whole block once it is over."""
    served, offered = format_rate(summary.throughput_rps), format_rate(summary.offered_rps)
    if summary.ttft_mean_s is not None or summary.engine_running_mean is not None:
        return _of_tokens(summary, f"{served} served, {offered} offered")
    batch = NOT_MEASURED if summary.batch_mean is None else f"{summary.batch_mean:.1f}"
    failed = format_fraction(summary.error_fraction)
    return [
        _card(summary, "Served", "throughput_rps", f"{offered} offered"),
        _card(summary, "p99 latency", "latency_p99_s", f"p50 {format_seconds(summary.latency_p50_s)}"),
        _card(summary, "Mean batch", "batch_mean", f"{format_seconds(summary.queue_mean_s)} in queue", batch),
        _card(summary, "Failed", "error_fraction", "of what finished", failed),
    ]


def _of_tokens(summary: Summary, served: str) -> list[dict[str, str]]:
    running = NOT_MEASURED if summary.engine_running_mean is None else f"{summary.engine_running_mean:.1f}"
    waiting = NOT_MEASURED if summary.engine_waiting_mean is None else f"{summary.engine_waiting_mean:.1f}"
    ttft, itl = format_seconds(summary.ttft_mean_s), format_seconds(summary.itl_mean_s)
    return [
        _card(summary, "Tokens a second", "output_tokens_per_s", served),
        _card(summary, "To the first token, p50", "ttft_p50_s", f"mean {ttft}"),
        _card(summary, "Between tokens, p50", "itl_p50_s", f"mean {itl}"),
        _card(summary, "Answered at once", "engine_running_mean", f"{waiting} waiting", running),
    ]


def _card(summary: Summary, label: str, field: str, beside: str, value: str | None = None) -> dict[str, str]:
    """`beside` is what the figure is compared with; where there is none, why."""
    value = format_metric(field, getattr(summary, field)) if value is None else value
    if value == NOT_MEASURED and field in summary.notes:
        beside = f"withheld: {summary.notes[field]}"
    return {"label": label, "value": value, "beside": beside}
