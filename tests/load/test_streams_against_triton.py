"""Answers in chunks from a language model behind the real Triton: a tiny Llama with a token a byte, and SmolLM2 where
an answer must take its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.errors import InputError
from lab.load.generator import Generator, Job
from lab.measure.records import OUTCOMES, REQUESTS, Requests
from lab.serve import weights
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import Arrival, ClosedLoop, Constant, ModelSpec, Workload
from lab.stream import read_stream
from tests.serve.conftest import tiny_folder as tiny_folder
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.triton

PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http"])


class Bench:
    def __init__(self, server: Server, tiny: Path, folder: Path, generator: Generator) -> None:
        self.server, self.tiny, self.folder, self.generator = server, tiny, folder, generator
        self.block = -1

    def load(self, name: str = "tiny", **more: Any) -> ModelSpec:
        if name == "tiny":
            more |= {"precision": "fp32", "weights": str(self.tiny)}
        model = ModelSpec(name=name, family="llm", **more)
        self.server.load(model)
        return model

    def begin(self, model: ModelSpec, arrival: Arrival, duration_s: float, **more: Any) -> None:
        self.block += 1
        workload = Workload(arrival=arrival, duration_s=duration_s, **{"timeout_s": LIMIT_S, **more})
        url = {"grpc": self.server.grpc_url, "http": self.server.http_url}[workload.protocol]
        self.generator.begin(Job(self.block, url, model, workload, weights.tokenizer(model)))

    def table(self) -> Any:
        assert self.generator.wait(60).done
        table = read_stream(self.folder / "requests-*.arrows", REQUESTS)
        return table.filter(np.equal(table["block"].to_numpy(), self.block))

    def engine(self, model: ModelSpec) -> dict[str, float | None]:
        rows = scrape(self.server, [model.name]).to_pylist()
        return {row["field"]: row["value"] for row in rows if row["field"].startswith("engine_")}


@pytest.fixture
def bench(triton_server: Server, tiny_folder: Path, tmp_path: Path) -> Iterator[Bench]:
    with Generator(tmp_path, workers=1) as generator:
        yield Bench(triton_server, tiny_folder, tmp_path, generator)


@PROTOCOLS
def test_each_token_is_a_chunk_and_every_length_is_what_was_asked(bench: Bench, protocol: str) -> None:  # T36, P8
    model = bench.load()
    bench.begin(model, Constant(rate_rps=40), 0.5, protocol=protocol, prompt_tokens=(5, 40), output_tokens=(2, 30))
    rows = bench.table().to_pylist()
    assert len(rows) == 20
    assert {row["outcome"] for row in rows} == {0}
    assert all(row["chunk_tokens"] == [1] * row["output_tokens"] for row in rows)
    assert min(row["output_tokens"] for row in rows) >= 2
    assert max(row["output_tokens"] for row in rows) <= 30
    assert len({row["output_tokens"] for row in rows}) > 3
    assert min(row["prompt_tokens"] for row in rows) >= 5
    assert max(row["prompt_tokens"] for row in rows) <= 40
    for row in rows:
        stamps = [row["sent_ns"], *row["chunk_ns"], row["done_ns"]]
        assert stamps == sorted(stamps)
    made = sum(row["output_tokens"] for row in rows)
    until(lambda: bench.engine(model)["engine_output_tokens"] == made)


@PROTOCOLS
def test_chunks_of_several_tokens_are_counted_by_the_server(bench: Bench, protocol: str) -> None:  # T1, P24
    model = bench.load(stream_interval=4)
    bench.begin(model, Constant(rate_rps=20), 0.5, protocol=protocol, prompt_tokens=16, output_tokens=11)
    streams = Requests.from_table(bench.table()).streams
    assert streams is not None
    tokens = streams.tokens.reshape(10, -1)
    assert (tokens.sum(axis=1) == 11).all()
    assert tokens.max() == 4
    assert (streams.prompt_tokens == 16).all()


@PROTOCOLS
def test_a_whole_answer_is_one_chunk(bench: Bench, protocol: str) -> None:
    model = bench.load()
    bench.begin(model, Constant(rate_rps=20), 0.5, protocol=protocol, stream=False, output_tokens=11)
    assert [row["chunk_tokens"] for row in bench.table().to_pylist()] == [[11]] * 10


@PROTOCOLS
def test_a_prompt_that_does_not_fit_is_a_wrong_set_up(bench: Bench, protocol: str) -> None:  # P3
    model = bench.load(max_request_tokens=64)
    bench.begin(model, Constant(rate_rps=20), 60, protocol=protocol, prompt_tokens=60, output_tokens=8)
    with pytest.raises(InputError, match=r"model tiny: .*: prompt of 60 tokens and max_tokens 8 make 68; allowed: 64"):
        bench.generator.wait(60)


@PROTOCOLS
def test_requests_that_are_given_up_stop_the_engine(bench: Bench, protocol: str) -> None:  # P10, T22
    model = bench.load("llm", max_batch_size=4)
    bench.begin(model, ClosedLoop(concurrency=6), 1.0, protocol=protocol, output_tokens=900, timeout_s=4)
    rows = bench.table().to_pylist()
    assert Counter(OUTCOMES[row["outcome"]] for row in rows) == {"timeout": 6}  # four that run, two that wait
    assert sorted(row["output_tokens"] > 0 for row in rows) == [False] * 2 + [True] * 4
    until(lambda: bench.engine(model)["engine_cancelled"] == 6)
    engine = bench.engine(model)
    assert (engine["engine_running"], engine["engine_waiting"]) == (0, 0)
    made, told = engine["engine_output_tokens"], sum(row["output_tokens"] for row in rows)
    assert made is not None
    assert 0 < told <= made < 4 * 900
