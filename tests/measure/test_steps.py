"""A decode step and its floor in words, and one format's step beside another's, by paper arithmetic."""

import dataclasses

import pytest

from lab.measure.floors import Machine
from lab.measure.ledger import Ledger
from lab.measure.records import REQUESTS, Requests, Window
from lab.measure.steps import TOO_QUICK, Step, beside, sentence, step
from lab.measure.summary import Summary, summarize

LEDGER = Ledger(rows=(), kv_bytes_per_token=10_000, elements=50_000_000, held_tokens=0)
MACHINE = Machine(10e9, {"bf16": 1e12, "int8": 4e12, "fp32": None})


def summary(**fields: float | None) -> Summary:
    nothing = Requests.from_table(REQUESTS.empty_table())
    empty = summarize(nothing, window=Window(0, 0, 1), planned=None, slo=None)
    measured = {
        "step_mean_s": 0.020,
        "engine_weight_bytes": 98.5e6,
        "prompt_tokens_mean": 100.0,
        "output_tokens_mean": 100.0,
        "engine_batch_mean": 1.0,
    }
    return dataclasses.replace(empty, **{**measured, **fields})


def found(precision: str = "bf16", machine: Machine = MACHINE, **fields: float | None) -> Step:
    measured = step(summary(**fields), LEDGER, precision, machine)
    assert measured is not None
    return measured


def test_bytes_over_bandwidth_and_the_share_reached() -> None:
    """(98.5 MB + 150 tokens of 10 kB) / 10 GB/s = 10 ms, half of the 20 ms that a step took."""
    said = sentence(found())
    assert "93.9 MiB of weights and 1.4 MiB of keys and values" in said
    assert "10.0 GB/s that takes 10.0 ms at least. Reading limits it." in said
    assert said.endswith("Measured: 20.0 ms, 50 % of what the machine can do.")


def test_the_longer_limit_is_the_floor() -> None:
    """50 M weights × 2 operations × 120 answers at 10¹² a second are 12 ms; reading 98.5 MB and 180 MB takes 27.9."""
    many = found(engine_batch_mean=120.0)
    assert (many.floor.limiting, many.floor.compute_s) == ("memory", pytest.approx(0.012))
    slow = found(machine=Machine(10e9, {"bf16": 2e11}), engine_batch_mean=120.0, step_mean_s=0.080)
    assert (slow.floor.limiting, slow.floor.step_s) == ("compute", pytest.approx(0.060))
    assert "Its products in bf16 take 60.0 ms at 200 billion operations a second. Arithmetic limits it." in sentence(
        slow
    )


def test_a_format_is_multiplied_in_what_it_becomes() -> None:
    """Weights only in 8 bits become bfloat16 and are multiplied at its rate; with rounded activations 8 and 4 bits are
    at that of int8, four times as fast here."""
    products = {p: found(p).floor.compute_s for p in ("bf16", "int4", "int8_weight", "int8")}
    assert products["int8_weight"] == products["bf16"] == pytest.approx(4 * products["int8"])
    assert products["int4"] == products["int8"]


@pytest.mark.parametrize("missing", ["step_mean_s", "engine_weight_bytes", "prompt_tokens_mean"])
def test_nothing_is_said_where_something_was_not_measured(missing: str) -> None:
    assert step(summary(**{missing: None}), LEDGER, "bf16", MACHINE) is None
    assert step(summary(), LEDGER, "bf16", Machine(None, {"bf16": 1e12})) is None
    assert step(summary(), LEDGER, "fp32", MACHINE) is None


def test_half_the_bytes_in_half_the_time() -> None:
    said = beside("int8", found("int8", engine_weight_bytes=49e6, step_mean_s=0.010), "bf16", found())
    assert said == "int8 reads 0.51× the bytes of bf16 a step and takes 0.50× the time: reading is what both wait for."


def test_fewer_bytes_that_take_as_long_name_the_work_of_undoing_them() -> None:
    """26 MB of weights and 1.5 MB of keys and values take 2.75 ms to read; the step took 18. The baseline's took 10 ms
    more than reading as well, so 5.2 are int4's own."""
    said = beside("int4", found("int4", engine_weight_bytes=26e6, step_mean_s=0.018), "bf16", found())
    assert "takes 0.90× the time: 15.2 ms of its 18.0 ms are neither reading nor multiplying, " in said
    assert "5.2 ms more than of bf16's: turning 4 bits into bytes" in said


def test_what_the_baseline_does_as_well_is_no_format_s_fault() -> None:
    """12.75 ms less 2.75 of reading are 10, and so are bf16's 20 less 10."""
    said = beside("int4", found("int4", engine_weight_bytes=26e6, step_mean_s=0.01275), "bf16", found())
    assert "10.0 ms of its 12.8 ms are neither reading nor multiplying, of bf16's 10.0 ms: attention and the" in said
    assert "4 bits" not in said


def test_where_arithmetic_limits_the_products_are_named() -> None:
    machine = Machine(10e9, {"bf16": 2e10, "int8": 1e12})
    base = found(machine=machine, engine_batch_mean=8.0, step_mean_s=0.060)
    few = found("int8_weight", machine, engine_batch_mean=8.0, engine_weight_bytes=50e6, step_mean_s=0.060)
    assert "with 8.0 answers in a step its products alone take 40.0 ms" in beside("int8_weight", few, "bf16", base)
    quick = found("int8", machine, engine_batch_mean=8.0, engine_weight_bytes=50e6, step_mean_s=0.010)
    assert "its products in int8 are quicker too" in beside("int8", quick, "bf16", base)


def test_a_step_below_its_floor_says_only_that_the_floor_is_wrong() -> None:
    said = sentence(found(step_mean_s=0.005))
    assert said == sentence(found(), doubted=True) == TOO_QUICK
    assert said.count(". ") == 0 and "limits" not in said


def test_nothing_is_explained_by_floors_that_a_step_went_below() -> None:
    half, quick = found("int8", engine_weight_bytes=49e6, step_mean_s=0.010), found(step_mean_s=0.005)
    told = "int8 reads 0.51× the bytes of bf16 a step and takes {}× the time."
    assert beside("int8", half, "bf16", quick) == told.format("2.0")
    assert beside("int8", half, "bf16", found(), doubted=True) == told.format("0.50")


def test_a_step_of_two_instances_reads_the_weights_of_one() -> None:
    """The engines tell 197 MB together, of which each one's step reads 98.5: the same 10 ms."""
    two = step(summary(engine_weight_bytes=197e6), dataclasses.replace(LEDGER, instances=2), "bf16", MACHINE)
    assert two is not None and two.floor == found().floor
    assert "10.0 GB/s, which 2 instances share, that takes 10.0 ms at least" in sentence(two)
