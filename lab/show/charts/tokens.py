"""What a token costs: its time along the answer, and where an answer's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure.position import Bucket
from lab.measure.words import format_seconds
from lab.show import theme
from lab.show.charts.figure import Chart, End, append, end_labels, floats, line, ms, nothing_to_draw, pattern, room
from lab.show.grid import Grid, mean, middle, why_missing

PARTS = (("to the first token", "@vermillion", "/"), ("the tokens after it", "@blue", ""))


def along_the_answer(by_level: Mapping[str, Sequence[Bucket]], baseline: str, at: str) -> Chart:
    """Position in the answer (x, tokens) against the time of one token there (y, ms), one line a level through the
    medians of stretches of the answer."""
    title = "Time of a token along the answer"
    height, margin = 380, {"l": 64, "r": 24, "t": 20, "b": 52}
    traces, ends, takeaways, notes = [], [], [], [f"{at[0].upper()}{at[1:]}"]
    table: dict[str, list[Any]] = {"level": [], "tokens": [], "median, ms": [], "half between, ms": [], "waits": []}
    styles = iter(theme.STYLES)
    highest = 0.0
    for level, buckets in by_level.items():
        style = theme.BASELINE if level == baseline else next(styles)
        if len(buckets) < 2:
            notes.append(f"{level} is not drawn: no answer that was due in the window is long enough")
            continue
        for b in buckets:
            between = f"{b.low_s * 1e3:.3g} to {b.high_s * 1e3:.3g}"
            append(table, level, f"{b.first} to {b.last}", b.median_s * 1e3, between, b.n)
        x, y = [(b.first + b.last) / 2 for b in buckets], [b.median_s * 1e3 for b in buckets]
        highest = max(highest, *y)
        hover = f"{level}<br>token %{{x:.0f}}: %{{y:,.3~g}} ms<extra></extra>"
        traces.append(line(level, x, y, style, hovertemplate=hover))
        ends.append(End(level, x[-1], y[-1], style))
        first, last = format_seconds(buckets[0].median_s), format_seconds(buckets[-1].median_s)
        takeaways.append(f"with {level} a token takes {first} at the start and {last} at token {buckets[-1].last}")
    if not traces:
        return nothing_to_draw(
            title, notes[1] if len(notes) > 1 else "no answer was streamed at this load", height=height
        )
    top, margin["r"] = 1.08 * highest, room(ends)
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis("position in the answer, tokens", range=[0, 1.02 * max(end.x for end in ends)]),
        yaxis=theme.axis("time of one token, ms", range=[0, top]),
        annotations=end_labels(ends, (0.0, top), log=False, height=height - margin["t"] - margin["b"]),
    )
    return Chart(title, {"data": traces, "layout": layout}, f"At {at}, {'; '.join(takeaways)}.", table, tuple(notes))


def cost_of_one(grid: Grid, levels: tuple[str, ...]) -> Chart:
    """What one token costs (y, ms of the engine's steps) by how many answers share a step, averaged over its steps (x),
    a point a cell: the reason why sharing pays. From the engine's own counters."""
    title = "What one token costs when answers share a step"
    answers, cost = "answers in a step, mean over steps", "cost of a token, ms"
    table: dict[str, list[Any]] = {"level": [], "load": [], answers: [], cost: []}
    traces, notes = [], []
    styles = iter(theme.STYLES)
    for level in levels:
        style = theme.BASELINE if level == grid.baseline else next(styles)
        points = []
        for load in grid.loads:
            summaries = grid.at(level, load)
            shared, step_s = middle(summaries, "engine_batch_mean"), middle(summaries, "step_mean_s")
            if shared and step_s is not None:
                points.append((shared, step_s / shared * 1e3, load))
                append(table, level, load, *points[-1][:2])
            elif summaries:
                reason = why_missing(summaries, "step_mean_s" if step_s is None else "engine_batch_mean")
                notes.append(f"{level} at {load} is not drawn: {reason or 'its engine counted nothing'}")
        if points:
            x, y, text = zip(*points, strict=True)
            hover = f"{level}, %{{text}}<br>%{{x:.1f}} in a step: %{{y:,.3~g}} ms a token<extra></extra>"
            traces.append(line(level, x, y, style, mode="markers", text=list(text), hovertemplate=hover))
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "the engine's counters were not read")
    layout = theme.layout(
        height=320,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 52},
        xaxis=theme.axis(answers, range=[0, 1.08 * max(table[answers])]),
        yaxis=theme.axis("cost of one token, ms"),
    )
    cells = list(zip(*(list(table.values())[2:]), strict=True))
    (few, dear), (many, cheap) = min(cells), max(cells)
    alt = f"With {few:.1f} answers in a step on average a token costs {format_seconds(dear / 1e3)}"
    alt += f", with {many:.1f} it costs {format_seconds(cheap / 1e3)}." if many > few else "."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, tuple(notes))


def answer_time(grid: Grid, load: str) -> Chart:
    """Mean seconds of an answer (x) by what they went to, one bar a level (y): waiting and reading the prompt until the
    first token, then writing the others."""
    title = "Where an answer's time goes"
    table: dict[str, list[Any]] = {"level": [], **{f"{name}, ms": [] for name, _, _ in PARTS}, "whole answer, ms": []}
    notes = [f"{load[0].upper()}{load[1:]}"]
    for level, summaries in grid.levels_at(load):
        first, whole = mean(summaries, "ttft_mean_s"), mean(summaries, "latency_mean_s")
        if first is None or whole is None:
            notes.append(f"{level}: {why_missing(summaries, 'ttft_mean_s') or 'no answer was complete'}")
            continue
        append(table, level, ms(first), ms(max(0.0, whole - first)), ms(whole))
    height = 110 + 44 * max(2, len(table["level"]))
    if not table["level"]:
        return nothing_to_draw(title, notes[1] if len(notes) > 1 else "no cell has run at this load", height=height)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(table["level"]),
            "x": floats([value / 1e3 for value in table[f"{name}, ms"]]),
            "marker": {"color": role, "pattern": pattern(hatch)},
            "hovertemplate": f"%{{y}}<br>{name}: %{{x:,.3~g}} s<extra></extra>",
        }
        for name, role, hatch in PARTS
    ]
    layout = theme.layout(
        height=height,
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        legend=theme.legend(traceorder="normal"),
        margin={"l": 100, "r": 70, "t": 40, "b": 52},
        xaxis=theme.axis("mean time of an answer, s"),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8),
        annotations=[
            {
                "x": whole / 1e3,
                "y": level,
                "text": format_seconds(whole / 1e3),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 6,
                "font": {"size": 12, "color": "@ink"},
            }
            for level, whole in zip(table["level"], table["whole answer, ms"], strict=True)
        ],
    )
    takeaway = "; ".join(
        f"{level}: {format_seconds(first / 1e3)} to the first token and {format_seconds(rest / 1e3)} for the others"
        for level, first, rest in zip(table["level"], *(table[f"{name}, ms"] for name, _, _ in PARTS), strict=True)
    )
    return Chart(title, {"data": traces, "layout": layout}, f"At {load}, {takeaway}.", table, tuple(notes))
