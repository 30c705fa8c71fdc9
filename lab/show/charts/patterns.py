"""Ways of serving one model beside each other: what each makes, how long whom it makes wait, which promise it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.measure.words import format_fraction, format_ratio, format_seconds, format_token_rate
from lab.show import theme
from lab.show.charts.figure import Chart, floats, log_axis, log_range, ms, nothing_to_draw, pattern

Found = dict[str, Any]
HEIGHT = 340
MOST_RATIO = 10.0
"""Up to so many times the cheapest a cost is drawn."""
LOOKS = (("@blue", ""), ("@green", "/"), ("@vermillion", "x"), ("@purple", "."))


def made(found: Found) -> Chart:
    """Tokens a second of each way, and in which share of the time the engine computed."""
    title = "What each way makes of the machine"
    ways = [way for way in found["ways"] if way["output_tokens_per_s"]]
    if not ways:
        return nothing_to_draw(title, "no tokens were counted", height=HEIGHT)
    names, rates = [way["label"] for way in ways], [way["output_tokens_per_s"] for way in ways]
    busy = [way["engine_busy_fraction"] for way in ways]
    texts = [
        format_token_rate(rate) + ("" if share is None else f"<br>busy {format_fraction(share)}")
        for rate, share in zip(rates, busy, strict=True)
    ]
    trace = _bars("tokens a second", names, rates, LOOKS[0]) | {
        "text": texts,
        "textposition": "outside",
        "textfont": {"size": 12, "color": "@ink"},
        "cliponaxis": False,
        "hovertemplate": "%{x}: %{y:,.0f} tok/s<extra></extra>",
    }
    layout = theme.layout(
        height=HEIGHT,
        margin={"l": 64, "r": 24, "t": 40, "b": 64},
        xaxis=_ways_axis(),
        yaxis=theme.axis("output tokens/s", range=[0, 1.25 * max(rates)]),
    )
    most = ways[int(np.argmax(rates))]
    alt = f"{most['label']} makes the most: {format_token_rate(max(rates))}, {format_ratio(max(rates) / min(rates))} "
    alt += "the least."
    table = {
        "way": names,
        "tokens/s": rates,
        "engine busy, %": [None if share is None else 100 * share for share in busy],
        "CPU, % of a core": [
            None if way["cpu_mean_fraction"] is None else 100 * way["cpu_mean_fraction"] for way in ways
        ],
    }
    return Chart(title, {"data": [trace], "layout": layout}, alt, table)


def waits(found: Found) -> Chart:
    """How long until the first token and until the whole answer, log y."""
    title = "Who waits how long"
    ways = found["ways"]
    names = [way["label"] for way in ways]
    series = (
        ("first token, p50", [way["ttft_p50_s"] if way["streams"] else None for way in ways]),
        ("whole answer, p50", [way["latency_p50_s"] for way in ways]),
        ("whole answer, p95", [way["latency_p95_s"] for way in ways]),
    )
    drawn = [value * 1e3 for _, values in series for value in values if value]
    if not drawn:
        return nothing_to_draw(title, "no answer was timed", height=HEIGHT)
    span = log_range(drawn)
    floor = 10 ** span[0]
    traces = [
        _bars(name, names, [np.nan if value is None else value * 1e3 - floor for value in values], look)
        | {"base": floor, "customdata": floats([np.nan if v is None else v * 1e3 for v in values])}
        | {"hovertemplate": f"%{{x}}: {name} %{{customdata:,.0f}} ms<extra></extra>"}
        for (name, values), look in zip(series, LOOKS, strict=False)
    ]
    layout = theme.layout(
        height=HEIGHT,
        barmode="group",
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 44, "b": 64},
        xaxis=_ways_axis(),
        yaxis=log_axis("ms", span),
    )
    first = next((way for way in ways if way["streams"] and way["ttft_p50_s"]), None)
    alt = "Whole answers at the median: "
    alt += ", ".join(f"{way['label']} {format_seconds(way['latency_p50_s'])}" for way in ways) + "."
    if first is not None:
        alt += f" The first token of {first['label']}: {format_seconds(first['ttft_p50_s'])}."
    table = {"way": names, **{f"{name}, ms": [ms(value) for value in values] for name, values in series}}
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def promises(found: Found) -> Chart:
    """Of each promise the share of requests within it, by every way."""
    title = "Which way keeps which promise"
    targets = found["targets"]
    if not targets:
        return nothing_to_draw(title, "no way was given a promise", height=HEIGHT)
    names = [way["label"] for way in found["ways"]]
    traces = []
    table: dict[str, list[Any]] = {"way": names}
    for target, look in zip(targets, LOOKS, strict=False):
        shares = [None if one["share"] is None else 100 * one["share"] for one in target["ways"]]
        values = [np.nan if share is None else share for share in shares]
        hover = "%{x}: %{y:.1f} % within " + target["promise"] + "<extra></extra>"
        traces.append(_bars(target["promise"], names, values, look) | {"hovertemplate": hover})
        table[f"within {target['promise']}, %"] = shares
        table[f"cost of a good item by {target['promise']}, × the cheapest"] = [o["cost_ratio"] for o in target["ways"]]
    layout = theme.layout(
        height=HEIGHT,
        barmode="group",
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 64, "b": 64},
        xaxis=_ways_axis(),
        yaxis=theme.axis("requests within the promise, %", range=[0, 105]),
    )
    alt = " ".join(f"{target['promise']}: {target['suits'] or 'none of them'} suits it." for target in targets)
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def costs(found: Found) -> Chart:
    """What a good item costs in each way, by each promise, in units of the cheapest."""
    title = "What a good item costs, the cheapest being 1"
    names = [way["label"] for way in found["ways"]]
    traces, drawn, beyond = [], [], []
    table: dict[str, list[Any]] = {"way": names}
    table["an item, good or not, s of the machine"] = [way["machine_s_per_item"] for way in found["ways"]]
    for target, look in zip(found["targets"], LOOKS, strict=False):
        ratios = [one["cost_ratio"] for one in target["ways"]]
        values = [np.nan if ratio is None else ratio for ratio in ratios]
        drawn += [value for value in values if not np.isnan(value)]
        beyond += [
            f"{name} by {target['promise']}: {format_ratio(value)}, more than is drawn"
            for name, value in zip(names, values, strict=True)
            if value > MOST_RATIO
        ]
        hover = "%{x}: %{y:.2f} × by " + target["promise"] + "<extra></extra>"
        traces.append(_bars(target["promise"], names, values, look) | {"hovertemplate": hover})
        table[f"by {target['promise']}, ×"] = ratios
        table[f"by {target['promise']}, s of the machine"] = [one["machine_s_per_good"] for one in target["ways"]]
    if not drawn:
        return nothing_to_draw(title, "no way made a good item", height=HEIGHT)
    layout = theme.layout(
        height=HEIGHT,
        barmode="group",
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 64, "b": 64},
        xaxis=_ways_axis(),
        yaxis=theme.axis("× the cheapest way's", range=[0, 1.1 * min(max(drawn), MOST_RATIO)]),
    )
    last = found["targets"][-1]
    parts = [f"{one['label']} {format_ratio(one['cost_ratio'])}" for one in last["ways"]]
    alt = f"By {last['promise']}: {', '.join(parts)}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, tuple(beyond))


def _bars(name: str, x: list[str], y: Any, look: tuple[str, str]) -> dict[str, Any]:
    role, hatch = look
    labels = [label.replace(", ", ",<br>") for label in x]
    return {
        "type": "bar",
        "name": name,
        "x": labels,
        "y": floats(y),
        "marker": {"color": role, "pattern": pattern(hatch)},
    }


def _ways_axis() -> dict[str, Any]:
    return theme.axis("", type="category", ticks="")
