"""The whole latency distribution as an HDR percentile plot: each nine of the percentile takes equal room.

A mean hides modes and a single p99 hides everything else; this curve shows both. It ends at the last percentile that
the sample can support (lab.measure.percentile.needed), where the sample's largest value is marked.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lab.measure.percentile import needed, percentile_of_sorted
from lab.measure.words import format_seconds, format_setting_s
from lab.show import theme
from lab.show.charts.figure import Chart, End, end_labels, level_line, line, log_axis, log_range, nothing_to_draw, room

TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
SHOWN = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
"""A curve ends at one of these."""
POINTS = 120


WHOLE, FIRST_TOKEN = "latency from the scheduled arrival", "time to the first token"
"""What may be drawn: the words of its axis."""


def percentiles(
    latencies_s: Mapping[str, npt.NDArray[np.float64]],
    baseline: str,
    slo_s: float | None,
    at: str,
    quantity: str = WHOLE,
) -> Chart:
    """Percentile (x, spaced by 1/(1-p)) against latency (y, log), one line a level. `latencies_s` maps a level's name
    to the latencies of its successes in seconds, all repeats pooled; `slo_s` is the limit on this very quantity."""
    title = f"{'Latency' if quantity == WHOLE else quantity.capitalize()} distribution at {at}"
    height, margin = 380, {"l": 64, "r": 24, "t": 20, "b": 52}
    traces, ends, notes, takeaways = [], [], [], []
    drawn: list[float] = [] if slo_s is None else [slo_s * 1e3]
    ps = [p for p in TICKS if p > 0]
    table: dict[str, list[float | str | None]] = {"percentile": [f"p{100 * p:g}" for p in ps]}
    styles = iter((*theme.STYLES, theme.FIFTH))
    furthest = 1.0
    for level, latencies in latencies_s.items():
        style = theme.BASELINE if level == baseline else next(styles)
        ordered = np.sort(latencies)
        n = len(ordered)
        table[f"{level}, ms"] = [_ms(ordered, p) if n >= needed(p) else None for p in ps]
        highest = max((p for p in SHOWN if n >= needed(p)), default=None)
        if highest is None:
            notes.append(f"{level} is not drawn: it has {n} successes, the median needs {needed(0.5)}")
            continue
        spread = np.geomspace(1.0, 1 / (1 - highest), POINTS)
        y = [_ms(ordered, float(1 - 1 / x)) for x in spread]
        furthest = max(furthest, float(spread[-1]))
        drawn += [v for v in y if v > 0]
        traces.append(
            line(
                level,
                spread,
                y,
                style,
                mode="lines",
                text=[f"p{100 * (1 - 1 / x):.4g}" for x in spread],
                hovertemplate=f"{level}<br>%{{text}}: %{{y:,.3~g}} ms<extra></extra>",
            )
        )
        ends.append(End(level.removeprefix("batching "), float(np.log10(spread[-1])), y[-1], style))
        takeaways.append(f"{level} reaches {format_seconds(y[-1] / 1e3)} at p{100 * highest:g} (n = {n:,})")
        if highest < 0.999:
            following = next(p for p in SHOWN if p > highest)
            more = f"p{100 * following:g} needs {needed(following):,}"
            notes.append(f"{level} ends at p{100 * highest:g}: {n:,} successes; {more}")
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "no successful request at this load", height=height)
    y_range, margin["r"] = log_range(drawn), room(ends)
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis(
            "percentile of requests",
            log=True,
            tickvals=[1 / (1 - p) for p in TICKS],
            ticktext=["0", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"],
            range=[0, float(np.log10(furthest)) + 0.02],
        ),
        yaxis=log_axis(f"{quantity}, ms", y_range),
        annotations=end_labels(ends, y_range, log=True, height=height - margin["t"] - margin["b"]),
    )
    if slo_s is not None:
        shape, label = level_line(slo_s * 1e3, f"objective {format_setting_s(slo_s)}", log=True)
        layout["shapes"] = [shape]
        layout["annotations"].append(label)
    return Chart(
        title, {"data": traces, "layout": layout}, f"At {at}, " + "; ".join(takeaways) + ".", table, tuple(notes)
    )


def _ms(ordered_s: npt.NDArray[np.float64], p: float) -> float:
    value = percentile_of_sorted(ordered_s, p)
    assert value is not None  # noqa: S101  # callers have at least needed(0.5) samples
    return value * 1e3
