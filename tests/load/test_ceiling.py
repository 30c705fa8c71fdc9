from pathlib import Path

import numpy as np
import pytest

from lab.errors import RunError
from lab.load.ceiling import ceiling, keeps_reading, keeps_up, null_stream_server
from lab.load.generator import Generator, Job
from lab.load.null_stream import CHUNKS, GAP_S, PROMPT_TOKENS
from lab.measure.records import ERROR, OK, REQUESTS, Requests, Streams
from lab.spec import Constant, ModelSpec, Workload
from lab.stream import read_stream
from tests.load.fakes.servers import free_port

pytestmark = pytest.mark.processes

MS = 1_000_000


def block(*, rate_rps: float, late_ns: np.ndarray | int = 0, outcome: int = OK, stretch: float = 1.0) -> Requests:
    """A second of constant arrivals, sent late."""
    due = (np.arange(int(rate_rps)) / rate_rps * 1e9).astype(np.int64)
    sent = (due * stretch).astype(np.int64) + late_ns
    return Requests(due, sent, sent + MS, np.full(len(due), outcome, np.uint8))


def test_a_rate_that_was_sent_on_time_is_kept_up_with() -> None:
    assert keeps_up(block(rate_rps=1000), 1000)
    assert keeps_up(block(rate_rps=1000, late_ns=9 * MS), 1000)


def test_what_was_sent_late_slowly_or_in_vain_is_not() -> None:
    assert not keeps_up(block(rate_rps=1000, late_ns=11 * MS), 1000)
    assert not keeps_up(block(rate_rps=1000, stretch=1.012), 1000)
    assert not keeps_up(block(rate_rps=1000, outcome=ERROR), 1000)


def test_a_few_late_requests_do_not_decide() -> None:
    late = np.zeros(1000, np.int64)
    late[:9] = 50 * MS
    assert keeps_up(block(rate_rps=1000, late_ns=late), 1000)


def test_never_sent_requests_are_not_kept_up_with() -> None:
    requests = block(rate_rps=1000)
    requests.sent_ns[500:] = -1
    requests.outcome[500:] = 2
    assert not keeps_up(requests, 1000)


def test_without_a_server_there_is_no_ceiling() -> None:
    with pytest.raises(RunError, match="is it loaded"):
        ceiling(f"127.0.0.1:{free_port()}")


# --- streams ---


def answers(*, late_ns: np.ndarray | int = 0, sent_late_ns: int = 0, chunks: int = CHUNKS) -> Requests:
    """100 answers of the null streaming server, 10 ms apart, whose chunks were read late."""
    due = np.arange(100, dtype=np.int64) * 10 * MS
    sent = due + sent_late_ns
    at = np.repeat(sent, chunks) + np.tile(np.arange(1, chunks + 1), 100) * round(GAP_S * 1e9) + late_ns
    counts = np.full(100, chunks)
    first = np.arange(101) * chunks
    streams = Streams(counts, counts, np.zeros(100, np.int64), first, at, np.ones(100 * chunks, np.int64))
    return Requests(due, sent, at[first[1:] - 1], np.full(100, OK, np.uint8), None, streams)


def test_chunks_that_were_read_by_their_deadlines_are_kept_up_with() -> None:
    assert keeps_reading(answers())
    assert keeps_reading(answers(late_ns=9 * MS))
    few = np.zeros(100 * CHUNKS, np.int64)
    few[: CHUNKS // 2] = 50 * MS  # half a percent
    assert keeps_reading(answers(late_ns=few))


def test_chunks_that_were_read_late_or_not_at_all_are_not() -> None:
    assert not keeps_reading(answers(late_ns=11 * MS))
    assert not keeps_reading(answers(sent_late_ns=11 * MS))
    assert not keeps_reading(answers(chunks=CHUNKS - 1))
    broken = answers()
    broken.outcome[7] = ERROR
    assert not keeps_reading(broken)
    many = np.zeros(100 * CHUNKS, np.int64)
    many[: 2 * CHUNKS] = 50 * MS
    assert not keeps_reading(answers(late_ns=many))


def test_the_null_streaming_server_speaks_each_protocol_and_is_never_early(tmp_path: Path) -> None:
    with null_stream_server() as port, Generator(tmp_path, workers=1) as generator:
        for block, protocol in enumerate(("grpc", "http", "openai")):
            url = f"127.0.0.1:{port}" if protocol == "grpc" else f"http://127.0.0.1:{port}"
            workload = Workload(arrival=Constant(rate_rps=50), duration_s=0.1, protocol=protocol, timeout_s=30)
            generator.begin(Job(block, url, ModelSpec(name="llm"), workload))
            assert generator.wait(60).done
            found = Requests.from_table(read_stream(tmp_path / "requests-0.arrows", REQUESTS), block)
            streams = found.streams
            assert streams is not None and list(found.outcome) == [OK] * 5
            assert list(np.diff(streams.first)) == [CHUNKS] * 5 and set(streams.tokens) == {1}
            assert set(streams.output_tokens) == {CHUNKS} and set(streams.prompt_tokens) == {PROMPT_TOKENS}
            due_ns = found.sent_ns[:, None] + np.arange(1, CHUNKS + 1) * round(GAP_S * 1e9)
            assert (streams.t_ns.reshape(5, CHUNKS) > due_ns).all()
