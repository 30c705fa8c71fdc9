"""What charts take from the records themselves."""

from pathlib import Path

import numpy as np
import pytest

from lab.measure.records import OK, Requests, Window
from lab.run.folder import RunFolder
from lab.show import pooled
from tests.show import synthetic_llm
from tests.show.synthetic import MIB

FACTOR, OFF, ON = "model.kv_cache", "KV cache off", "KV cache on"


@pytest.fixture
def folder(empty_home: Path) -> RunFolder:
    return synthetic_llm.run("kv_cache", "20261130-010401-kv-cache-pool")


def test_memory_follows_the_most_tokens_of_one_loaded_model(folder: RunFolder) -> None:
    found = pooled.held(folder, FACTOR, "any", (OFF, ON))
    tokens = [h.tokens for h in found[ON]]
    assert tokens == sorted(tokens) and tokens[-1] > 100
    assert {h.tokens for h in found[OFF]} == {0}
    # Each token took its 23,040 bytes; the readings differ by 0.2 MiB at random.
    grown = (found[ON][-1].memory_bytes - found[ON][0].memory_bytes) / MIB
    assert grown == pytest.approx((tokens[-1] - tokens[0]) * 23_040 / MIB, abs=1.0)


def test_first_tokens_count_from_the_scheduled_arrival(folder: RunFolder) -> None:
    found = pooled.first_tokens(folder, FACTOR, "answers of 32 tokens", (OFF, ON))
    # A prompt of 16 tokens at 0.4 ms each and one step of some 17 ms; without a cache the step reads 16 anew.
    assert found[ON].mean() == pytest.approx(0.0236, abs=0.002)
    assert found[OFF].mean() == pytest.approx(0.0265, abs=0.002)


def test_two_repeats_are_pooled_as_a_comparison_pools_them() -> None:
    """Answers after 1, 2, …, 10 ms in one second and after 21, …, 40 ms in another: 30 in 2 s are 15 a second, and of
    30 in order the middle is the 15th or 16th, 25 or 26 ms."""

    def block(n: int, first_ms: int) -> tuple[Requests, Window]:
        due = np.arange(n) * (900_000_000 // n)
        done = due + (first_ms + np.arange(n)) * 1_000_000
        return Requests(due, due, done, np.full(n, OK, np.uint8)), Window(0, 0, 1_000_000_000)

    blocks = [block(10, 1), block(20, 21)]
    assert pooled.whole(blocks, "throughput_rps", None) == pytest.approx(15.0)
    assert pooled.whole(blocks, "latency_p50_s", None) == pytest.approx(0.0255, abs=0.001)
    assert pooled.whole(blocks, "memory_peak_bytes", None) is None
    assert pooled.whole([], "throughput_rps", None) is None
