"""What batching did: throughput against latency, executed batch sizes, and where the time went.

All read the document of a run laid out as a Grid (levels of the judged factor × loads).
"""

from __future__ import annotations

from typing import Any

from lab.measure.problems import longer_than_waited
from lab.measure.words import format_rate, format_ratio, format_seconds, format_setting_s
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    End,
    append,
    end_labels,
    floats,
    level_line,
    line,
    log_axis,
    log_range,
    ms,
    nothing_to_draw,
    pattern,
    reach,
    room,
)
from lab.show.grid import Grid, mean, why_missing

PERCENTILES = (("latency_p50_s", "p50", "circle-open", "dot"), ("latency_p99_s", "p99", "circle", "solid"))


def throughput_latency(grid: Grid, levels: tuple[str, str], slo_s: float | None) -> Chart:
    """Served requests a second (x) against p50 and p99 latency (y, log) of two levels, one point a load, joined in
    order of load. With repeats a point is the figure that the verdict pooled, or the middle one. The table has every
    level."""
    title = "Throughput against latency"
    height = 380
    traces: list[dict[str, Any]] = []
    ends: list[End] = []
    drawn: list[float] = [] if slo_s is None else [slo_s * 1e3]
    served: list[float] = []
    notes: list[str] = []
    table: dict[str, list[Any]] = {"level": [], "load": [], "repeat": [], "served, req/s": []}
    table |= {f"{name}, ms": [] for _, name, _, _ in PERCENTILES}
    takeaways: list[str] = []
    for level in grid.levels:
        for load in grid.loads:
            for repeat, summary in enumerate(grid.at(level, load), start=1):
                append(table, level, load, repeat, summary["throughput_rps"])
                for field, name, _, _ in PERCENTILES:
                    table[f"{name}, ms"].append(ms(summary[field]))
    for level, style in zip(levels, (theme.BASELINE, theme.TREATMENT), strict=True):
        for field, name, marker, dash in PERCENTILES:
            points = []
            for load in grid.loads:
                summaries = grid.at(level, load)
                x, y = (grid.figure(level, load, name, levels[1]) for name in ("throughput_rps", field))
                if x is not None and y is not None:
                    points.append((x, y * 1e3, load))
                elif summaries:
                    reason = why_missing(summaries, field) or "not measured"
                    notes.append(f"{name} of {level} at {load} is not drawn: {reason}")
            if not points:
                continue
            drawn += [y for _, y, _ in points]
            served += [x for x, _, _ in points]
            # Joined in order of load: a curve that bends back shows a server that serves less when asked for more.
            look = theme.Style(style.role, dash, marker)
            traces.append(
                line(
                    f"{level} {name}",
                    [x for x, _, _ in points],
                    [y for _, y, _ in points],
                    look,
                    text=[load for _, _, load in points],
                    hovertemplate=f"{level}, %{{text}}<br>%{{x:,.4~g}} req/s served<br>{name} %{{y:,.3~g}} ms"
                    "<extra></extra>",
                )
            )
            ends.append(End(f"{_short(level)} {name}", points[-1][0], points[-1][1], style))
            (x0, y0, _), (x1, y1, _) = points[0], points[-1]
            takeaways.append(
                f"{name} of {level} goes from {format_seconds(y0 / 1e3)} at {format_rate(x0)} "
                f"to {format_seconds(y1 / 1e3)} at {format_rate(x1)}"
            )
    if not traces:
        return nothing_to_draw(title, "no load has enough successes for a percentile yet", height=height)
    y_range = log_range(drawn)
    margin = {"l": 64, "r": room(ends), "t": 20, "b": 52}
    plot_height = height - margin["t"] - margin["b"]
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis("served, requests a second", range=reach(served)),
        yaxis=log_axis("latency from the scheduled arrival, ms", y_range),
        annotations=end_labels(ends, y_range, log=True, height=plot_height),
    )
    if slo_s is not None:
        shape, label = level_line(slo_s * 1e3, f"objective {format_setting_s(slo_s)}", log=True)
        layout["shapes"] = [shape]
        layout["annotations"].append(label)
    alt = "; ".join(takeaways) + "."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, (*notes, *grid.left_out(levels)))


def batch_sizes(grid: Grid, levels: tuple[str, str], load: str) -> Chart:
    """Share of the model's executions (y) that ran with each batch size (x), for two levels at one load. Repeats are
    added up: these are counts. The table has every level."""
    title = f"Executed batch sizes at {load}"
    height = 320
    traces: list[dict[str, Any]] = []
    takeaways: list[str] = []
    counted = {level: _executions(grid.at(level, load)) for level in dict.fromkeys((*levels, *grid.levels))}
    sizes = sorted({size for level in levels for size in counted[level]})
    if not sizes:
        why = why_missing(grid.at(levels[-1], load), "batch_sizes") or "Triton's batch counters were not read"
        return nothing_to_draw(title, why, height=height)
    every = sorted({size for counts in counted.values() for size in counts})
    table: dict[str, list[Any]] = {"batch size": list(every)}
    for level, counts in counted.items():
        table[f"{level}, executions"] = [counts.get(size, 0) if counts else None for size in every]
    for level, style in zip(levels, (theme.BASELINE, theme.TREATMENT), strict=True):
        counts, total = counted[level], sum(counted[level].values())
        if not total:
            continue
        traces.append(
            {
                "type": "bar",
                "name": level,
                "x": [str(size) for size in sizes],
                "y": floats([100 * counts.get(size, 0) / total for size in sizes]),
                "marker": {
                    "color": style.role,
                    "pattern": pattern("/" if style is theme.BASELINE else ""),
                },
                "hovertemplate": f"{level}<br>batch of %{{x}}: %{{y:.1f}} % of executions<extra></extra>",
            }
        )
        mean = sum(size * n for size, n in counts.items()) / total
        takeaways.append(f"{level} ran {total:,.0f} executions of {mean:.1f} requests on average")
    layout = theme.layout(
        height=height,
        barmode="group",
        bargap=0.25,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 52},
        xaxis=theme.axis("batch size, requests", type="category"),
        yaxis=theme.axis("share of executions, %"),
    )
    alt = f"At {load} " + "; ".join(takeaways) + "."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, grid.left_out(levels))


FEW_EXECUTIONS = 20
WORTH_SHARING = 1.15
"""A request in a batch must cost this much less than alone before a page says that batching shares anything."""

PARTS = (
    ("queue_mean_s", "in queue", "@vermillion", "/"),
    ("compute_mean_s", "computing", "@blue", ""),
    ("outside", "outside Triton", "@grey", "."),
)


def where_time_goes(grid: Grid, load: str) -> Chart:
    """Mean milliseconds of a request (x) by where they were spent, one bar a level (y). "Outside Triton" is what is
    left of the mean latency: the client's own wait, and the way there and back. Over repeats means, which add up."""
    title = f"Where a request's time goes at {load}"
    table: dict[str, list[Any]] = {
        "level": [],
        **{f"{name}, ms": [] for _, name, _, _ in PARTS},
        "mean latency, ms": [],
    }
    notes = []
    for level, summaries in grid.levels_at(load):
        queue, compute, total = (
            mean(summaries, field) for field in ("queue_mean_s", "compute_mean_s", "latency_mean_s")
        )
        if queue is None or compute is None:
            notes.append(f"{level}: {why_missing(summaries, 'queue_mean_s') or 'Triton counted no request'}")
            continue
        inside = queue + compute
        if longer_than_waited(inside, total):
            notes.append(
                f"{level} is not drawn: by Triton's counters a request took {format_seconds(inside)} there, longer "
                f"than the {format_seconds(total)} that the client waited: they are of other requests than the window's"
            )
            continue
        outside = None if total is None or total < inside else total - inside
        if total is not None and total < inside:
            notes.append(f"{level}: Triton's counters, read around the window, leave nothing of the mean latency")
        append(table, level, *(ms(value) for value in (queue, compute, outside, total)))
    height = 96 + 44 * max(2, len(table["level"]))
    if not table["level"]:
        return nothing_to_draw(title, notes[0] if notes else "no cell has run at this load", height=height)
    labels = list(reversed(table["level"]))
    traces = []
    for _, name, role, hatch in PARTS:
        values = list(reversed(table[f"{name}, ms"]))
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": floats([0.0 if value is None else value for value in values]),
                "marker": {"color": role, "pattern": pattern(hatch)},
                "hovertemplate": f"%{{y}}<br>{name}: %{{x:,.3~g}} ms<extra></extra>",
            }
        )
    sums = [sum(v or 0.0 for v in parts) for parts in zip(*(table[f"{n}, ms"] for _, n, _, _ in PARTS), strict=True)]
    layout = theme.layout(
        height=height,
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        legend=theme.legend(traceorder="normal", x=0),
        margin={"l": 90, "r": 70, "t": 40, "b": 52},
        xaxis=theme.axis("mean time of a request, ms"),
        yaxis=theme.axis("", type="category", showline=False, ticks=""),
        annotations=[
            {
                "x": total,
                "y": level,
                "text": format_seconds((total if mean_ms is None else mean_ms) / 1e3),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 6,
                "font": {"size": 12, "color": "@ink"},
            }
            for level, total, mean_ms in zip(table["level"], sums, table["mean latency, ms"], strict=True)
        ],
    )
    takeaway = "; ".join(
        f"{level}: {format_seconds(queue / 1e3)} waiting and {format_seconds(compute / 1e3)} computing"
        for level, queue, compute in zip(
            table["level"], table[f"{PARTS[0][1]}, ms"], table[f"{PARTS[1][1]}, ms"], strict=True
        )
    )
    return Chart(title, {"data": traces, "layout": layout}, f"At {load}, {takeaway}.", table, tuple(notes))


def cost_of_one(summaries: list[dict[str, Any]], model: str, where: str = "") -> Chart:
    """What one request costs the model in compute (y) when it shares a batch of that size (x, log): the reason why
    batching pays, or does not. From Triton's own counters, pooled over the blocks given, which are those at the load
    `where`. Sizes that hardly ever ran are left out: their mean is one execution's luck."""
    title = f"What one request costs in a batch{f' at {where}' if where else ''}"
    executed: dict[int, float] = {}
    spent_s: dict[int, float] = {}
    for summary in summaries:
        for size, seconds in (summary.get("item_compute_s") or {}).items():
            executions = (summary.get("batch_sizes") or {}).get(size, 0)
            executed[int(size)] = executed.get(int(size), 0) + executions
            spent_s[int(size)] = spent_s.get(int(size), 0) + seconds * executions
    known = sorted(size for size, executions in executed.items() if executions)
    sizes = [size for size in known if executed[size] >= FEW_EXECUTIONS] or known
    if not sizes:
        return nothing_to_draw(title, "Triton's batch counters were not read")
    left_out = [str(size) for size in known if size not in sizes]
    notes = (
        (f"not drawn, with under {FEW_EXECUTIONS} executions: batches of {', '.join(left_out)}",) if left_out else ()
    )
    each_ms = [spent_s[size] / executed[size] * 1e3 for size in sizes]
    table: dict[str, list[Any]] = {
        "batch size": list(sizes),
        "compute of one request, ms": each_ms,
        "executions": [executed[size] for size in sizes],
    }
    trace = line(
        model, sizes, each_ms, theme.TREATMENT, hovertemplate="batch of %{x}: %{y:.3~g} ms a request<extra></extra>"
    )
    layout = theme.layout(
        height=320,
        xaxis=theme.axis("batch size, requests", log=True, tickvals=[2**k for k in range(11)]),
        yaxis=theme.axis("compute of one request, ms"),
    )
    first, last = each_ms[0] / 1e3, each_ms[-1] / 1e3
    alone = "A request alone" if sizes[0] == 1 else f"A request in a batch of {sizes[0]}"
    alt = f"{alone} costs {model} {format_seconds(first)} of compute."
    if len(sizes) > 1:
        alt = f"{alt[:-1]}; in a batch of {sizes[-1]} its share is {format_seconds(last)}, "
        gain = first / last if last else None
        alt += (
            f"{format_ratio(gain)} less: a batch shares what every call costs anyway."
            if gain and gain >= WORTH_SHARING
            else "hardly less: up to that size the arithmetic is the limit, and there is nothing to share."
        )
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, notes)


def _executions(summaries: list[dict[str, Any]]) -> dict[int, float]:
    counts: dict[int, float] = {}
    for summary in summaries:
        for size, executions in (summary.get("batch_sizes") or {}).items():
            counts[int(size)] = counts.get(int(size), 0) + executions
    return counts


def _short(level: str) -> str:
    """For the narrow place at a line's end: "off" for "batching off"."""
    return level.removeprefix("batching ")
