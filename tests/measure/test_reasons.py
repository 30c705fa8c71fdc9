"""Why a precision is faster or slower, from seconds that were put in."""

from types import SimpleNamespace

import pytest

from lab.measure.judgement import CellResult
from lab.measure.reasons import why
from lab.spec import Judge

JUDGE = Judge(factor="model.precision", baseline="fp32", primary="throughput_rps", metrics=("throughput_rps",))


def cell(precision, by_size, batches):
    """`by_size`: seconds an item in a batch of that size; `batches`: how many of each."""
    summary = SimpleNamespace(item_compute_s=by_size, batch_sizes=batches)
    return CellResult({"model.precision": precision}, [(None, None)], [summary])


def told(base, *others):
    found = [SimpleNamespace(base=base, cell=o, level=o.factors["model.precision"], at={}) for o in others]
    return why(JUDGE, found, [], gained=False)


def test_a_format_that_takes_longer_is_told_with_what_it_cannot_save():
    """fp32 takes 0.1 + 0.3 n ms for n items: 0.4 alone, 0.3125 each of eight; a quarter of the first is the batch's."""
    fp32 = cell("fp32", {1: 0.4e-3, 8: 0.3125e-3}, {1: 80, 8: 1})
    said = told(fp32, cell("int8", {1: 1.0e-3}, {1: 80}))
    assert said.startswith("An item computes for 0.39 ms with fp32 and 1.0 ms with int8; int8 takes longer: ")
    assert "at most 25 % of fp32's time goes into reading weights" in said
    assert "this small" not in said


@pytest.mark.parametrize("sizes", [{1: 0.4e-3}, {8: 0.4e-3}], ids=["only alone", "only in batches"])
def test_what_was_not_measured_is_no_reason(sizes):
    said = told(cell("fp32", sizes, dict.fromkeys(sizes, 9)), cell("int8", {1: 1.0e-3}, {1: 80}))
    assert "int8 takes longer" in said
    assert "reading" not in said
    assert "matrices" not in said


def test_no_reason_where_nothing_is_slower_or_something_was_not_counted():
    fp32 = cell("fp32", {1: 0.4e-3}, {1: 80})
    said = told(fp32, cell("bf16", {1: 0.41e-3}, {1: 80}))
    assert said == "An item computes for 0.40 ms with fp32 and 0.41 ms with bf16."
    assert told(fp32, cell("int8", {}, {})) == ""


def test_two_that_take_longer_are_named_together():
    fp32 = cell("fp32", {1: 0.4e-3}, {1: 80})
    said = told(fp32, cell("bf16", {1: 0.6e-3}, {1: 80}), cell("int8", {1: 1.0e-3}, {1: 80}))
    assert "bf16 and int8 take longer" in said
