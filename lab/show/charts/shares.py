"""Who had the traffic when: requests a second by version, stacked, with each move of the traffic marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure.words import format_fraction, format_seconds
from lab.show import theme
from lab.show.charts.figure import Chart, floats, nothing_to_draw, pattern, upright

HEIGHT = 320
HATCHED = ("", "/")
STYLES = (theme.BASELINE, theme.TREATMENT)


def by_version(
    title: str, traffic: Mapping[str, Sequence[float]], names: Mapping[str, str], moves: Sequence[tuple[float, str]]
) -> Chart:
    """`traffic`: {"t_s": seconds, version: requests a second}; `names`: at most two versions and what they are called;
    `moves`: (seconds, what was done), in order."""
    t_s = list(traffic.get("t_s", ()))
    if not t_s:
        return nothing_to_draw(title, "no request was sent", height=HEIGHT)
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": floats(t_s),
            "y": floats(traffic[version]),
            "marker": {"color": style.role, "pattern": pattern(hatch)},
            "hovertemplate": f"{name}: %{{y:.0f}} req/s at %{{x:.1f}} s<extra></extra>",
        }
        for (version, name), style, hatch in zip(names.items(), STYLES, HATCHED, strict=False)
    ]
    last = max(names, key=lambda version: traffic[version][-1])
    told = ", ".join(f"{what} after {format_seconds(at)}" if at > 0 else f"{what} at 0 s" for at, what in moves)
    second = list(names)[-1]
    whole = sum(sum(traffic[version]) for version in names)
    share = format_fraction(sum(traffic[second]) / whole) if whole else "none"
    table: dict[str, list[Any]] = {"second": [round(t, 2) for t in t_s]}
    table |= {f"{name} (req/s)": list(traffic[version]) for version, name in names.items()}
    width = t_s[1] - t_s[0] if len(t_s) > 1 else 1.0
    layout = theme.layout(
        height=HEIGHT,
        barmode="stack",
        bargap=0,
        showlegend=True,
        legend=theme.legend(traceorder="normal", y=1.2),
        margin={"l": 64, "r": 24, "t": 84, "b": 48},
        xaxis=theme.axis("seconds since the first move", range=[t_s[0] - width / 2, t_s[-1] + width / 2]),
        yaxis=theme.axis("requests a second"),
        shapes=[{**upright(at, "@ink", "dash"), "layer": "above"} for at, _ in moves],
        annotations=[_over(at, what, n, at > (t_s[0] + 3 * t_s[-1]) / 4) for n, (at, what) in enumerate(moves)],
    )
    alt = f"{title}: {names[second]} had {share} of the requests; {told}; {names[last]} has them in the end"
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def _over(x: float, text: str, n: int, late: bool) -> dict[str, Any]:
    """Labels of moves that follow soon after each other stand one above the other, a late one to the left of its
    line."""
    anchor, shift = ("right", -3) if late else ("left", 3)
    return {
        "x": x, "yref": "paper", "y": 1, "yanchor": "bottom", "yshift": 14 * (n % 2), "xanchor": anchor,
        "xshift": shift, "text": text, "showarrow": False, "font": {"size": 12, "color": "@muted"},
    }  # fmt: skip
