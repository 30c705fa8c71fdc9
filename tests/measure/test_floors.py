"""The least time of a decode step, by paper arithmetic and against the figures of shared/MODELS.md."""

import pytest

from lab.measure.floors import Machine, decode_floor, fraction_of_floor

BANDWIDTH, FLOPS = 17.7e9, 168e9
WEIGHTS, ELEMENTS = 269_030_016, 134_515_008


def test_one_row_is_limited_by_reading_the_weights():
    """MODELS.md: 66 tokens a second are the bound of SmolLM2 in bf16 on a machine that reads 17.7 GB/s."""
    floor = decode_floor(WEIGHTS, 0, BANDWIDTH, 1, FLOPS, elements=ELEMENTS)
    assert floor.limiting == "memory"
    assert 1 / floor.step_s == pytest.approx(66, rel=0.01)


def test_keys_and_values_are_read_as_well():
    floor = decode_floor(WEIGHTS, 8 * 500 * 23_040, BANDWIDTH, 8, FLOPS, elements=ELEMENTS)
    assert floor.memory_s == pytest.approx((269_030_016 + 92_160_000) / 17.7e9)


def test_many_rows_are_limited_by_arithmetic():
    """Two operations a weight and row: 134.5 million × 2 × 16 = 4.3 billion, 25.6 ms at 168 billion a second."""
    floor = decode_floor(WEIGHTS, 0, BANDWIDTH, 16, FLOPS, elements=ELEMENTS)
    assert floor.limiting == "compute"
    assert floor.step_s == pytest.approx(0.02562, rel=1e-3)


def test_fewer_bits_are_read_sooner_and_computed_no_sooner():
    """A quarter of the bytes takes a quarter of the time to read; as many products stay as many."""
    quarter = decode_floor(WEIGHTS / 4, 0, BANDWIDTH, 16, FLOPS, elements=ELEMENTS)
    whole = decode_floor(WEIGHTS, 0, BANDWIDTH, 16, FLOPS, elements=ELEMENTS)
    assert quarter.memory_s == pytest.approx(whole.memory_s / 4)
    assert quarter.compute_s == whole.compute_s


def test_what_a_format_is_multiplied_in():
    machine = Machine(BANDWIDTH, {"bf16": 1.0, "int8": 4.0})
    found = [machine.arithmetic(p) for p in ("bf16", "int4", "int8_weight", "int8", "fp32")]
    assert found == [1.0, 4.0, 1.0, 4.0, None]


def test_the_fraction_that_a_step_reaches():
    """The spike of MODELS.md: 30 tokens a second of a possible 66 are 0.46."""
    floor = decode_floor(WEIGHTS, 0, BANDWIDTH, 1, FLOPS, elements=ELEMENTS)
    assert fraction_of_floor(1 / 30, floor) == pytest.approx(0.456, abs=0.002)
    assert fraction_of_floor(None, floor) is None
