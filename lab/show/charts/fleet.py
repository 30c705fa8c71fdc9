"""Many models behind one budget: the cliff, what hits and misses wait, and who slows whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.measure.fleet_words import by_models, cliff, interference, statistic
from lab.measure.percentile import needed
from lab.measure.words import format_rate, format_seconds
from lab.show import theme
from lab.show.charts.figure import Chart, append, line, log_axis, log_range, ms, nothing_to_draw

Fleet = dict[str, Any]


def throughput(fleet: Fleet) -> Chart:
    """Requests a second (log y) against the number of models that are asked: where it breaks down is the cliff."""
    title = "Throughput against models"
    cells = by_models(fleet["cells"])
    if not cells:
        return nothing_to_draw(title, "no block was measured")
    x, y = [n for n, _ in cells], [cell["throughput_rps"] for _, cell in cells]
    labels = [format_rate(rate) for rate in y]
    trace = line("throughput", x, [rate or np.nan for rate in y], theme.TREATMENT, mode="lines+markers+text")
    trace |= {
        "text": labels,
        "textposition": "top right",
        "textfont": {"size": 12, "color": "@ink"},
        "hovertemplate": "%{x} models: %{text}<extra></extra>",
        "cliponaxis": False,
    }
    layout = theme.layout(
        height=340,
        margin={"l": 64, "r": 72, "t": 24, "b": 52},
        xaxis=theme.axis("models that are asked", tickvals=x, range=[min(x) - 0.4, max(x) + 0.6]),
        yaxis=log_axis("requests/s", log_range(y)),
    )
    table = {
        "models": x,
        "requests/s": y,
        "hits, %": [None if c["hit_fraction"] is None else 100 * c["hit_fraction"] for _, c in cells],
        "swaps": [c["swaps"] for _, c in cells],
        "time spent swapping, %": [100 * c["swapping_fraction"] for _, c in cells],
    }
    return Chart(title, {"data": [trace], "layout": layout}, cliff(fleet), table)


def waits(fleet: Fleet) -> Chart:
    """Latency (log y) of requests whose model was there and of those that waited for it, against the models asked; all
    repeats together, where the run's figures hold that."""
    title = "What a hit and a miss take"
    levels = fleet.get("waited") or [cell for _, cell in by_models(fleet["cells"])]
    table: dict[str, list[Any]] = {
        "models": [],
        "requests": [],
        "n": [],
        "p50, ms": [],
        "p99, ms": [],
        "largest seen, ms": [],
    }
    traces, drawn, told, notes = [], [], [], []
    for kind, label, style in (("hit", "hits", theme.TREATMENT), ("miss", "misses", theme.STYLES[2])):
        for p, dash in (("p50", "solid"), ("p99", "dot")):
            y = [np.nan if (v := level[f"{kind}_{p}_s"]) is None else v * 1e3 for level in levels]
            if np.isnan(y).all():
                continue
            look = theme.Style(style.role, dash, style.marker)
            hover = f"{label} {p}, %{{x}} models: %{{y:,.1f}} ms<extra></extra>"
            traces.append(line(f"{label} {p}", [level["models"] for level in levels], y, look, hovertemplate=hover))
            drawn += [v for v in y if not np.isnan(v)]
        for level in levels:
            figures = [ms(level.get(f"{kind}_{name}_s")) for name in ("p50", "p99", "max")]
            append(table, level["models"], label, level[f"{kind}_n"], *figures)
        notes += _too_few(levels, kind, label)
        last = next((level for level in reversed(levels) if level[f"{kind}_p50_s"] is not None), None)
        if last is not None:
            told.append(
                f"{label} take {format_seconds(last[f'{kind}_p50_s'])} at the median with {last['models']} models"
            )
    if not traces:
        return nothing_to_draw(title, "too few requests were answered")
    x = [level["models"] for level in levels]
    layout = theme.layout(
        height=340,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 52},
        xaxis=theme.axis("models that are asked", tickvals=x, range=[min(x) - 0.4, max(x) + 0.4]),
        yaxis=log_axis("latency, ms", log_range(drawn)),
    )
    return Chart(title, {"data": traces, "layout": layout}, f"{'; '.join(told)}.", table, tuple(notes))


def _too_few(levels: Sequence[dict[str, Any]], kind: str, label: str) -> list[str]:
    """What is not drawn, and the largest that was seen in its place."""
    notes = [
        f"{label} with {level['models']} models are not drawn: {level[f'{kind}_n']} are too few"
        for level in levels
        if 0 < level[f"{kind}_n"] < needed(0.5)
    ]
    short = [level for level in levels if needed(0.5) <= level[f"{kind}_n"] < needed(0.99)]
    if short:
        seen = [
            f"{level[f'{kind}_n']:,} with {level['models']} models"
            + (f", the largest {format_seconds(level[f'{kind}_max_s'])}" if level.get(f"{kind}_max_s") else "")
            for level in short
        ]
        notes.append(f"p99 of {label} needs {needed(0.99)} answers; there are {'; '.join(seen)}")
    return notes


def matrix(fleet: Fleet) -> Chart:
    """A tail of each model (rows) while the others are idle and while each of them is at work (columns), ms."""
    title = "Who slows whom"
    pairs = fleet["pairs"]
    if not pairs:
        return nothing_to_draw(title, "pairs of models were not measured in this run")
    tail = statistic(pairs) or "p50"
    victims = list(dict.fromkeys(pair["victim"] for pair in pairs))
    at_work = dict.fromkeys(_kind(pair["disturber"]) for pair in pairs if pair["disturber"])
    rows = [_kind(victim) for victim in victims]
    # In the order of the rows, so that nobody's own column is looked for.
    columns = [None, *(kind for kind in rows if kind in at_work), *(kind for kind in at_work if kind not in rows)]
    found = {(pair["victim"], pair["disturber"] and _kind(pair["disturber"])): pair for pair in pairs}
    value = [[found.get((v, d), {}).get(f"{tail}_s") for d in columns] for v in victims]
    ratio = [[_ratio(row[0], cell) for cell in row] for row in value]
    trace = {
        "type": "heatmap",
        "x": ["others idle", *(f"{kind}<br>at work" for kind in columns[1:])],
        "y": rows,
        "z": [[None if r is None else float(np.log2(max(r, 0.5))) for r in row] for row in ratio],
        "text": [[_cell(v, r) for v, r in zip(vs, rs, strict=True)] for vs, rs in zip(value, ratio, strict=True)],
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}, %{x}<br>%{text}<extra></extra>",
        "colorscale": [[0, "@surface"], [1, "@heat"]],
        "zmin": 0,
        "zmax": 3,  # eight times
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "textfont": {"size": 13, "color": "@ink"},
    }
    layout = theme.layout(
        height=110 + 64 * len(victims),
        margin={"l": 64, "r": 24, "t": 56, "b": 16},
        xaxis=theme.axis("", type="category", side="top", showline=False, ticks="", tickangle=0),
        yaxis=theme.axis(f"{tail} of", type="category", autorange="reversed", showline=False, ticks=""),
    )
    table: dict[str, list[Any]] = {
        "asked lightly": [],
        "at work": [],
        "asked at, req/s": [],
        "answers": [],
        "p50, ms": [],
        "p95, ms": [],
        "p99, ms": [],
    }
    for pair in pairs:
        tails = [ms(pair[f"{p}_s"]) for p in ("p50", "p95", "p99")]
        append(table, pair["victim"], pair["disturber"] or "none", pair["victim_rps"], pair["n"], *tails)
    least = min(pair["n"] for pair in pairs)
    notes = () if tail == "p99" else (f"{tail} is shown: p99 needs 459 answers, a pair here has {least}",)
    return Chart(title, {"data": [trace], "layout": layout}, interference(fleet) or "No pair to compare.", table, notes)


def _kind(name: str) -> str:
    """ "digits" of the fleet's digits_4: copies of one model stand for each other."""
    return name.rpartition("_")[0]


def _ratio(alone: float | None, beside: float | None) -> float | None:
    return None if not alone or beside is None else beside / alone


def _cell(seconds: float | None, ratio: float | None) -> str:
    if seconds is None:
        return "not measured"
    return format_seconds(seconds) if ratio is None or ratio == 1 else f"{format_seconds(seconds)}<br>{ratio:.1f}×"
