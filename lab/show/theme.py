"""One look for every figure: roles, colours in light and dark, dashes, axes.

A figure names roles ("@ink", "@blue"), never colours, so that one figure serves both modes: the browser paints it in
the mode of the page it stands on (lab/show/ui/chart.js), an export calls `paint`. Series colours are Okabe and Ito's,
which stay apart for colour-blind readers; dash and marker carry the same difference without any colour.
Importing streamlit replaces plotly's default template for the whole process, so nothing here relies on a template.

Knows nothing of runs or pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["light", "dark"]

ROLES: dict[Mode, dict[str, str]] = {
    "light": {
        "@surface": "#FFFFFF",
        "@ink": "#1B2733",
        "@muted": "#55606E",
        "@axis": "#9AA5B1",
        "@grid": "#E6EAEF",
        "@shade": "rgba(85,96,110,0.10)",
        # Cells of a heat map, on which words stand: the most of a blue one, and of one that warns.
        "@tint": "#A9D6F0",
        "@heat": "#F6BE96",
        "@grey": "#767676",
        "@blue": "#0072B2",
        "@vermillion": "#D55E00",
        "@green": "#009E73",
        "@purple": "#CC79A7",
        # Text in a series' colour needs 4.5:1, a line only 3:1.
        "@ink-text": "#1B2733",
        "@grey-text": "#5F6670",
        "@blue-text": "#00659E",
        "@vermillion-text": "#B34E00",
        "@green-text": "#007656",
        "@purple-text": "#A14A7C",
    },
    "dark": {
        "@surface": "#0F141A",
        "@ink": "#E6EBF1",
        "@muted": "#9AA7B5",
        "@axis": "#5B6774",
        "@grid": "#222B35",
        "@shade": "rgba(154,167,181,0.12)",
        "@tint": "#1C567D",
        "@heat": "#7A431B",
        "@grey": "#9AA3AE",
        "@blue": "#56B4E9",
        "@vermillion": "#F0803C",
        "@green": "#2FB68F",
        "@purple": "#CC79A7",
        "@ink-text": "#E6EBF1",
        "@grey-text": "#AEB7C1",
        "@blue-text": "#79C4EF",
        "@vermillion-text": "#F5A06C",
        "@green-text": "#5CCBA9",
        "@purple-text": "#DDA0C2",
    },
}


@dataclass(frozen=True)
class Style:
    """How one series looks: colour role, dash and marker together, so that none of them is needed alone."""

    role: str
    dash: str
    marker: str

    @property
    def text(self) -> str:
        """The role for words in this series' colour."""
        return f"{self.role}-text"


BASELINE = Style("@grey", "dash", "circle-open")
TREATMENT = Style("@blue", "solid", "circle")
STYLES = (
    TREATMENT,
    Style("@green", "dash", "square"),
    Style("@vermillion", "dot", "diamond"),
    Style("@purple", "dashdot", "triangle-up"),
)
FIFTH = Style("@ink", "longdash", "x")
"""For the one more that a comparison of six has."""

FONT = {"family": "Source Sans, Source Sans Pro, system-ui, sans-serif", "size": 13, "color": "@ink"}


def axis(title: str, *, log: bool = False, **more: Any) -> dict[str, Any]:
    """An axis whose title names quantity and unit. A log axis is labelled at 1, 2 and 5."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": "@muted"}, "standoff": 8},
        "type": "log" if log else "linear",
        "gridcolor": "@grid",
        "linecolor": "@axis",
        "tickcolor": "@axis",
        "tickfont": {"size": 12, "color": "@muted"},
        "ticks": "outside",
        "ticklen": 4,
        "showline": True,
        "zeroline": False,
        "automargin": True,
        "exponentformat": "none",
        "separatethousands": True,
        **({"dtick": "D2", "minorloglabels": "complete"} if log else {"rangemode": "tozero"}),
        **more,
    }


def layout(*, height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures share. Transparent, so that the page's own surface shows. Categories have no grid
    between them, and stand off the marks beside them."""
    for name, axis in more.items():
        if name.startswith("xaxis") and axis.get("type") == "category":
            axis.setdefault("showgrid", False)
        elif name.startswith("yaxis") and axis.get("type") in ("category", "multicategory"):
            axis.setdefault("ticklabelstandoff", 8)
    return {
        "height": height,
        "font": FONT,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 64, "r": 24, "t": 16, "b": 48},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "@surface", "bordercolor": "@axis", "font": {"color": "@ink", "size": 13}},
        "dragmode": "zoom",
        **more,
    }


def legend(**more: Any) -> dict[str, Any]:
    """A quiet one-line legend above the plot; only where lines move and direct labels would jump."""
    return {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "y": 1.0,
        "yanchor": "bottom",
        "bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12, "color": "@ink"},
        "itemwidth": 36,
        **more,
    }


def paint(value: Any, mode: Mode) -> Any:
    """`value` (a figure or any part of one) with every role replaced by its colour in `mode`."""
    if isinstance(value, str):
        return ROLES[mode].get(value, value) if value.startswith("@") else value
    if isinstance(value, dict):
        return {key: paint(inner, mode) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [paint(inner, mode) for inner in value]
    return value
