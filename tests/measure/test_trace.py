"""Client stamps joined with Triton's trace: made-up requests whose parts are known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lab.measure.trace import STAMPS, gaps, join, of_request, percentiles, read_traces, slowest

MS = 1_000_000


def text(requests: dict[int, list[int]], model: str = "digits") -> str:
    """A trace file: for each request number its seven stamps in ms."""
    events: list[dict[str, object]] = []
    for n, stamps in requests.items():
        number = 100 + n if model == "digits" else 900 + n  # Triton numbers the traces of all models
        events.append({"id": number, "model_name": model, "model_version": 1, "request_id": f"{n:020d}"})
        for name, at in zip(STAMPS, stamps, strict=True):
            events.append({"id": number, "timestamps": [{"name": name, "ns": at * MS}]})
    return json.dumps(events)


# Two in one batch, and a third that waits for them.
TRACES = {
    0: [2, 3, 10, 11, 18, 19, 20],
    1: [4, 5, 10, 11, 18, 19, 20],
    2: [6, 7, 19, 20, 27, 28, 29],
}
RECORDS = {0: (0, 1 * MS, 21 * MS), 1: (3 * MS, 3 * MS, 21 * MS), 2: (4 * MS, 5 * MS, 30 * MS)}


def test_parts_add_up_to_the_latency() -> None:
    joined = join(RECORDS, read_traces([text(TRACES)], "digits").stamps)
    parts = joined.parts_s
    assert [round(1e3 * parts[name][0]) for name in parts] == [1, 3, 1, 7, 1, 7, 1]
    assert sum(parts.values()) == pytest.approx(joined.latency_s)


def test_batch_mates_and_what_a_request_waited_for() -> None:
    joined = join(RECORDS, read_traces([text(TRACES)], "digits").stamps)
    assert joined.batch.tolist() == [0, 0, 1]
    last = of_request(joined, 2)
    assert last.mates == () and last.ahead == ((0.006, 0.015, 2),)
    assert last.waited_for == "one batch computed before it"
    assert of_request(joined, 0).mates == (1,)
    assert [slow.request for slow in slowest(joined, 2)] == [2, 0]
    with pytest.raises(ValueError, match="was not traced"):
        of_request(joined, 9)


def test_what_is_cut_or_strange_is_left_out_and_counted() -> None:
    cut = text({3: TRACES[0]})[:-20]
    stranger = json.dumps([{"id": 1, "model_name": "digits", "request_id": "somebody"}, {"id": 1, "timestamps": []}])
    read = read_traces([text(TRACES), cut, stranger, text({7: TRACES[2]}), text({0: TRACES[0]}, "other")], "digits")
    assert sorted(read.stamps) == [0, 1, 2, 7]
    assert (read.lacking, read.broken) == ({"REQUEST_END": 1}, 1)
    joined = join({**RECORDS, 5: (0, 0, 1)}, read.stamps)
    assert (len(joined), joined.unmatched, joined.of, joined.strange) == (3, 1, 4, 0)
    assert gaps(joined, read) == (
        "3 of 4 measured answers (75 %) are traced: 1 trace without REQUEST_END and 1 file that breaks off. The parts "
        "of latency are of those alone."
    )


def test_of_a_file_that_breaks_off_the_whole_traces_are_kept() -> None:
    whole = text(TRACES)
    for length in range(len(whole)):
        read = read_traces([whole[:length]], "digits")
        assert read.broken == 1 and set(read.stamps) <= set(TRACES)
        assert all(read.stamps[n] == tuple(at * MS for at in TRACES[n]) for n in read.stamps)
    assert len(read.stamps) == 3  # all but the bracket at the end


def test_stamps_of_an_earlier_block_are_not_a_requests_own() -> None:
    """Numbers begin anew in each block, so a trace that was written late may have a number of this one."""
    early = {1: [at - 30 for at in TRACES[1]]}
    read = read_traces([text({**TRACES, **early})], "digits")
    joined = join(RECORDS, read.stamps)
    assert joined.request.tolist() == [0, 2] and joined.strange == 1
    assert "1 trace whose stamps are not the request's" in gaps(joined, read)


def test_nearly_all_traced_is_enough() -> None:
    traces = dict.fromkeys(range(100), TRACES[0])
    records = dict.fromkeys(range(101), RECORDS[0])
    read = read_traces([text(traces)], "digits")
    assert gaps(join(records, read.stamps), read) == ""


def test_queue_percentiles_are_true_ones_and_withheld_below_their_count() -> None:
    rng = np.random.default_rng(2)
    queue = rng.integers(1, 50, 500)
    traces = {n: [2, 3, 3 + int(q), 60, 61, 62, 63] for n, q in enumerate(queue)}
    records = dict.fromkeys(traces, (0, 1 * MS, 64 * MS))
    found = percentiles(join(records, read_traces([text(traces)], "digits").stamps))
    assert found["queue"]["p99"] == pytest.approx(np.quantile(queue, 0.99) / 1e3)
    few = percentiles(join(RECORDS, read_traces([text(TRACES)], "digits").stamps))
    assert few["queue"]["p99"] is None and few["queue"]["mean"] == pytest.approx((7 + 5 + 12) / 3e3)
