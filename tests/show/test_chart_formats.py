"""Charts of formats, as dicts: what no other format beats, losses with their intervals, memory from the ground up."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from lab.measure.quality import Answer, Measure, Quality, Sensitivity
from lab.measure.steps import TOO_QUICK
from lab.show.charts import formats, stacks
from lab.show.charts import quality as loss
from lab.show.charts.figure import values_of
from lab.show.formats import Shown, on_frontier
from lab.show.ui.formats import marked

MIB = 2**20


def quality(label: str, value: float, low: float | None) -> Quality:
    """Of a format whose loss is at least `low`; the baseline where that is None."""
    base = low is None
    loss = None if low is None else value / 12.0 - 1
    verdict = "" if low is None else f"loss of {100 * (loss or 0):.1f} ± 0.1 %" if low > 0 else "no measurable loss"
    measure = Measure(
        "perplexity", "perplexity", value, value - 1, value + 1, 40, "passages",
        None if base else 12.0, loss, low, None if loss is None else 2 * loss + 0.001, verdict,
    )  # fmt: skip
    return Quality(label, "bf16", base, (measure,), (), (), 1.0)


def row(name: str, predicted: float, measured: float | None) -> dict[str, Any]:
    error = None if not measured else predicted / measured - 1
    bytes_of = {"predicted_bytes": predicted * MIB, "measured_bytes": measured and measured * MIB}
    return {"name": name, **bytes_of, "error_fraction": error, "formula": "arithmetic", "how": ""}


def shown(label: str, rate: float, size_mib: float, quality: Quality | None, step_ms: float = 10.0) -> Shown:
    rows = [
        row("weights", size_mib, size_mib),
        row("scales", 0, None),
        row("under load", 20, 25),
        row("runtime", 200, 210),
        row("libraries", 100, 110),
        row("in all", size_mib + 320, size_mib + 345),
    ]
    step = {
        "read_bytes": size_mib * MIB, "batch": 1.0, "step_s": step_ms / 1e3, "memory_floor_s": 0.005,
        "compute_floor_s": 0.001, "limiting": "memory", "fraction": 5 / step_ms,
    }  # fmt: skip
    return Shown(label, rate, size_mib * MIB, 600 * MIB, {r["name"]: r for r in rows}, step, quality, None)


BF16 = shown("bf16", 100, 257, quality("bf16", 12.0, None))
FP32 = shown("fp32", 40, 513, quality("fp32", 12.0, -0.001))
INT8 = shown("int8", 210, 129, quality("int8", 12.05, -0.002))
RTN = shown("int4 RTN", 180, 91, quality("int4 RTN", 13.2, 0.08))
GPTQ = shown("int4 GPTQ", 180, 91, quality("int4 GPTQ", 12.6, 0.04))
ALL = [BF16, FP32, INT8, RTN, GPTQ]


def test_the_frontier_counts_a_loss_that_cannot_be_measured_as_none() -> None:
    """int8 beats bf16 and fp32 in speed and size at no loss; GPTQ is smaller than int8, RTN only worse than GPTQ."""
    assert on_frontier(ALL) == [False, False, True, False, True]


def test_speed_stands_over_quality_and_the_area_is_the_size() -> None:
    chart = formats.price(ALL, "8 in flight")
    line, no_loss, loss = chart.figure["data"]
    assert list(values_of(line["y"])) == [210, 180]  # from the best quality on
    assert (no_loss["name"], loss["name"]) == ("no measurable loss", "a measurable loss")
    assert list(values_of(loss["x"])) == pytest.approx([13.2, 12.6])
    big, small = no_loss["marker"]["size"][1], loss["marker"]["size"][0]
    assert (big / small) ** 2 == pytest.approx(513 / 91, rel=0.02)
    assert loss["marker"]["opacity"] == [0.35, 0.85]
    assert "int8 (210 tok/s, perplexity 12.05, 129 MiB)" in chart.alt
    assert chart.table["on the frontier"] == ["no", "no", "yes", "no", "yes"]


def test_a_format_without_quality_is_not_drawn_and_says_why() -> None:
    blind = Shown("int4 AWQ", 180.0, 91.0 * MIB, 600.0 * MIB, {}, None, None, "not evaluated yet")
    chart = formats.price([BF16, blind], "8 in flight")
    assert "int4 AWQ is not drawn: quality not evaluated yet" in chart.notes
    assert formats.price([blind], "8 in flight").figure["data"] == []


def test_losses_have_their_intervals_and_every_measure_is_in_the_table() -> None:
    chart = loss.losses(ALL)
    (marks,) = chart.figure["data"]
    assert marks["y"] == ["fp32", "int8", "int4 RTN", "int4 GPTQ"]  # the baseline loses nothing
    assert list(values_of(marks["x"])) == pytest.approx([0, 0.4167, 10, 5], abs=0.001)
    low = values_of(marks["x"]) - values_of(marks["error_x"]["arrayminus"])
    assert list(low) == pytest.approx([-0.1, -0.2, 8, 4], abs=0.001)
    assert marks["text"][:3] == ["no measurable loss", "no measurable loss", "a measurable loss"]
    assert "int4 RTN: perplexity: loss of 10.0 ± 0.1 %" in chart.alt
    assert len(chart.table["format"]) == 5


def test_what_belongs_beside_the_figures_of_a_format_is_told_of_every_format_that_is_shown() -> None:
    before = "The weights were 4 bit before."
    four = [replace(f, quality=replace(f.quality, notes=(before,))) for f in (RTN, GPTQ) if f.quality]
    assert loss.losses([BF16, INT8, *four]).notes == (f"int4 RTN and int4 GPTQ: {before}",)
    assert loss.losses([BF16, INT8]).notes == ()


def test_the_names_of_marks_that_lie_close_stand_below_each_other_with_a_line_to_each() -> None:
    """Eight formats within 14 tokens a second, of which a line of text takes about as much."""
    close = [shown(f"format {n}", 100 + 2 * n, 90, quality(f"format {n}", 12 + 0.01 * n, 0.01)) for n in range(8)]
    layout = formats.price(close, "8 in flight").figure["layout"]
    plot = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    low, high = layout["yaxis"]["range"]
    names, lines = layout["annotations"], layout["shapes"]
    heights = sorted((note["y"] - low) / (high - low) * plot for note in names)
    assert all(b - a >= 16 for a, b in pairwise(heights))
    assert heights[0] >= 0 and heights[-1] <= plot + 0.1
    assert len({note["x"] for note in names}) == 1 and names[0]["x"] > max(12 + 0.01 * n for n in range(8))
    drawn = {
        note["text"].split(",")[0]: (line["y0"], line["y1"], note["y"]) for note, line in zip(names, lines, strict=True)
    }
    assert {name: y0 for name, (y0, _, _) in drawn.items()} == {f"format {n}": 100 + 2 * n for n in range(8)}
    assert all(y1 == y for _, y1, y in drawn.values())


def test_memory_stands_from_the_ground_up_beside_what_was_predicted() -> None:
    chart = stacks.by_format([FP32, INT8], "8 in flight")
    weights, growth, runtime = chart.figure["data"]
    assert weights["y"] == [["fp32", "fp32", "int8", "int8"], ["predicted", "measured"] * 2]
    assert list(values_of(growth["x"])) == [20, 25, 20, 25]
    assert list(values_of(runtime["x"])) == [300, 320, 300, 320]  # with the libraries
    assert [a["text"] for a in chart.figure["layout"]["annotations"][:2]] == ["833 MiB, 2.91 % too low", "858 MiB"]
    (line,) = chart.figure["layout"]["shapes"]
    assert line["x0"] == pytest.approx(513 / 8)
    assert "int8 takes 474 MiB, 129 MiB of it weights and scales" in chart.alt


def test_a_step_stands_beside_its_floors() -> None:
    chart = formats.floors([BF16, INT8], "1 in flight")
    bar, reading, products = chart.figure["data"]
    assert list(values_of(bar["x"])) == [10, 10]
    assert (list(values_of(reading["x"])), list(values_of(products["x"]))) == ([5, 5], [1, 1])
    assert "bf16 10.0 ms, 50 % of what the machine can do, limited by reading" in chart.alt
    assert formats.floors([], "1 in flight").figure["data"] == []


def test_a_step_below_its_floor_is_limited_by_nothing_known() -> None:
    quick = shown("int8", 210, 129, None, step_ms=4.0)
    chart = formats.floors([replace(quick, step={**(quick.step or {}), "limiting": None})], "1 in flight")
    assert "limited by" not in chart.alt and chart.table["limited by"] == ["unknown"]
    assert chart.notes[-1] == TOO_QUICK


def test_blocks_one_by_one() -> None:
    chart = loss.sensitivity([Sensitivity(0, 0.04, 0.01), Sensitivity(1, 0.01, 0.002)], "int4 RTN")
    assert list(values_of(chart.figure["data"][0]["y"])) == [4, 1]
    assert "block 0 costs most: 4 % of perplexity" in chart.alt


def test_tokens_that_differ_are_marked_on_both_sides_and_escaped() -> None:
    answer = Answer("?", ("The", " sky", " <b>"), ("The", " sea", " <b>"), 1)
    assert marked(answer) == ("The<mark> sky</mark> &lt;b&gt;", "The<mark> sea</mark> &lt;b&gt;")
