"""Cross-checks of a block: what agrees is on, what does not names the instruments, what is missing is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.measure.instruments import clock_step, near_ceiling, near_stream_ceiling, prefix_warm
from lab.measure.lamps import lamps, told
from lab.measure.percentile import percentile
from lab.measure.records import OUTCOMES, Requests, Window
from lab.measure.summary import summarize
from lab.spec import Slo

SECOND = 1_000_000_000


def block(n: int = 500, **more: Any) -> dict[str, Any]:
    """A metronome at 100 req/s, each answered after 20 ms."""
    due = (np.arange(n) * 0.01 * SECOND).astype(np.int64)
    requests = Requests(due, due, due + SECOND // 50, np.zeros(n, np.uint8))
    window = Window(0, 0, int(n * 0.01 * SECOND))
    return {**summarize(requests, window=window, planned=n, slo=None).to_dict(), **more}


def state(summary: dict[str, Any]) -> dict[str, str]:
    return {lamp.code: lamp.state for lamp in lamps(summary)}


def test_an_honest_block_lights_what_can_be_checked() -> None:
    assert state(block()) == {"little": "on", "conservation": "on", "server": "unknown"}
    assert state(block(server_success_delta=500))["server"] == "on"
    assert told([block()]) == "Checks that hold: Little's law and no request lost."


def test_a_window_that_is_short_for_its_answers_says_nothing_of_littles_law() -> None:
    """Answers of 0.3 s in a window of 5: as many as one in sixteen reach over its ends."""
    assert state(block(little_ratio=1.2, latency_mean_s=0.3))["little"] == "unknown"
    assert state(block(little_ratio=1.2, latency_mean_s=0.2))["little"] == "off"


def test_counts_name_the_window_that_they_cover() -> None:
    """Of a block of 5 s, 100 req/s, with a second of warm-up: 500 are sent, 400 end in the window."""
    due = (np.arange(500) * 0.01 * SECOND).astype(np.int64)
    requests = Requests(due, due, due + SECOND // 50, np.zeros(500, np.uint8))
    summary = summarize(requests, window=Window(0, SECOND, 5 * SECOND), planned=500, slo=None).to_dict()
    texts = {lamp.code: lamp.text for lamp in lamps({**summary, "server_success_delta": 401})}
    assert texts["conservation"] == "500 sent in the whole block, warm-up included, 500 ended"
    assert texts["server"] == (
        "in the measured window the server counted 401 successes, the client 400 that ended then"
    )


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("little", {"little_ratio": 1.2}),
        ("conservation", {"ok": 499}),
        ("conservation", {"planned": 501}),
        (
            "server",
            {"server_success_delta": 700, "problems": [{"code": "server_count_mismatch", "text": "700 of 500"}]},
        ),
    ],
)
def test_what_disagrees_is_off_and_named(code: str, wrong: dict[str, Any]) -> None:
    found = block(**wrong)
    assert state(found)[code] == "off"
    assert told([block(), found]).startswith("Checks that fail: ")


def test_what_need_not_hold_is_not_judged() -> None:
    assert state(block(20))["little"] == "unknown"
    assert state(block(steady=False, little_ratio=1.3))["little"] == "unknown"


def test_above_seventy_percent_of_the_ceiling_is_marked_and_beyond_it_forbidden() -> None:
    assert near_ceiling(699, 1000) is None and near_ceiling(None, 1000) is None and near_ceiling(900, None) is None
    near, beyond = near_ceiling(800, 1000), near_ceiling(1000, 1000)
    assert near is not None and not near.forbids_verdict and "80 %" in near.text
    assert beyond is not None and beyond.forbids_verdict


def test_streams_have_a_ceiling_in_chunks() -> None:
    assert near_stream_ceiling(6_900, 10_000) is None and near_stream_ceiling(None, 10_000) is None
    near, beyond = near_stream_ceiling(7_100, 10_000), near_stream_ceiling(10_500, 10_000)
    assert near is not None and not near.forbids_verdict and "read 7,100 chunks/s, 71 % of the 10,000" in near.text
    assert beyond is not None and beyond.forbids_verdict


@pytest.mark.parametrize(("fraction", "forbids"), [(0.0, None), (0.009, None), (0.3, False), (0.5, True), (1.0, True)])
def test_prompts_that_a_prefix_cache_had_are_marked_and_most_of_them_forbid_a_verdict(
    fraction: float, forbids: bool | None
) -> None:
    assert prefix_warm(None) is None
    found = prefix_warm(fraction)
    assert (found and found.forbids_verdict) is forbids
    assert found is None or found.code == "cache_warm"


def test_a_clock_that_was_set_is_told() -> None:
    assert clock_step(0.01) is None
    back = clock_step(-3.0)
    assert back is not None and "set back by 3.00 s" in back.text and not back.forbids_verdict


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 10 * SECOND),
        st.integers(0, SECOND),
        st.integers(0, 2 * SECOND),
        st.integers(0, len(OUTCOMES) - 1),
    ),
    max_size=200,
)


def of(records: list[tuple[int, int, int, int]]) -> Requests:
    rows = np.array(records, np.int64).reshape(-1, 4)
    due, sent = rows[:, 0], rows[:, 0] + rows[:, 1]
    return Requests(due, sent, sent + rows[:, 2], rows[:, 3].astype(np.uint8))


def figures(requests: Requests) -> dict[str, Any]:
    window = Window(0, 0, 10 * SECOND)
    return summarize(requests, window=window, planned=len(requests), slo=Slo(latency_s=0.5)).to_dict()


@settings(max_examples=30, deadline=None)
@given(RECORDS)
def test_of_any_records_percentiles_are_monotone_and_nothing_is_lost(records: list[tuple[int, int, int, int]]) -> None:
    found = figures(of(records))
    ladder = [found[f"latency_{p}_s"] for p in ("p50", "p90", "p95", "p99", "p999", "max")]
    shown = [value for value in ladder if value is not None]
    assert shown == sorted(shown)
    assert found["sent"] == len(records) and sum(found[outcome] for outcome in OUTCOMES) == len(records)
    assert state(found)["conservation"] == "on"
    assert found["goodput_rps"] is None or found["goodput_rps"] <= (found["throughput_rps"] or 0) + 1e-9


@settings(max_examples=20, deadline=None)
@given(RECORDS, RECORDS)
def test_workers_records_merged_are_pooled_and_never_averaged(
    a: list[tuple[int, int, int, int]], b: list[tuple[int, int, int, int]]
) -> None:
    whole, again = figures(of(a + b)), figures(of(b + a))
    for name in ("ok", "throughput_rps", "latency_p50_s", "latency_max_s", "latency_mean_s"):
        assert whole[name] == pytest.approx(again[name]) if whole[name] is not None else again[name] is None
    answered = [(s + d) / 1e9 for due, s, d, outcome in a + b if outcome == 0 and due < 10 * SECOND]
    if whole["latency_p50_s"] is not None:
        assert whole["latency_p50_s"] == pytest.approx(percentile(answered, 0.5), abs=1e-9)
