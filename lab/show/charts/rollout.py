"""A rollout as charts: what the guard compares, each with its interval, and how the traffic moved.

Both read what the guard and the routes wrote (lab/track); nothing is computed here but where it stands on the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, nothing_to_draw, upright

NAMES = {"errors": "Errors", "latency_p95": "p95 latency", "latency_p99": "p99 latency", "quality": "Bad answers"}
STYLE = {"worse": theme.STYLES[2], "fine": theme.STYLES[1], "undecided": theme.BASELINE}
WORDS = {"worse": "worse", "fine": "within what is tolerated", "undecided": "not decided yet"}
MOST = 4.0
"""Times of what is tolerated that are drawn; a bar that ends there goes on."""


def comparisons(found: Sequence[Mapping[str, Any]]) -> Chart:
    """Challenger against champion: 0 is alike, 1 all that is tolerated, in each metric's own unit in the table."""
    title = "Challenger beside champion"
    columns = ("metric", "champion", "challenger", "effect", "from", "to", "tolerated", "verdict")
    table: dict[str, list[Any]] = {column: [] for column in columns}
    traces: list[dict[str, Any]] = []
    notes: list[str] = []
    said: list[str] = []
    rows = [one for one in found if one["effect"] is not None]
    for one in found:
        append(table, NAMES[one["name"]], *(_shown(one, key) for key in ("champion", "challenger")), *_effect(one))
        if one["effect"] is None:
            notes.append(f"{NAMES[one['name']]}: not measured yet, there are no {one['lacks']}")
    if not rows:
        return nothing_to_draw(title, notes[0] if notes else "the guard has not looked yet", height=260)
    for place, one in enumerate(reversed(rows)):
        style = STYLE[one["standing"]]
        low, middle, high = (_of_tolerated(one, key) for key in ("low", "effect", "high"))
        assert middle is not None  # noqa: S101  a row without an effect is not drawn
        ends = _drawn(-MOST if low is None else low), _drawn(MOST if high is None else high)
        at = _drawn(middle)
        name = f"{NAMES[one['name']]}: {WORDS[one['standing']]}"
        traces += [
            {
                "type": "scatter", "mode": "lines", "name": name, "x": floats(ends), "y": [place, place],
                "hoverinfo": "skip",
                "line": {"color": style.role, "width": 4},
            },
            {
                "type": "scatter", "mode": "markers", "name": name, "x": floats([at]), "y": [place],
                "marker": {"color": style.role, "symbol": style.marker, "size": 13,
                           "line": {"color": style.role, "width": 2}},
                "hovertemplate": f"{name}<br>{middle:.2f} of what is tolerated<extra></extra>",
            },
        ]  # fmt: skip
        said.append(f"{NAMES[one['name']]} at {100 * middle:.0f} % of what is tolerated, {WORDS[one['standing']]}")
    names = [f"{NAMES[one['name']]}" for one in reversed(rows)]
    figure = {
        "data": traces,
        "layout": theme.layout(
            height=110 + 60 * len(rows),
            margin={"l": 110, "r": 24, "t": 28, "b": 48},
            xaxis=theme.axis(
                "harm beside the champion (1 = all that is tolerated)", range=[-MOST - 0.1, MOST + 0.1], dtick=1
            ),
            yaxis={
                **theme.axis("", range=[-0.6, len(rows) - 0.4]),
                "tickvals": list(range(len(rows))),
                "ticktext": names,
            },
            shapes=[upright(0, "@ink"), upright(1, "@vermillion", "dash")],
            annotations=[_over(0, "alike", "right"), _over(1, "tolerated", "left")],
        ),
    }
    return Chart(title, figure, f"{title}: {'; '.join(reversed(said))}", table, tuple(notes))


def traffic(audit: Sequence[Mapping[str, Any]], challenger: str) -> Chart:
    """The challenger's share by time, a step at each decision."""
    title = f"Share of version {challenger}"
    moves = [line for line in audit if isinstance(line.get("after"), dict) and challenger in line["after"]]
    if not moves:
        return nothing_to_draw(title, "no traffic was moved yet", height=260)
    begun = datetime.fromisoformat(moves[0]["utc"])
    minutes = [(datetime.fromisoformat(line["utc"]) - begun).total_seconds() / 60 for line in moves]
    shares = [100 * line["after"][challenger] for line in moves]
    end = max(minutes[-1] * 1.05, minutes[-1] + 0.5)
    style = theme.TREATMENT
    table = {
        "minute": [round(minute, 2) for minute in minutes],
        "share (%)": shares,
        "what": [str(line.get("action", "")) for line in moves],
        "by": [str(line.get("by", "")) for line in moves],
    }
    figure = {
        "data": [
            {
                "type": "scatter", "mode": "lines+markers",
                "x": floats([*minutes, end]), "y": floats([*shares, shares[-1]]),
                "line": {"color": style.role, "width": 2, "shape": "hv"},
                "marker": {"color": style.role, "symbol": style.marker, "size": 8},
                "hovertemplate": "%{y:.3g} % from minute %{x:.1f}<extra></extra>",
            }
        ],
        "layout": theme.layout(
            height=260,
            xaxis=theme.axis("minutes since the first"),
            yaxis=theme.axis("share of the requests (%)", range=[0, 105]),
        ),
    }  # fmt: skip
    alt = f"{title}: {shares[-1]:g} % now, after {len(moves)} moves in {minutes[-1]:.1f} minutes"
    return Chart(title, figure, alt, table)


def _drawn(harm: float) -> float:
    return min(max(harm, -MOST), MOST)


def _of_tolerated(one: Mapping[str, Any], key: str) -> float | None:
    """Harm as a multiple of what is tolerated."""
    value = one[key]
    if value is None:
        return None
    if one["name"] in ("errors", "quality"):
        return float(value / one["tolerated"]) if one["tolerated"] else None
    return float((value - 1) / (one["tolerated"] - 1)) if one["tolerated"] != 1 else None


def _shown(one: Mapping[str, Any], key: str) -> str | None:
    value = one[key]
    if value is None:
        return None
    return f"{100 * value:.2f} %" if one["name"] in ("errors", "quality") else f"{1e3 * value:.3g} ms"


def _effect(one: Mapping[str, Any]) -> list[str | None]:
    def told(value: float | None) -> str | None:
        if value is None:
            return None
        return f"{100 * value:+.2f} points" if one["name"] in ("errors", "quality") else f"{value:.2f} ×"

    return [*(told(one[key]) for key in ("effect", "low", "high", "tolerated")), WORDS[one["standing"]]]


def _over(x: float, text: str, ends_at: str) -> dict[str, Any]:
    """`ends_at`: the edge of the text that stands over x, "left" or "right"."""
    return {
        "x": x, "yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": ends_at, "text": text, "showarrow": False,
        "font": {"size": 12, "color": "@muted"},
    }  # fmt: skip
