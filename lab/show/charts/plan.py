"""A plan as charts: predictions beside what was measured, and never alike.

What was measured is a filled mark; what is predicted is dashed, hatched or hollow, and its name says "predicted".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.measure.planner.answers import Told
from lab.measure.planner.heldout import HeldOut
from lab.measure.planner.limits import Limit
from lab.measure.planner.plan_words import ROUTERS
from lab.measure.planner.prediction import Prediction
from lab.measure.planner.queueing import Routing
from lab.measure.planner.setting import Point
from lab.measure.words import format_fraction, format_rate, format_seconds, format_setting_s
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    append,
    floats,
    level_line,
    line,
    log_axis,
    log_range,
    ms,
    nothing_to_draw,
    pattern,
    upright,
)

HEIGHT = 380
PREDICTED = theme.Style("@blue", "dash", "circle-open")
ASKED = theme.Style("@vermillion", "dot", "diamond-open")
MEASURED = theme.Style("@ink", "solid", "circle")
OTHERS = theme.Style("@grey", "solid", "square")


@dataclass(frozen=True)
class Asked:
    """What the reader asks about: the setting at its own rate."""

    told: Told
    words: str


def held_out(found: Sequence[HeldOut], metric: str, quantity: str) -> Chart:
    """Measured `quantity` of each judged block (x) against what the others predicted of it (y), both log: on the
    diagonal the model is right."""
    title = f"Held-out blocks: {quantity} predicted against measured"
    table: dict[str, list[Any]] = {"block": [], "setting": [], "rate, req/s": []}
    table |= {f"measured {quantity}, ms": [], f"predicted {quantity}, ms": [], "off by, %": [], "judged": []}
    traces: list[dict[str, Any]] = []
    drawn: list[float] = []
    sizes: list[float] = []
    for name, fitted, style in (("its setting known", True, PREDICTED), ("its setting left out", False, ASKED)):
        x, y, texts = [], [], []
        for one in found:
            if one.fitted != fitted:
                continue
            true, modelled, off = one.measured.get(metric), getattr(one.predicted, metric), one.errors.get(metric)
            told = ("yes" if one.judged else "no, near saturation") + ("" if fitted else ", setting left out")
            percent = None if off is None else 100 * off
            append(table, one.number, one.label, one.rate_rps, ms(true), ms(modelled), percent, told)
            if one.judged and true and modelled and off is not None:
                x.append(true * 1e3)
                y.append(modelled * 1e3)
                texts.append(f"{one.label}, {format_rate(one.rate_rps)}: {format_fraction(off)} off")
                sizes.append(abs(off))
        if x:
            hover = f"%{{text}}<br>measured %{{x:,.3~g}} ms<br>predicted %{{y:,.3~g}} ms<extra>{name}</extra>"
            traces.append(line(name, x, y, style, mode="markers", text=texts, hovertemplate=hover))
            drawn += [*x, *y]
    if not traces:
        return nothing_to_draw(title, f"no held-out block has enough answers for {quantity}", height=HEIGHT)
    span = log_range(drawn)
    ends = [10 ** span[0], 10 ** span[1]]
    right = line("predicted as measured", ends, ends, theme.Style("@muted", "dot", "circle"), mode="lines")
    right["hoverinfo"] = "skip"
    layout = theme.layout(
        height=HEIGHT,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 44, "b": 52},
        xaxis=log_axis(f"measured {quantity}, ms", span),
        yaxis=log_axis(f"predicted {quantity}, ms", span),
    )
    usual = format_fraction(float(np.median(sizes)))
    alt = f"{len(sizes)} held-out predictions of {quantity}: half of them within {usual}, the worst "
    alt += f"{format_fraction(max(sizes))} off."
    return Chart(title, {"data": [right, *traces], "layout": layout}, alt, table)


def curve(
    same: Sequence[Point],
    others: Sequence[Point],
    told: Sequence[Told],
    asked: Asked,
    slo_s: float | None,
    metric: str,
) -> Chart:
    """Served requests a second (x) against a latency (y, log): the run's blocks of the `same` setting, or where there
    are none of `others`, as marks, what is predicted as a dashed line in a hatched band, its whiskers as far as single
    simulated runs go, and what is asked about as a hollow diamond."""
    quantity = metric.split("_")[1]
    title = f"Throughput against {quantity}: measured, and predicted"
    setting = asked.told.setting
    table: dict[str, list[Any]] = {"what": [], "setting": [], "served, req/s": []}
    table |= {f"{quantity}, ms": [], "low, ms": [], "high, ms": [], "single runs from, ms": [], "to, ms": []}
    traces: list[dict[str, Any]] = []
    drawn: list[float] = [] if slo_s is None else [slo_s * 1e3]
    known = [one for one in told if getattr(one.predicted, metric) is not None]
    x = [one.predicted.throughput_rps for one in known]
    y = [getattr(one.predicted, metric) * 1e3 for one in known]
    bounds = [(one.predicted.throughput_rps, *one.bounds[metric]) for one in known if metric in one.bounds]
    for one in known:
        append(table, "predicted", asked.words, one.predicted.throughput_rps, *_told(one, metric))
    if bounds:
        rates, lows, highs = zip(*bounds, strict=True)
        band = line(
            "predicted, band of held-out errors",
            [*rates, *reversed(rates)],
            [1e3 * value for value in (*lows, *reversed(highs))],
            PREDICTED,
            mode="none",
            fill="toself",
            fillcolor="@shade",
            fillpattern={"shape": "/", "fgcolor": PREDICTED.role, "size": 8, "solidity": 0.12},
            hoverinfo="skip",
        )
        traces.append(band)
        drawn += [1e3 * value for value in (*lows, *highs)]
    if known:
        hover = f"predicted<br>%{{x:,.4~g}} req/s<br>{quantity} %{{y:,.3~g}} ms<extra></extra>"
        trace = line("predicted", x, y, PREDICTED, hovertemplate=hover)
        trace["error_y"] = _whiskers([one.predicted for one in known], [metric] * len(known), PREDICTED.role)
        traces.append(trace)
        drawn += [1e3 * end for one in known for end in one.predicted.between(metric) or ()] + y
    shown, style = (same, MEASURED) if same else (others, OTHERS)
    marks = [(p.served_rps, getattr(p, metric), p) for p in shown if p.served_rps and getattr(p, metric)]
    if marks:
        name = "measured" if same else "measured, other settings"
        hover = f"{name}, %{{text}}<br>%{{x:,.4~g}} req/s<br>{quantity} %{{y:,.3~g}} ms<extra></extra>"
        mx, my = [served for served, _, _ in marks], [value * 1e3 for _, value, _ in marks]
        labels = [point.label for _, _, point in marks]
        traces.append(line(name, mx, my, style, mode="markers", text=labels, hovertemplate=hover))
        drawn += my
    for point in shown:
        append(table, "measured", point.label, point.served_rps, ms(getattr(point, metric)), None, None, None, None)
    full = asked.told.load_fraction > 1  # then latency grows for as long as that lasts, and is no figure
    at = None if full else getattr(asked.told.predicted, metric)
    if at is not None:
        hover = f"predicted: what you ask about<br>%{{x:,.4~g}} req/s<br>{quantity} %{{y:,.3~g}} ms<extra></extra>"
        served = asked.told.predicted.throughput_rps
        mark = line("predicted: what you ask", [served], [at * 1e3], ASKED, mode="markers", hovertemplate=hover)
        mark["marker"]["size"] = 13
        traces.append(mark)
        drawn.append(at * 1e3)
        append(table, "predicted, asked", asked.words, served, *_told(asked.told, metric))
    if not traces:
        return nothing_to_draw(title, "nothing was measured or predicted here", height=HEIGHT)
    y_range = log_range(drawn)
    layout = theme.layout(
        height=HEIGHT,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 62, "b": 52},
        xaxis=theme.axis("served, requests a second"),
        yaxis=log_axis(f"{quantity} from the scheduled arrival, ms", y_range),
    )
    if slo_s is not None:
        shape, label = level_line(slo_s * 1e3, f"objective {format_setting_s(slo_s)}", log=True)
        right = {"x": 1, "xanchor": "right", "xshift": -6}  # where a curve has risen above it, if it does at all
        layout["shapes"], layout["annotations"] = [shape], [{**label, **right}]
    alt = f"Predicted {quantity} of {asked.words}: "
    if known:
        first, last = (f"{format_seconds(y[n] / 1e3)} at {format_rate(x[n])}" for n in (0, -1))
        alt += f"{first} to {last}"
    alt += f"; {format_seconds(at)} at the {format_rate(setting.rate_rps)} asked about." if at is not None else "."
    alt += f" The {format_rate(setting.rate_rps)} asked about are above its capacity." if full else ""
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def _told(one: Told, metric: str) -> list[float | None]:
    """The figure, the ends of its interval, and of what single runs say; milliseconds."""
    low, high = one.bounds.get(metric, (None, None))
    least, most = one.predicted.between(metric) or (None, None)
    return [ms(value) for value in (getattr(one.predicted, metric), low, high, least, most)]


def _whiskers(found: Sequence[Prediction], metrics: Sequence[str], color: str) -> dict[str, Any]:
    """From each prediction to the lowest and highest that a single simulated run says, as error bars; milliseconds."""
    below, above = [], []
    for one, metric in zip(found, metrics, strict=True):
        at = getattr(one, metric) or 0.0
        least, most = one.between(metric) or (at, at)
        below.append(1e3 * max(at - least, 0.0))
        above.append(1e3 * max(most - at, 0.0))
    bars = {"array": floats(above), "arrayminus": floats(below), "color": color, "thickness": 1.2, "width": 4}
    return {"type": "data", "symmetric": False, **bars}


def routers(found: Mapping[Routing, Prediction]) -> Chart:
    """Predicted latency (y) at three percentiles behind each router; hatched, since nothing of it was measured, with
    whiskers as far as single simulated runs go."""
    title = "Latency behind each router, predicted"
    percentiles = ("p50", "p95", "p99")
    table: dict[str, list[Any]] = {"router": [], **{f"{name}, ms": [] for name in percentiles}, "in time": []}
    traces = []
    styles = (theme.BASELINE, *theme.STYLES[:2])
    for (routing, one), style, shape in zip(found.items(), styles, ("/", "\\", "x"), strict=False):
        values = [ms(getattr(one, f"latency_{name}_s")) for name in percentiles]
        append(table, ROUTERS[routing], *values, one.slo_attainment_fraction)
        traces.append(
            {
                "type": "bar",
                "name": f"{ROUTERS[routing]}, predicted",
                "x": list(percentiles),
                "y": floats([np.nan if value is None else value for value in values]),
                "error_y": _whiskers([one] * len(percentiles), [f"latency_{name}_s" for name in percentiles], "@ink"),
                "marker": {"color": style.role, "pattern": pattern(shape)},
                "hovertemplate": f"{ROUTERS[routing]}, predicted<br>%{{x}} %{{y:,.3~g}} ms<extra></extra>",
            }
        )
    layout = theme.layout(
        height=HEIGHT,
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 62, "b": 52},
        xaxis=theme.axis("percentile of latency", type="category"),
        yaxis=theme.axis("latency, ms"),
    )
    told = "; ".join(f"{ROUTERS[routing]} p99 {format_seconds(one.latency_p99_s)}" for routing, one in found.items())
    return Chart(title, {"data": traces, "layout": layout}, f"Predicted: {told}.", table)


def limits(found: Sequence[Limit], rate_rps: float) -> Chart:
    """The rate (x, log) at which each limit gives way, the first to break on top. Predicted ones are hatched, measured
    ones plain, assumed ones dotted."""
    title = "What breaks at which rate"
    table: dict[str, list[Any]] = {"limit": [], "from, req/s": [], "how it is known": [], "in words": []}
    for limit in found:
        append(table, limit.name, limit.rate_rps, limit.known, limit.text)
    rated = [limit for limit in found if limit.rate_rps]
    if not rated:
        return nothing_to_draw(
            title, "no limit has a rate: the objective is missed even with next to no load", height=320
        )
    shapes = {"predicted": "/", "measured": "", "assumed": "."}
    rows = list(reversed(rated))
    values = [limit.rate_rps or 0.0 for limit in rows]
    span = log_range([*values, rate_rps], least_decades=1.0)
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "gives way",
        "y": [f"{limit.name} ({limit.known})" for limit in rows],
        "x": floats(values),
        "marker": {
            "color": ["@vermillion" if limit is rated[0] else "@grey" for limit in rows],
            "pattern": {**pattern(""), "shape": [shapes.get(limit.known, "") for limit in rows]},
        },
        "hovertemplate": "%{y}<br>from %{x:,.4~g} req/s on<extra></extra>",
    }
    layout = theme.layout(
        height=320,
        margin={"l": 150, "r": 24, "t": 28, "b": 52},
        xaxis=log_axis("requests a second, all replicas", span),
        yaxis=theme.axis("", type="category"),
        shapes=[{**upright(rate_rps, "@ink", "dash"), "layer": "above"}],
        annotations=[
            {
                "x": float(np.log10(rate_rps)),
                "yref": "paper",
                "y": 1.0,
                "yanchor": "bottom",
                "text": f"asked: {format_rate(rate_rps)}",
                "showarrow": False,
                "font": {"size": 12, "color": "@muted"},
            }
        ],
    )
    told = "; ".join(f"{limit.name} from {format_rate(limit.rate_rps)} ({limit.known})" for limit in rated)
    return Chart(title, {"data": [trace], "layout": layout}, f"First to break: {told}.", table)
