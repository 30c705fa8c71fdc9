"""The few SVG elements that a chart is made of. Colours are roles ("@blue") written as CSS variables; text is escaped.

Knows pixels, no data.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

DASHES = {"dash": "7 5", "dot": "2 4", "longdash": "11 5", "dashdot": "9 4 2 4"}
TAGS = re.compile(r"</?[a-z]+ ?/?>")
ROLE = re.compile(r"@[a-z-]+")
COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}|rgba?\([0-9., ]+\)")


def line(x0: float, y0: float, x1: float, y1: float, role: str, *, dash: str | None = None, width: float = 1) -> str:
    place = f'x1="{number(x0)}" y1="{number(y0)}" x2="{number(x1)}" y2="{number(y1)}"'
    return f'<line {place} stroke="{colour(role)}" stroke-width="{width:g}"{_dashed(dash)}/>'


def polyline(points: Sequence[tuple[float, float]], role: str, dash: str | None) -> str:
    path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    look = f'fill="none" stroke="{colour(role)}" stroke-width="2" stroke-linejoin="round"'
    return f'<polyline points="{path}" {look}{_dashed(dash)}/>'


def bar(x: float, y: float, width: float, height: float, role: str, *, pale: bool) -> str:
    """`pale`: faint with a dashed edge, in place of a hatching."""
    look = f'fill="{colour(role)}"'
    if pale:
        look += f' fill-opacity="0.35" stroke="{colour(role)}" stroke-dasharray="3 2"'
    return f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" {look}/>'


def cell(x: float, y: float, width: float, height: float, strength: float) -> str:
    """One cell of a heat map; `strength` from 0 to 1."""
    box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect {box} fill="var(--blue)" fill-opacity="{strength:.2f}"/>'


def mark(x: float, y: float, symbol: str, role: str) -> str:
    """A marker by plotly's name for it; "-open" is hollow."""
    fill = "var(--surface)" if symbol.endswith("-open") else colour(role)
    edge = f'stroke="{colour(role)}" stroke-width="1.5"'
    x_, y_ = number(x), number(y)
    match symbol.removesuffix("-open"):
        case "square":
            return f'<rect x="{number(x - 4)}" y="{number(y - 4)}" width="8" height="8" fill="{fill}" {edge}/>'
        case "diamond":
            return f'<path d="M{x_} {number(y - 5)}l5 5l-5 5l-5 -5z" fill="{fill}" {edge}/>'
        case "triangle-up":
            return f'<path d="M{x_} {number(y - 5)}l5 9h-10z" fill="{fill}" {edge}/>'
        case "x":
            return f'<path d="M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8" fill="none" {edge}/>'
    return f'<circle cx="{x_}" cy="{y_}" r="4" fill="{fill}" {edge}/>'


def text(x: float, y: float, words: str, role: str, anchor: str, *, halo: bool = False, turned: bool = False) -> str:
    """`halo`: with the page's own colour around it, over lines; `turned`: reads upward. Tags that plotly would read
    (<b>) are left out."""
    around = ' class="halo"' if halo else ""
    turn = f' transform="rotate(-90 {number(x)} {number(y)})"' if turned else ""
    place = f'x="{number(x)}" y="{number(y)}" fill="{colour(role)}" text-anchor="{anchor}"'
    return f"<text {place}{around}{turn}>{html.escape(TAGS.sub('', words.replace('<br>', ' ')))}</text>"


def colour(role: str) -> str:
    """A role as a CSS variable; a colour as it is; anything else grey."""
    if ROLE.fullmatch(role):
        return f"var(--{role[1:]})"
    return role if COLOUR.fullmatch(role) else "var(--grey)"


def number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "0"


def _dashed(dash: str | None) -> str:
    return f' stroke-dasharray="{DASHES[dash]}"' if dash in DASHES else ""
