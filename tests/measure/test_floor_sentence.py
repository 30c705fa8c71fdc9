"""The floor of a decode step in words, against paper arithmetic."""

import dataclasses

import pytest

from lab.measure.floor_sentence import sentence
from lab.measure.records import REQUESTS, Requests, Window
from lab.measure.summary import Summary, summarize


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
    return dataclasses.replace(empty, **{**measured, **fields})  # type: ignore[arg-type]


def test_bytes_over_bandwidth_and_the_share_reached() -> None:
    # (98.5 MB + 150 tokens of 10 kB) / 10 GB/s = 10 ms, half of the 20 ms that a step took.
    said = sentence(summary(), 10_000, "bf16", 10e9, 1e15)
    assert "93.9 MiB of weights and 1.4 MiB of keys and values" in said
    assert "10.0 GB/s that takes 10.0 ms at least" in said
    assert said.endswith("Measured: 20.0 ms, 50 % of what the machine can do.")


def test_the_longer_limit_is_the_floor() -> None:
    # 49.25 M weights of two bytes, 2 operations each: 98.5 M operations at 5 GFLOP/s are 19.7 ms.
    assert "takes 19.7 ms at least" in sentence(summary(), 10_000, "bf16", 10e9, 5e9)


@pytest.mark.parametrize("missing", ["step_mean_s", "engine_weight_bytes", "prompt_tokens_mean"])
def test_nothing_is_said_where_something_was_not_measured(missing: str) -> None:
    assert sentence(summary(**{missing: None}), 10_000, "bf16", 10e9, 1e15) == ""
    assert sentence(summary(), 10_000, "bf16", None, 1e15) == ""
