"""Charts without a browser: scales against arithmetic, every kind of mark, and text that is hostile."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from lab.show import theme
from lab.show.axes import axis
from lab.show.charts.figure import Chart, line, log_axis, nothing_to_draw
from lab.show.svg import svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(traces: list[dict], **layout: object) -> ET.Element:
    figure = {"data": traces, "layout": theme.layout(height=300, **layout)}
    return ET.fromstring(svg(Chart("t", figure, "the takeaway & more", {})))


def test_a_linear_axis_goes_from_end_to_end() -> None:
    scale = axis({"type": "linear", "range": [0, 10]}, [], 100, 300)
    assert (scale.at(0), scale.at(5), scale.at(10)) == (100, 200, 300)
    assert [text for _, text in scale.ticks] == ["0", "2", "4", "6", "8", "10"]


def test_a_log_axis_gives_each_decade_equal_room_and_no_place_to_zero() -> None:
    scale = axis({"type": "log", "range": [0, 2]}, [], 0, 200)
    assert (scale.at(1), scale.at(10), scale.at(100)) == (0, 100, 200)
    assert scale.at(0) is None and scale.at(-1) is None and scale.at(None) is None
    assert [text for _, text in scale.ticks] == ["1", "2", "5", "10", "20", "50", "100"]


def test_a_category_axis_has_one_place_each_from_the_top() -> None:
    scale = axis({"type": "category", "autorange": "reversed"}, ["a", "b", "a"], 300, 0)
    assert scale.at("a") == 75 and scale.at("b") == 225
    assert scale.at("c") is None


def test_an_axis_of_one_value_has_a_width() -> None:
    scale = axis({"type": "linear"}, [3.0], 0, 100)
    assert scale.low < 3.0 < scale.high and scale.at(3.0) == pytest.approx(50)


def test_a_line_breaks_where_a_value_is_missing() -> None:
    root = drawn([line("a", [1, 2, 3, 4, 5], [1, 2, np.nan, 3, 4], theme.TREATMENT)], xaxis={}, yaxis={})
    assert len(root.findall(f"{SVG}polyline")) == 2
    assert len(root.findall(f"{SVG}circle")) == 4


def test_stacked_bars_stand_on_each_other_and_reach_their_sum() -> None:
    bars = [
        {"type": "bar", "name": name, "x": ["one"], "y": [height], "marker": {"color": "@blue"}}
        for name, height in (("a", 30.0), ("b", 70.0))
    ]
    root = drawn(bars, barmode="stack", xaxis={"type": "category"}, yaxis={"type": "linear", "range": [0, 100]})
    low, high = root.findall(f"{SVG}rect")
    plot = 300 - 16 - 48
    assert float(low.get("height")) == pytest.approx(0.3 * plot, abs=0.2)
    assert float(high.get("height")) == pytest.approx(0.7 * plot, abs=0.2)
    assert float(high.get("y")) + float(high.get("height")) == pytest.approx(float(low.get("y")), abs=0.2)


def test_a_note_on_a_log_axis_is_placed_by_its_logarithm_as_plotly_does() -> None:
    note = {"x": 0.5, "xref": "paper", "y": 1.0, "text": "ten", "showarrow": False, "yanchor": "middle"}
    root = drawn(
        [line("a", [1], [10], theme.TREATMENT)], xaxis={}, yaxis=log_axis("ms", (0.0, 2.0)), annotations=[note]
    )
    text = next(t for t in root.findall(f"{SVG}text") if t.text == "ten")
    assert float(text.get("y")) == pytest.approx((16 + 252) / 2 + 4, abs=1)


@pytest.mark.parametrize("name", ["</svg><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a & b", "\"'>"])
def test_no_text_becomes_markup(name: str) -> None:
    figure = {
        "data": [line(name, [1, 2], [1, 2], theme.TREATMENT)],
        "layout": theme.layout(
            height=300, showlegend=True, xaxis={"title": {"text": name}}, yaxis={"type": "category"}
        ),
    }
    text = svg(Chart("t", figure, name, {}))
    root = ET.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {"svg", "line", "text", "polyline", "circle"}
    assert root.get("aria-label") == name


def test_a_colour_cannot_carry_anything_else() -> None:
    trace = line("a", [1, 2], [1, 2], theme.Style('red" onload="x', "solid", "circle"))
    assert "onload" not in svg(Chart("t", {"data": [trace], "layout": theme.layout(height=300)}, "a", {}))


def test_nothing_to_draw_is_said() -> None:
    assert "no run has a load" in svg(nothing_to_draw("Curve", "no run has a load"))
