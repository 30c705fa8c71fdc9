"""The flight recorder: one figure of panels that share a time axis and the numbered marks of each change.

Throughput, latency, where the time goes, errors and memory stand under each other, or for a language model its tokens,
their times and its engine; so a vertical line at the moment of a change crosses all of them. Every tick redraws from
what is on disk, never from what was drawn before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.measure.words import GPU_MEMORY, HOST_MEMORY, format_count, format_metric, format_rate, format_seconds
from lab.show import theme
from lab.show.charts.figure import MAX_POINTS, Chart, floats, log_axis, log_range, ms, nothing_to_draw

Series = Mapping[str, npt.NDArray[np.float32]]

PANEL = 132
GAP = 44
TOP, BOTTOM = 54, 48

BLUE, GREEN, VERMILLION, _ = theme.STYLES
MAX_MODELS = 4


def recorder(
    series: Series,
    memory_mib: Series,
    events: Sequence[tuple[float, int, str]],
    *,
    limits: Mapping[str, float | None],
    window_s: int | None,
    log: bool,
    view: str,
    over: bool = False,
    unfinished_s: int = 0,
) -> Chart:
    """`series` holds one value a second (lab.run.live); `memory_mib` the same by subject; `events` are (second,
    number, label); `limits` are those of the objective (latency_s, ttft_s, itl_s). The last `unfinished_s` seconds are
    left out: they are not over, or their records are still being written, so they would show a fall that is none.
    `window_s` shows the last seconds only (None: all). `view` names the run and the settings of the view: while it
    stays the same, the browser keeps the viewer's zoom. `over`: nothing more will come."""
    title = "Live"
    t = np.asarray(series.get("t_s", ()), dtype=np.float32)
    if len(t) == 0:
        return nothing_to_draw(
            title, "no request finished before the run ended" if over else "no request has finished yet", height=420
        )
    t = t[: max(1, len(t) - unfinished_s)]
    newest = float(t[-1]) + 1
    oldest = max(0.0, newest - window_s) if window_s else 0.0
    shown = t >= oldest - 1
    panels = [
        *(_of_tokens if "ttft_p50_ms" in series else _of_requests)(series, limits, log),
        *_shared(series, memory_mib),
    ]
    if over:  # of what was never read, or once only, there is no course to see
        panels = [panel for panel in panels if any(np.isfinite(values).sum() > 1 for _, _, values, _ in panel.lines)]
    height = TOP + BOTTOM + len(panels) * PANEL + (len(panels) - 1) * GAP
    traces: list[dict[str, Any]] = []
    layout = theme.layout(
        height=height,
        margin={"l": 72, "r": 20, "t": TOP, "b": BOTTOM},
        showlegend=True,
        hovermode="x unified",
        uirevision=view,
        annotations=[],
        shapes=[],
    )
    plot = height - TOP - BOTTOM
    table: dict[str, list[Any]] = {"second": [int(v) for v in t[shown]]}
    for index, panel in enumerate(panels):
        is_log = panel.log
        suffix = "" if index == 0 else str(index + 1)
        top = 1 - index * (PANEL + GAP) / plot
        bottom = max(0.0, top - PANEL / plot)
        visible: list[npt.NDArray[np.float32]] = []
        for name, unit, values, style in panel.lines:
            values = np.asarray(values, dtype=np.float32)[: len(t)][shown]
            visible.append(values)
            table[f"{name}, {unit}"] = [None if not np.isfinite(v) else float(v) for v in values]
            x, y = thin(t[shown], np.where(values > 0, values, np.nan) if is_log else values, MAX_POINTS)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "legend": f"legend{suffix}",
                    "x": floats(x),
                    "y": floats(y),
                    "xaxis": f"x{suffix}",
                    "yaxis": f"y{suffix}",
                    "line": {"color": style.role, "dash": style.dash, "width": 2},
                    "connectgaps": False,
                    "hovertemplate": f"%{{y:,.3~g}} {unit}",
                }
            )
        # The margins are fixed: to fit them and the labels anew, plotly would measure every label at every tick.
        still: dict[str, Any] = {"automargin": False, "ticklabeloverflow": "allow"}
        place: dict[str, Any] = {"domain": [bottom, top], "nticks": 5, **still}
        layout[f"yaxis{suffix}"] = (
            log_axis(panel.title, log_range(np.concatenate(visible)), most_decades=2, **place)
            if is_log
            else theme.axis(panel.title, **place)
        )
        layout[f"xaxis{suffix}"] = theme.axis(
            "seconds since the load began" if index == len(panels) - 1 else "",
            anchor=f"y{suffix}",
            range=[oldest, max(newest, oldest + 10)],
            rangemode="normal",
            showticklabels=index == len(panels) - 1,
            **still,
            matches=None if index == 0 else "x",
        )
        layout[f"legend{suffix}"] = theme.legend(y=top + 4 / plot)
        if panel.limit_ms is not None and (is_log or panel.limit_ms <= np.nanmax(np.concatenate(visible), initial=0)):
            layout["shapes"].append(
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "yref": f"y{suffix}",
                    "y0": panel.limit_ms,
                    "y1": panel.limit_ms,
                    "line": {"color": "@muted", "width": 1, "dash": "longdash"},
                }
            )
    _mark(layout, events, oldest, newest)
    marks = [f"{_circled(number)} {label} ({second:.0f} s)" for second, number, label in events if second >= oldest]
    notes = (" · ".join(marks),) if marks else ()
    return Chart(title, {"data": traces, "layout": layout}, _takeaway(series, len(t), events), table, notes)


def _circled(number: int) -> str:
    """ "①", as the mark in the first panel is drawn; "(21)" of what has no such sign."""
    return chr(0x245F + number) if 1 <= number <= 20 else f"({number})"


def thin(
    t: npt.NDArray[np.float32], y: npt.NDArray[np.float32], most: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """At most `most` of the points, keeping each stretch's lowest and highest: a peak that is seen at full resolution
    is still seen. Points are picked, never averaged."""
    n = len(t)
    if n <= most:
        return t, y
    kept: list[int] = []
    for stretch in np.array_split(np.arange(n), most // 2):
        finite = stretch[np.isfinite(y[stretch])]
        if finite.size == 0:
            kept.append(int(stretch[0]))  # a gap stays a gap
            continue
        kept += sorted({int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])})
    return t[kept], y[kept]


Line = tuple[str, str, Any, theme.Style]


@dataclass(frozen=True)
class Panel:
    """`lines` are (name, unit, values, style); `limit_ms` is the objective's, where it has one on this."""

    title: str
    lines: list[Line]
    log: bool = False
    limit_ms: float | None = None


def _of_requests(series: Series, limits: Mapping[str, float | None], log: bool) -> list[Panel]:
    return [
        Panel(
            "requests/s",
            [
                ("served", "req/s", series["throughput_rps"], BLUE),
                ("offered", "req/s", series["offered_rps"], theme.BASELINE),  # dashed on top, so that both are seen
            ],
        ),
        Panel(
            "latency, ms",
            [
                ("p50", "ms", series["latency_p50_ms"], BLUE),
                ("p95", "ms", series["latency_p95_ms"], GREEN),
                ("p99", "ms", series["latency_p99_ms"], VERMILLION),
            ],
            log,
            ms(limits.get("latency_s")),
        ),
        Panel(
            "mean, ms",
            [("queue", "ms", series["queue_ms"], VERMILLION), ("compute", "ms", series["compute_ms"], BLUE)],
        ),
    ]


def _of_tokens(series: Series, limits: Mapping[str, float | None], log: bool) -> list[Panel]:
    """What a language model's answers are made of. The engine counts its tokens as it writes them; where it does not
    say, those of answers that have ended stand in."""
    written = series.get("written_tokens_per_s")
    known = written is not None and bool(np.isfinite(written).any())
    return [
        Panel("tok/s", [("written", "tok/s", written if known else series["output_tokens_per_s"], BLUE)]),
        Panel(
            "first token, ms",
            [("p50 to the first token", "ms", series["ttft_p50_ms"], BLUE)],
            log,
            ms(limits.get("ttft_s")),
        ),
        Panel(
            "between tokens, ms",
            [("p50 between tokens", "ms", series["itl_p50_ms"], BLUE)],
            log,
            ms(limits.get("itl_s")),
        ),
        Panel(
            "requests",
            [
                ("being answered", "requests", series["running"], BLUE),
                ("waiting", "requests", series["waiting"], VERMILLION),
            ],
        ),
        Panel("tokens in cache", [("held in the cache", "tokens", series["cache_tokens_used"], BLUE)]),
    ]


def _shared(series: Series, memory_mib: Series) -> list[Panel]:
    """Failures, once there are any, and memory: that of processes, and of GPUs where there are any."""
    on_gpu = sorted(subject for subject in memory_mib if subject.startswith("gpu"))
    on_host = sorted(memory_mib.keys() - on_gpu, key=lambda subject: (not subject.startswith("model:"), subject))
    failed = 100 * np.asarray(series["error_fraction"])
    failures = [Panel("failed, %", [("failed", "%", failed, VERMILLION)])] if (failed > 0).any() else []
    return [
        *failures,
        *([_memory(HOST_MEMORY, on_host, memory_mib)] if on_host or not on_gpu else []),
        *([_memory(GPU_MEMORY, on_gpu, memory_mib)] if on_gpu else []),
    ]


def _memory(which: str, subjects: Sequence[str], memory_mib: Series) -> Panel:
    drawn = zip(subjects[:MAX_MODELS], theme.STYLES, strict=False)
    return Panel(f"{which}, MiB", [(name, "MiB", memory_mib[name], style) for name, style in drawn])


def _mark(layout: dict[str, Any], events: Sequence[tuple[float, int, str]], oldest: float, newest: float) -> None:
    """A numbered vertical line through all panels at each event that is in view."""
    for second, number, label in events:
        if not oldest <= second <= newest:
            continue
        layout["shapes"].append(
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": second,
                "x1": second,
                "y0": 0,
                "y1": 1,
                "line": {"color": "@axis", "width": 1, "dash": "dot"},
            }
        )
        layout["annotations"].append(
            {
                "x": second,
                "xref": "x",
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "yshift": 28,
                "text": str(number),
                "hovertext": label,
                "showarrow": False,
                "bgcolor": "@surface",
                "bordercolor": "@axis",
                "borderpad": 2,
                "font": {"size": 11, "color": "@ink"},
            }
        )


def _takeaway(series: Series, seconds: int, events: Sequence[tuple[float, int, str]]) -> str:
    def newest(name: str) -> float | None:
        values = np.asarray(series.get(name, ()), dtype=float)[:seconds]
        values = values[np.isfinite(values)]
        return float(values[-1]) if values.size else None

    latest = f"; latest mark: {events[-1][2]} at {events[-1][0]:.0f} s." if events else "."
    if "ttft_p50_ms" in series:
        return (
            f"In the newest second {format_metric('output_tokens_per_s', newest('written_tokens_per_s'))} were written "
            f"for {format_count(newest('running'))} requests at once, {format_count(newest('waiting'))} waited; in the "
            f"middle the first token came after {_seconds(newest('ttft_p50_ms'))}, each further one after "
            f"{_seconds(newest('itl_p50_ms'))}{latest}"
        )
    p99_ms = newest("latency_p99_ms")
    text = f"In the newest second {format_rate(newest('throughput_rps'))} were served of "
    text += f"{format_rate(newest('offered_rps'))} offered; "
    text += "p99 is withheld, too few successes" if p99_ms is None else f"p99 {_seconds(p99_ms)}"
    return text + latest


def _seconds(milliseconds: float | None) -> str:
    return format_seconds(None if milliseconds is None else milliseconds / 1e3)
