"""The load generator against the real Triton, over both protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.errors import InputError
from lab.load.generator import Generator, Job
from lab.measure.records import OUTCOMES, REQUESTS, Window
from lab.serve.triton import Server
from lab.spec import Arrival, Batching, ClosedLoop, Constant, ModelSpec, Poisson, Trace, Workload
from lab.stream import read_stream
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.triton

NULL = ModelSpec(name="null", batching=Batching(max_batch_size=8))


class Bench:
    def __init__(self, server: Server, folder: Path, generator: Generator) -> None:
        self.server, self.folder, self.generator = server, folder, generator
        self.block = -1
        self.window: Window

    def begin(self, model: ModelSpec, arrival: Arrival, duration_s: float, **more: object) -> None:
        self.block += 1
        asked = {"arrival": arrival.model_dump(), "duration_s": duration_s, "timeout_s": LIMIT_S, **more}
        workload = Workload.model_validate(asked)
        url = {"grpc": self.server.grpc_url, "http": self.server.http_url}[workload.protocol]
        self.window = self.generator.begin(Job(self.block, url, model, workload))

    def outcomes(self) -> tuple[Counter[str], Counter[str | None]]:
        """Rows of the block by outcome, and by detail."""
        assert self.generator.wait(60).done
        table = read_stream(self.folder / "requests-*.arrows", REQUESTS)
        rows = table.filter(np.equal(table["block"].to_numpy(), self.block))
        return Counter(OUTCOMES[o] for o in rows["outcome"].to_pylist()), Counter(rows["detail"].to_pylist())

    def successes(self, model: str) -> int:
        statistics = self.server.client.get_inference_statistics(model, as_json=False)
        return int(statistics.model_stats[0].inference_stats.success.count)


@pytest.fixture
def bench(triton_server: Server, tmp_path: Path) -> Iterator[Bench]:
    with Generator(tmp_path, workers=1) as generator:
        yield Bench(triton_server, tmp_path, generator)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_triton_counts_the_successes_that_the_client_counts(bench: Bench, protocol: str) -> None:
    bench.server.load(NULL)
    for arrival in (Poisson(rate_rps=200), ClosedLoop(concurrency=12)):
        before = bench.successes("null")
        bench.begin(NULL, arrival, 1.0, protocol=protocol)
        outcomes, _ = bench.outcomes()
        assert set(outcomes) == {"ok"}
        assert outcomes["ok"] >= 12
        # Triton answers before it counts.
        until(lambda before=before, n=outcomes["ok"]: bench.successes("null") - before == n, "Triton's count")


@pytest.mark.parametrize("family", ["digits", "sleeper"])
def test_triton_takes_every_familys_requests(bench: Bench, family: str) -> None:
    model = ModelSpec(name=family, batching=Batching(max_batch_size=4))
    bench.server.load(model)
    bench.begin(model, Constant(rate_rps=40), 0.5, sleep_s=[0.001, 0.002])
    assert bench.outcomes()[0] == {"ok": 20}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_full_queue_refuses_at_once(bench: Bench, tmp_path: Path, protocol: str) -> None:  # P7, F1
    model = ModelSpec(name="sleeper", batching=Batching(max_batch_size=1, max_queue_size=2))
    bench.server.load(model)
    path = tmp_path / "at_once.txt"
    path.write_text("0\n" + "0.1\n" * 7)  # the first is being served when the others come
    bench.begin(model, Trace(path=str(path)), 0.2, sleep_s=[0.6], protocol=protocol)
    outcomes, details = bench.outcomes()
    assert outcomes == {"ok": 3, "refused": 5}
    assert all("Exceeds maximum queue size" in text for text in details if text is not None)


def test_a_queue_delay_punishes_a_lone_user(bench: Bench) -> None:  # P6
    """Nobody comes to join its request, so it waits the delay out; the rate falls to 1/(delay + service) at most."""
    for delay_us in (20_000, 0):
        bench.server.load(ModelSpec(name="null", batching=Batching(max_batch_size=8, max_queue_delay_us=delay_us)))
        bench.begin(NULL, ClosedLoop(concurrency=1), 0.6)
        outcomes, _ = bench.outcomes()
        assert set(outcomes) == {"ok"}
        rows = read_stream(bench.folder / "requests-*.arrows", REQUESTS).to_pylist()
        took_s = [(row["done_ns"] - row["sent_ns"]) / 1e9 for row in rows if row["block"] == bench.block]
        if delay_us:
            assert min(took_s) >= 0.020 and len(took_s) <= 0.6 / 0.020 + 1
        else:
            assert min(took_s) < 0.020


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_requests_of_another_model_are_a_wrong_set_up(bench: Bench, protocol: str) -> None:  # P3
    bench.server.load(ModelSpec(name="sleeper"))
    bench.begin(ModelSpec(name="sleeper", family="null"), Poisson(rate_rps=50), 60, protocol=protocol)
    with pytest.raises(InputError, match=r"model sleeper: .*INPUT"):
        bench.generator.wait(60)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_model_that_triton_does_not_know_is_a_wrong_set_up(bench: Bench, protocol: str) -> None:
    bench.begin(ModelSpec(name="nowhere", family="null"), Constant(rate_rps=20), 60, protocol=protocol)
    with pytest.raises(InputError, match=r"model nowhere: .*unknown model: 'nowhere'"):
        bench.generator.wait(60)
