"""Whole blocks of answers in chunks: real worker processes against fake servers that tell a story to each request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lab.errors import InputError
from lab.load.generator import Generator, Job, Progress
from lab.load.prompts import sentences
from lab.measure.definitions import rescore
from lab.measure.records import CANCELLED, OK, REFUSED, REQUESTS, TIMEOUT, TRUNCATED, Requests, Window
from lab.measure.summary import summarize
from lab.spec import Arrival, ClosedLoop, Constant, ModelSpec, Workload
from lab.stream import read_stream
from tests.lasting import Lasting
from tests.load.fakes.servers import FakeServer, free_port
from tests.load.fakes.streams import Chunk, Story, generate_server, grpc_stream_server, openai_server
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.processes

LLM = ModelSpec(name="llm")
SERVERS = {"grpc": grpc_stream_server, "http": generate_server, "openai": openai_server}
PROTOCOLS = pytest.mark.parametrize("protocol", list(SERVERS))


@dataclass
class Bench:
    folder: Path
    generator: Generator
    blocks: int = 0

    def begin(
        self, url: str, arrival: Arrival, duration_s: float, *, tokenizer: Path | None = None, **more: Any
    ) -> Window:
        self.blocks += 1
        workload = Workload(arrival=arrival, duration_s=duration_s, **{"timeout_s": LIMIT_S, **more})
        return self.generator.begin(Job(self.blocks, _url(url, workload.protocol), LLM, workload, tokenizer))

    def heard(self) -> None:
        """The worker has read all that was sent to it: it has reported twice since, so its loop has gone round."""
        (worker,) = self.generator._all
        for _ in range(2):
            self.generator.poll()  # takes what it has said so far
            until(lambda: worker.listen() or worker.reports, "the worker's next report")

    def rows(self) -> list[dict[str, Any]]:
        return self._table().to_pylist()

    def requests(self) -> Requests:
        return Requests.from_table(self._table())

    def run(self, url: str, arrival: Arrival, duration_s: float, **more: Any) -> tuple[list[dict[str, Any]], Progress]:
        self.begin(url, arrival, duration_s, **more)
        progress = self.generator.wait(60)
        assert progress.done
        return self.rows(), progress

    def _table(self) -> Any:
        table = read_stream(self.folder / "requests-*.arrows", REQUESTS)
        return table.filter(np.equal(table["block"].to_numpy(), self.blocks)).sort_by("request")


def _url(url: str, protocol: str) -> str:
    return f"openai+http://{url}/v1" if protocol == "openai" else url


@contextmanager
def fake(protocol: str, story: Story) -> Iterator[FakeServer]:
    with SERVERS[protocol](story) as server:
        yield server


@contextmanager
def _bench(folder: Path) -> Iterator[Bench]:
    with Generator(folder, workers=1) as generator:
        yield Bench(folder, generator)


@pytest.fixture(scope="module")
def _benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting[Bench]]:
    with Lasting(lambda: _bench(tmp_path_factory.mktemp("streams"))) as lasting:
        yield lasting


@pytest.fixture
def bench(_benches: Lasting[Bench], request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from _benches.lend(request)


@PROTOCOLS
def test_records_hold_the_chunks_that_the_server_sent(bench: Bench, protocol: str) -> None:
    story = Story([Chunk(0.02, 4), Chunk(0.05, 3), Chunk(0.08, 3)])
    with fake(protocol, story) as server:
        rows, progress = bench.run(server.url, Constant(rate_rps=20), 0.5, protocol=protocol)
    assert len(rows) == 10
    assert {row["outcome"] for row in rows} == {OK}
    assert all(row["chunk_tokens"] == [4, 3, 3] and row["output_tokens"] == 10 for row in rows)
    assert all(row["prompt_tokens"] == 7 and row["reasoning_chunks"] == 0 for row in rows)
    assert progress.output_tokens == 100
    streams = bench.requests().streams
    assert streams is not None
    # Stamps are of one clock with the server's, and each chunk came after it was sent. Sorted, as a server that stood
    # still takes up what waits in any order: of sorted stamps the same is true. It makes some late, and not all.
    late = np.sort(streams.t_ns.reshape(10, 3), axis=0) - np.sort(np.array(story.sent_ns), axis=0)
    assert (late > 0).all()
    assert (late.min(axis=0) < 50_000_000).all()


@PROTOCOLS
def test_one_stream_scores_as_each_tool_would_have_it(bench: Bench, protocol: str) -> None:  # T1, from wire to figure
    story = Story([Chunk(0.1, 4), Chunk(0.2, 3), Chunk(0.3, 3)])
    with fake(protocol, story) as server:
        window = bench.begin(server.url, Constant(rate_rps=25), 0.4, protocol=protocol)
        bench.generator.wait(60)
    requests = bench.requests()
    summary = summarize(requests, window=window, planned=10, slo=None)
    assert (summary.ok, summary.output_tokens_mean) == (10, 10)
    assert requests.streams is not None
    came_ns, told_ns = requests.streams.t_ns.reshape(10, 3), np.array(story.sent_ns)
    late_s = (came_ns - told_ns) / 1e9
    assert (late_s > 0).all()
    assert (late_s.min(axis=0) < 0.05).all()  # a busy machine holds some up; of each of the three, not all ten
    assert 0.100 <= summary.ttft_mean_s == pytest.approx((came_ns[:, 0] - requests.sent_ns).mean() / 1e9)
    assert summary.icl_mean_s == pytest.approx(np.diff(came_ns).mean() / 1e9)
    assert summary.itl_mean_s == pytest.approx(summary.icl_mean_s * 2 / 6)
    assert rescore(requests, window, "vLLM")["tpot_mean_s"] == pytest.approx(summary.icl_mean_s * 2 / 9)


@PROTOCOLS
def test_a_stream_that_never_ends_is_given_up_and_its_tokens_are_kept(bench: Bench, protocol: str) -> None:  # T12, T22
    story = Story([Chunk(0.05 * i, 2) for i in range(4)], hangs=True)
    with fake(protocol, story) as server:
        window = bench.begin(server.url, Constant(rate_rps=10), 0.5, protocol=protocol, timeout_s=2.0)
        progress = bench.generator.wait(60)
        until(lambda: story.cancelled == 5)
    rows = bench.rows()
    assert len(rows) == 5
    assert {row["outcome"] for row in rows} == {TIMEOUT}
    assert {row["output_tokens"] for row in rows} == {8}
    assert {len(row["chunk_ns"]) for row in rows} == {4}
    assert max(row["done_ns"] for row in rows) < window.end_ns + (2 + LIMIT_S / 2) * 1e9
    assert progress.output_tokens == 40


@PROTOCOLS
def test_stop_keeps_the_tokens_of_unfinished_answers(bench: Bench, protocol: str) -> None:  # T22
    story = Story([Chunk(0.01 * i, 1) for i in range(10)], hangs=True)
    with fake(protocol, story) as server:
        bench.begin(server.url, ClosedLoop(concurrency=3), 60, protocol=protocol)
        until(lambda: story.told == 3)
        bench.heard()
        bench.generator.cancel()
        bench.generator.wait(60)
    rows = bench.rows()
    assert [row["outcome"] for row in rows] == [CANCELLED] * 3
    assert [row["output_tokens"] for row in rows] == [10] * 3


@PROTOCOLS
def test_a_server_that_dies_leaves_the_tokens_that_came(bench: Bench, protocol: str) -> None:  # P9, T13
    story = Story([Chunk(0.01 * i, 1) for i in range(5)], hangs=True)
    with fake(protocol, story) as server:
        bench.begin(server.url, Constant(rate_rps=20), 60, protocol=protocol)
        until(lambda: story.told >= 1)
        bench.heard()
        server.kill()
        killed_ns = time.perf_counter_ns()
    until(lambda: bench.generator.poll().errors.get("refused"))
    bench.generator.cancel()
    assert bench.generator.wait(60).done
    rows = bench.rows()
    assert (rows[0]["outcome"], rows[0]["output_tokens"]) == (TRUNCATED, 5)
    assert rows[0]["done_ns"] < killed_ns + 1e9 * LIMIT_S / 2
    assert REFUSED in {row["outcome"] for row in rows}


@PROTOCOLS
def test_errors_in_the_middle_are_truncated_answers(bench: Bench, protocol: str) -> None:  # T6
    story = Story([Chunk(0, 1), Chunk(0.01, 1), Chunk(0.02, 1)], fails=("INTERNAL", "out of cache"))
    with fake(protocol, story) as server:
        rows, progress = bench.run(server.url, Constant(rate_rps=10), 0.4, protocol=protocol)
    assert len(rows) == 4
    assert progress.errors == {"truncated": len(rows)}
    assert all("out of cache" in row["detail"] and row["output_tokens"] == 3 for row in rows)


@PROTOCOLS
def test_a_request_that_is_wrong_in_itself_ends_the_block(bench: Bench, protocol: str) -> None:  # P3
    story = Story(fails=("INVALID_ARGUMENT", "prompt of 3000 tokens; allowed: 1024"))
    with fake(protocol, story) as server:
        bench.begin(server.url, Constant(rate_rps=50), 60, protocol=protocol)
        with pytest.raises(InputError, match=r"model llm: .*prompt of 3000 tokens; allowed: 1024"):
            bench.generator.wait(60)


def test_prompts_have_the_tokens_that_the_tokenizer_counts(bench: Bench, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(sentences(), trainers.BpeTrainer(vocab_size=1000, show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    story = Story([Chunk(0, 1)])
    with fake("http", story) as server:
        for lengths in (33, (50, 60)):
            story.requests.clear()
            more: dict[str, Any] = {"protocol": "http", "prompt_tokens": lengths, "output_tokens": (2, 5)}
            rows, _ = bench.run(server.url, Constant(rate_rps=50), 0.4, tokenizer=tmp_path / "tokenizer.json", **more)
            counts = [len(tokenizer.encode(body["text_input"]).ids) for body in story.requests]
            assert len(counts) == len(rows) == 20
            low, high = lengths if isinstance(lengths, tuple) else (lengths, lengths)
            assert low <= min(counts) <= max(counts) <= high
            asked = {json.loads(body["sampling_parameters"])["max_tokens"] for body in story.requests}
            assert asked == {2, 3, 4, 5}


def test_a_server_is_asked_for_the_name_it_serves_the_model_by(bench: Bench) -> None:
    story = Story([Chunk(0, 1)])
    with fake("openai", story) as server:
        served = {"protocol": "openai", "served_model": "HuggingFaceTB/SmolLM2-135M-Instruct"}
        bench.run(server.url, Constant(rate_rps=20), 0.1, **served)
    assert {body["model"] for body in story.requests} == {"HuggingFaceTB/SmolLM2-135M-Instruct"}


def test_only_a_language_model_speaks_openai(bench: Bench) -> None:
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, protocol="openai")
    with pytest.raises(InputError, match=r"workload\.protocol 'openai' for family null; allowed: grpc, http"):
        bench.generator.begin(Job(99, f"127.0.0.1:{free_port()}", ModelSpec(name="null"), workload))


def test_workers_share_the_requests_of_a_language_model(tmp_path: Path) -> None:
    story = Story([Chunk(0.01, 1)])
    with fake("http", story) as server, Generator(tmp_path, workers=2) as generator:
        rows, progress = Bench(tmp_path, generator).run(server.url, Constant(rate_rps=40), 0.5, protocol="http")
    assert [row["request"] for row in rows] == list(range(20))
    assert progress.output_tokens == 20
    assert len({body["text_input"] for body in story.requests}) == 20
