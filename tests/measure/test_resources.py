"""What a block cost the machine: readings before it and at their peak, by subject, and the reason where none is."""

import pytest

from lab.measure.summary import summarize
from tests.measure.rows import even

MIB = 2**20


def test_memory_is_the_models_own_before_and_at_its_peak(requests_of, window_of, telemetry_table):
    telemetry = telemetry_table(
        [
            (-9000, "model:digits", "memory_bytes", 900 * MIB),  # another block
            (-500, "model:digits", "memory_bytes", 195 * MIB),
            (300, "model:digits", "memory_bytes", 423 * MIB),
            (800, "model:digits", "memory_bytes", 400 * MIB),
            (800, "model:other", "memory_bytes", 800 * MIB),
            (300, "model:digits", "cpu_fraction", 0.5),
            (800, "model:digits", "cpu_fraction", 0.7),
        ]
    )
    summary = summarize(
        requests_of(even(100, 5)), window=window_of(1000), planned=100, slo=None, telemetry=telemetry, model="digits"
    )
    assert summary.memory_base_bytes == 195 * MIB
    assert summary.memory_peak_bytes == 423 * MIB
    assert summary.cpu_mean_fraction == pytest.approx(0.6)


def test_a_reading_of_another_block_is_no_base(requests_of, window_of, telemetry_table):
    telemetry = telemetry_table(
        [(-9000, "model:digits", "memory_bytes", 900 * MIB), (300, "model:digits", "memory_bytes", 423 * MIB)]
    )
    summary = summarize(
        requests_of(even(100, 5)), window=window_of(1000), planned=100, slo=None, telemetry=telemetry, model="digits"
    )
    assert summary.memory_base_bytes == 423 * MIB


def test_a_reading_that_failed_keeps_its_reason(requests_of, window_of, telemetry_table):
    """P18, T29: no GPU is "n/a" with a reason, not 0."""
    telemetry = telemetry_table([(100, "gpu:0", "memory_used_bytes", "no NVIDIA driver")])
    summary = summarize(requests_of(even(100, 5)), window=window_of(1000), planned=100, slo=None, telemetry=telemetry)
    assert summary.gpu_memory_peak_bytes is None
    assert summary.notes["gpu_memory_peak_bytes"] == "no NVIDIA driver"


def test_two_gpus_are_not_averaged(requests_of, window_of, telemetry_table):
    """T30: 470.8 and 1592.8 MB: the fuller one, never the mean 1031.8."""
    telemetry = telemetry_table(
        [(100, "gpu:0", "memory_used_bytes", 470.8e6), (100, "gpu:1", "memory_used_bytes", 1592.8e6)]
    )
    summary = summarize(requests_of(even(100, 5)), window=window_of(1000), planned=100, slo=None, telemetry=telemetry)
    assert summary.gpu_memory_peak_bytes == 1592.8e6
