"""A chart as SVG: for the report, which must open anywhere, print, and hold no script.

Draws the plotly dicts that lab.show.charts makes: lines, marks, bars (beside or on each other), heat maps, waterfalls,
error bars, the notes and lines that a layout adds. Colours stay roles, written as CSS variables (--blue), so that one
drawing serves light, dark and paper. Whatever text comes in is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from lab.show import strokes
from lab.show.axes import Axis, axis, values
from lab.show.charts.figure import Chart

WIDTH = 720
LETTER = 6.4
"""Mean width of a character at 12 px, to leave room for labels."""


def svg(chart: Chart, width: int = WIDTH) -> str:
    """The drawing, with the chart's alt text for who cannot see it; a line of text where there is nothing to draw."""
    layout, traces = chart.figure["layout"], chart.figure["data"]
    height = int(layout.get("height", 380))
    if not traces:
        return f'<p class="nothing">{html.escape(chart.alt)}</p>'
    box = _Box(layout, traces, width, height)
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(chart.alt, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg" font-size="12">',
        *box.frame(),
        *box.shapes(),
        *box.bars(),
        *(part for trace in traces for part in box.trace(trace)),
        *box.annotations(),
        *box.legend(),
        "</svg>",
    ]
    return "\n".join(parts)


class _Box:
    """One figure's axes and how its parts lie on them."""

    def __init__(self, layout: Mapping[str, Any], traces: Sequence[Mapping[str, Any]], width: int, height: int) -> None:
        self.layout, self.traces = layout, traces
        self.has_legend = bool(layout.get("showlegend"))
        margin = layout.get("margin", {})
        along_x = [v for trace in traces for v in (*values(trace.get("x")), *self._ends(trace, "x"))]
        along_y = [v for trace in traces for v in (*values(trace.get("y")), *self._ends(trace, "y"))]
        declared_x, declared_y = layout.get("xaxis", {}), layout.get("yaxis", {})
        left = int(margin.get("l", 64))
        if declared_y.get("type") == "category":
            left = max(left, 20 + round(LETTER * max((len(str(v)) for v in along_y), default=0)))
        self.left, self.right = min(left, width // 2), width - int(margin.get("r", 24))
        self.top, self.bottom = int(margin.get("t", 16)), height - int(margin.get("b", 48))
        self.x: Axis = axis(declared_x, along_x, self.left, self.right)
        self.y: Axis = axis(declared_y, along_y, self.bottom, self.top)

    def _ends(self, trace: Mapping[str, Any], along: str) -> list[Any]:
        """Where stacked, based and summed bars end, so that the axis reaches there."""
        is_length = along == ("x" if trace.get("orientation") == "h" else "y")
        if trace["type"] == "waterfall" and is_length:
            total, reach = 0.0, []
            for kind, value in zip(trace["measure"], values(trace[along]), strict=True):
                total = total + (value or 0.0) if kind == "relative" else (value or 0.0)
                reach.append(total)
            return [0.0, *reach]
        if trace["type"] == "bar" and is_length:
            base = values(trace.get("base")) or [0.0]
            if self.layout.get("barmode") == "stack":
                every = [values(t[along]) for t in self.traces if t["type"] == "bar"]
                return [0.0, *(sum(v or 0.0 for v in column) for column in zip(*every, strict=False))]
            return base
        return []

    # --- frame ---

    def frame(self) -> list[str]:
        out = []
        for at, text in self.x.ticks:
            x = self.x.pixel(at)
            if self.x.kind != "category":
                out.append(strokes.line(x, self.top, x, self.bottom, "@grid"))
            out.append(strokes.text(x, self.bottom + 17, text, "@muted", "middle"))
        for at, text in self.y.ticks:
            y = self.y.pixel(at)
            if self.y.kind != "category":
                out.append(strokes.line(self.left, y, self.right, y, "@grid"))
            out.append(strokes.text(self.left - 8, y + 4, text, "@muted", "end"))
        out.append(strokes.line(self.left, self.bottom, self.right, self.bottom, "@axis"))
        if self.y.kind != "category":
            out.append(strokes.line(self.left, self.top, self.left, self.bottom, "@axis"))
        middle = (self.left + self.right) / 2
        out.append(strokes.text(middle, self.bottom + 38, self.x.title, "@muted", "middle"))
        if self.y.title:
            out.append(strokes.text(14, (self.top + self.bottom) / 2, self.y.title, "@muted", "middle", turned=True))
        return out

    def shapes(self) -> list[str]:
        out = []
        for shape in self.layout.get("shapes", ()):
            ends: list[float | None] = []
            for name, whole, scale in (("x", (self.left, self.right), self.x), ("y", (self.bottom, self.top), self.y)):
                paper = shape.get(f"{name}ref") == "paper"
                for end in (f"{name}0", f"{name}1"):
                    value = shape[end]
                    ends.append(whole[0] + value * (whole[1] - whole[0]) if paper else scale.at(value))
            known = [end for end in ends if end is not None]
            if shape["type"] == "line" and len(known) == len(ends):
                x0, x1, y0, y1 = known
                out.append(strokes.line(x0, y0, x1, y1, shape["line"]["color"], dash=shape["line"].get("dash")))
        return out

    def annotations(self) -> list[str]:
        out = []
        for note in self.layout.get("annotations", ()):
            x = self._place(note, "x", (self.left, self.right), self.x)
            y = self._place(note, "y", (self.bottom, self.top), self.y)
            if x is None or y is None:
                continue
            up = {"bottom": -5, "top": 12}.get(note.get("yanchor", "middle"), 4)
            anchor = {"left": "start", "right": "end"}.get(note.get("xanchor", "center"), "middle")
            x, y = x + note.get("xshift", 0), y - note.get("yshift", 0) + up
            out.append(
                strokes.text(x, y, str(note["text"]), note.get("font", {}).get("color", "@ink"), anchor, halo=True)
            )
        return out

    def _place(self, note: Mapping[str, Any], name: str, whole: tuple[int, int], scale: Axis) -> float | None:
        value = note[name]
        if note.get(f"{name}ref") == "paper":
            return whole[0] + float(value) * (whole[1] - whole[0])
        # On a log axis plotly takes the place of a note as log10, that of everything else as the value.
        return scale.at(value) if scale.kind == "category" else scale.pixel(float(value))

    def legend(self) -> list[str]:
        if not self.has_legend:
            return []
        out, x = [], float(self.left)
        for trace in self.traces:
            if trace.get("showlegend") is False or not trace.get("name"):
                continue
            name = str(trace["name"])
            role, dash = _look(trace)
            y = max(10.0, self.top - 18.0)
            if x > self.left and x + 30 + LETTER * len(name) > self.right + 20:
                break  # what has no room stands in the table
            if trace["type"] == "bar":
                out.append(strokes.bar(x, y - 8, 18, 9, role, pale=_hatched(trace)))
            else:
                out.append(strokes.line(x, y - 3, x + 18, y - 3, role, dash=dash, width=2))
            out.append(strokes.text(x + 24, y + 1, name, "@ink", "start"))
            x += 40 + LETTER * len(name)
        return out

    # --- traces ---

    def trace(self, trace: Mapping[str, Any]) -> list[str]:
        match trace["type"]:
            case "scatter":
                return self._scatter(trace)
            case "heatmap":
                return self._heat_map(trace)
            case "waterfall":
                return self._waterfall(trace)
        return []

    def _scatter(self, trace: Mapping[str, Any]) -> list[str]:
        points = [(self.x.at(x), self.y.at(y)) for x, y in zip(values(trace["x"]), values(trace["y"]), strict=False)]
        mode, out = trace.get("mode", "lines"), []
        role, dash = _look(trace)
        if "lines" in mode:
            for stretch in _stretches(points):
                out.append(strokes.polyline(stretch, role, dash))
        out += self._error_bars(trace, points)
        if "markers" in mode:
            marker = trace.get("marker", {})
            colours, symbols = (_each(marker.get(name), len(points)) for name in ("color", "symbol"))
            for (x, y), colour, symbol in zip(points, colours, symbols, strict=False):
                if x is not None and y is not None:
                    out.append(strokes.mark(x, y, str(symbol or "circle"), str(colour or role)))
        if "text" in mode:
            for (x, y), text in zip(points, trace.get("text") or (), strict=False):
                if x is not None and y is not None and text:
                    out.append(strokes.text(x, y - 11, str(text), "@ink", "middle", halo=True))
        return out

    def _error_bars(self, trace: Mapping[str, Any], points: Sequence[tuple[float | None, float | None]]) -> list[str]:
        bars = trace.get("error_x")
        if not bars:
            return []
        more, less = values(bars.get("array")), values(bars.get("arrayminus"))
        out = []
        for value, (_, y), up, down in zip(values(trace["x"]), points, more, less, strict=False):
            if y is None or value is None or up is None or down is None:
                continue
            low, high = self.x.at(value - down), self.x.at(value + up)
            if low is not None and high is not None:
                out.append(strokes.line(low, y, high, y, str(bars.get("color", "@muted")), width=1.5))
        return out

    def bars(self) -> list[str]:
        """All bar traces: they share the room of a category, side by side or one after the other."""
        bars = [trace for trace in self.traces if trace["type"] == "bar"]
        if not bars:
            return []
        stacked = self.layout.get("barmode") == "stack"
        beside = 1 if stacked or self.layout.get("barmode") == "overlay" else len(bars)
        sideways = bars[0].get("orientation") == "h"
        across, along = (self.y, self.x) if sideways else (self.x, self.y)
        slot = abs(across.pixel(1) - across.pixel(0)) * (1 - float(self.layout.get("bargap", 0.2)))
        filled: dict[str, float] = {}
        out = []
        for n, trace in enumerate(bars):
            names, lengths = (values(trace[name]) for name in (("y", "x") if sideways else ("x", "y")))
            bases = values(trace.get("base")) or [0.0] * len(lengths)
            thick = slot / beside
            for name, length, base in zip(names, lengths, bases, strict=False):
                middle = across.at(name)
                if middle is None or length is None:
                    continue
                from_ = filled.get(str(name), 0.0) if stacked else float(base or 0.0)
                filled[str(name)] = from_ + length
                ends = [along.at(v) for v in (from_, from_ + length)]
                low, high = (e if e is not None else along.start for e in ends)
                edge = middle - slot / 2 + (thick * n if beside > 1 else 0)
                role = str(trace.get("marker", {}).get("color", "@blue"))
                size = abs(high - low)
                box = (min(low, high), edge, size, thick) if sideways else (edge, min(low, high), thick, size)
                out.append(strokes.bar(*box, role, pale=_hatched(trace)))
        return out

    def _heat_map(self, trace: Mapping[str, Any]) -> list[str]:
        xs, ys, rows = values(trace["x"]), values(trace["y"]), trace["z"]
        known = [cell for row in rows for cell in row if cell is not None]
        most = max(known, default=0.0) or 1.0
        edges = [scale.at(v) for scale, every in ((self.x, xs), (self.y, ys)) for v in every[:2]]
        wide = abs((edges[1] or 0) - (edges[0] or 0)) if len(xs) > 1 else self.right - self.left
        tall = abs((edges[-1] or 0) - (edges[-2] or 0)) if len(ys) > 1 else 8.0
        out = []
        said = trace.get("text") or [[""] * len(xs)] * len(ys)
        for y, row, texts in zip(ys, rows, said, strict=True):
            for x, cell, text in zip(xs, row, texts, strict=True):
                at_x, at_y = self.x.at(x), self.y.at(y)
                if cell is None or at_x is None or at_y is None:
                    continue
                strength = 0.25 + 0.75 * cell / most
                out.append(strokes.cell(at_x - wide / 2, at_y - tall / 2, wide, tall, strength))
                if text:
                    out.append(strokes.text(at_x, at_y + 4, str(text), "@ink", "middle", halo=True))
        return out

    def _waterfall(self, trace: Mapping[str, Any]) -> list[str]:
        names, lengths = values(trace["y"]), values(trace["x"])
        thick = abs(self.y.pixel(1) - self.y.pixel(0)) * 0.6
        total, out = 0.0, []
        for name, length, kind, text in zip(names, lengths, trace["measure"], trace["text"], strict=True):
            middle, length = self.y.at(name), length or 0.0
            from_, to = (total, total + length) if kind == "relative" else (0.0, length)
            total = to
            low, high = self.x.at(min(from_, to)), self.x.at(max(from_, to))
            if middle is None or low is None or high is None:
                continue
            role = "@grey" if kind != "relative" else "@vermillion" if length > 0 else "@green"
            out.append(strokes.bar(low, middle - thick / 2, max(high - low, 1.0), thick, role, pale=False))
            out.append(strokes.text(high + 6, middle + 4, str(text), "@ink", "start", halo=True))
        return out


def _look(trace: Mapping[str, Any]) -> tuple[str, str | None]:
    """(colour role, dash) of a trace."""
    drawn = trace.get("line") or {}
    colour = drawn.get("color") or (trace.get("marker") or {}).get("color") or "@blue"
    return (colour[0] if isinstance(colour, list) else colour), drawn.get("dash")


def _hatched(trace: Mapping[str, Any]) -> bool:
    return bool(((trace.get("marker") or {}).get("pattern") or {}).get("shape"))


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * count


def _stretches(points: Sequence[tuple[float | None, float | None]]) -> list[list[tuple[float, float]]]:
    """Lines between the gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if x is None or y is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return [stretch for stretch in found if len(stretch) > 1]
