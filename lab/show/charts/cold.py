"""A cold start as a waterfall, plain beside remedied, and every way to start against the plain one.

Both take the part "cold" of a run's document (lab/measure/cold.py).
"""

from __future__ import annotations

from typing import Any

from lab.measure.cold import Cold, baseline_of, is_remedied
from lab.measure.start_words import STAGES, stage_label
from lab.measure.words import format_bytes, format_fraction, format_ratio, format_seconds
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, log_axis, log_range, nothing_to_draw, pattern

ROW = 34


def models(found: Cold) -> list[str]:
    """Of which something was measured, in the run's order."""
    return list(dict.fromkeys(one["model"] for one in found["cells"] if one["starts"]))


def pair(found: Cold, model: str, label: str | None = None) -> tuple[Cold | None, Cold | None]:
    """(plain, the start called `label`) of a model; without a label the one with all remedies, else the fastest."""
    own = [one for one in found["cells"] if one["model"] == model and one["starts"]]
    judge = found.get("judge")
    plain = baseline_of(found, own[0], judge) if own and judge else (own[0] if own else None)
    others = [one for one in own if plain is None or one["cell"] != plain["cell"]]
    wanted = (
        [one for one in others if one["label"] == label] if label else [o for o in others if is_remedied(o["start"])]
    )
    fastest = sorted(others, key=lambda one: one["total_s"]["mean"])
    return plain, next(iter(wanted or fastest), None)


def waterfall(plain: Cold | None, other: Cold | None) -> Chart:
    """One row a stage, one panel a start, each on a time axis of its own; what no stage explains is the last row."""
    title = "Where a cold start goes"
    sides = [(one, style, shape) for one, style, shape in (
        (plain, theme.BASELINE, "/"), (other, theme.TREATMENT, "")) if one is not None]  # fmt: skip
    if not sides:
        return nothing_to_draw(title, "no start was measured")
    names = [name for name in STAGES if any(name in one["stages"] for one, _, _ in sides)]
    rows = [STAGES[name] for name in names]
    table: dict[str, list[Any]] = {"start": [], "stage": [], "mean, s": [], "low": [], "high": [], "share": []}
    traces, axes, titles, takeaways = [], {}, [], []
    width = 1.0 / len(sides)
    for number, (one, style, shape) in enumerate(sides):
        begin, base, lengths, texts = 0.0, [], [], []
        total = one["total_s"]["mean"]
        for name in names:
            stage = one["stages"].get(name)
            took = stage["mean"] if stage else None
            base.append(begin)
            lengths.append(took or 0.0)
            texts.append("" if took is None else format_seconds(took))
            begin += took or 0.0
            low, high = (None, None) if stage is None else (stage["low"], stage["high"])
            append(
                table,
                one["label"],
                stage_label(name, one["start"]),
                took,
                low,
                high,
                None if took is None else took / total,
            )
        suffix = "" if number == 0 else str(number + 1)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": one["label"],
                "y": rows,
                "x": floats(lengths),
                "base": floats(base),
                "xaxis": f"x{suffix}",
                "marker": {"color": style.role, "pattern": pattern(shape)},
                "text": texts,
                "textposition": "outside",
                "textfont": {"size": 12, "color": "@ink"},
                "cliponaxis": False,
                "hovertemplate": f"{one['label']}<br>%{{y}}: %{{text}}<extra></extra>",
            }
        )
        span = max(total, begin)
        domain = [number * width, (number + 1) * width - (0.08 if number + 1 < len(sides) else 0.0)]
        axes[f"xaxis{suffix}"] = theme.axis("s since it was asked for", range=[0, 1.15 * span], domain=domain)
        titles.append(_over(f"{one['label']}, {format_seconds(total)}", sum(domain) / 2))
        largest = names[max(range(len(names)), key=lengths.__getitem__)]
        share = one["stages"][largest]["mean"] / total if largest in one["stages"] else 0.0
        called = stage_label(largest, one["start"])
        takeaways.append(f"{one['label']} {format_seconds(total)}, of which {called} {format_fraction(share)}")
    layout = theme.layout(
        height=110 + ROW * len(rows),
        margin={"l": 150, "r": 24, "t": 44, "b": 52},
        bargap=0.3,
        annotations=titles,
        yaxis=theme.axis(
            "", type="category", categoryarray=rows, range=[len(rows) - 0.5, -0.5], rangemode="normal", ticks="",
            showline=False,
        ),
        **axes,
    )  # fmt: skip
    notes = ("Each side has a time axis of its own.",) if len(sides) > 1 else ()
    return Chart(title, {"data": traces, "layout": layout}, "; ".join(takeaways) + ".", table, notes)


def _over(text: str, x: float) -> dict[str, Any]:
    return {
        "xref": "paper", "yref": "paper", "x": x, "y": 1.0, "text": text, "showarrow": False, "xanchor": "center",
        "yanchor": "bottom", "yshift": 10, "font": {"size": 13, "color": "@ink"},
    }  # fmt: skip


def ways(found: Cold, model: str) -> Chart:
    """Every way to start of a model: seconds to the first answer (log), with the interval over its starts."""
    title = "Every way to start"
    own = [one for one in found["cells"] if one["model"] == model and one["starts"]]
    if not own:
        return nothing_to_draw(title, "no start was measured")
    plain, _ = pair(found, model)
    table: dict[str, list[Any]] = {"start": [], "starts": [], "mean, s": [], "low": [], "high": [], "of plain": []}
    table |= {"unexplained": [], "later answers, s": [], "memory of a worker, MiB": [], "held while nothing runs": []}
    values, up, down, said = [], [], [], []
    for one in own:
        mean, low, high = (one["total_s"][key] for key in ("mean", "low", "high"))
        ratio = None if plain is None or one is plain else mean / plain["total_s"]["mean"]
        memory = one["memory_bytes"]
        append(
            table, one["label"], one["starts"], mean, low, high, ratio, one["unexplained_fraction"],
            one["steady_s"]["mean"], None if memory is None else memory / 2**20, price_label(one),
        )  # fmt: skip
        values.append(mean)
        up.append(0.0 if high is None else high - mean)
        down.append(0.0 if low is None else mean - low)
        said.append(format_seconds(mean) + ("" if ratio is None or ratio == 1 else f", {format_ratio(ratio)}"))
    labels = [one["label"] for one in own]
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": floats(values),
        "y": labels,
        "text": said,
        "textposition": "top center",
        "textfont": {"size": 12, "color": "@ink"},
        "cliponaxis": False,
        "error_x": {
            "type": "data", "symmetric": False, "array": floats(up), "arrayminus": floats(down), "color": "@axis",
            "thickness": 1.5, "width": 4,
        },
        "marker": {
            "size": 10,
            "color": ["@grey" if plain and one["cell"] == plain["cell"] else "@blue" for one in own],
            "symbol": ["circle-open" if plain and one["cell"] == plain["cell"] else "circle" for one in own],
            "line": {"width": 1.5, "color": "@grey"},
        },
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }  # fmt: skip
    low_end, high_end = log_range([*values, *(v + u for v, u in zip(values, up, strict=True))], least_decades=1.6)
    layout = theme.layout(
        height=max(320, 96 + ROW * len(own)),
        margin={"l": 190, "r": 24, "t": 20, "b": 52},
        xaxis=log_axis("seconds to the first answer", (low_end, high_end)),
        yaxis=theme.axis(
            "", type="category", categoryarray=labels, range=[len(own) - 0.5, -0.5], rangemode="normal", ticks="",
            showline=False,
        ),
    )  # fmt: skip
    best = min(own, key=lambda one: one["total_s"]["mean"])
    alt = f"{model}: fastest is {best['label']} with {format_seconds(best['total_s']['mean'])}"
    if plain is not None and plain is not best:
        alt += f", against {format_seconds(plain['total_s']['mean'])} of the plain start"
    return Chart(title, {"data": [trace], "layout": layout}, alt + ".", table)


def price_label(one: Cold) -> str:
    """What a way to start holds while nothing runs, in a few words."""
    parts = []
    if one["start"].get("keep_warm") and one["memory_bytes"] is not None:
        parts.append(f"{format_bytes(one['memory_bytes'])} of memory")
    elif one["parent_bytes"] is not None:
        parts.append(f"{format_bytes(one['parent_bytes'])} of memory")
    if one["kept_bytes"]:
        parts.append(f"{format_bytes(sum(one['kept_bytes'].values()))} of disk")
    return ", ".join(parts) or "nothing"
