"""Whole blocks: real worker processes against fake servers whose times, refusals and freezes are known.

Times are checked against arithmetic on the schedule, which bounds them from below, and against the server's own book of
when each request came and was answered: both clocks are one, so it holds however busy the machine is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from lab.errors import InputError, RunError
from lab.load.generator import Generator, Job, Progress
from lab.load.schedule import arrivals
from lab.measure.records import OK, OUTCOMES, REFUSED, REQUESTS, TIMEOUT, Window
from lab.spec import Arrival, ClosedLoop, Constant, ModelSpec, Poisson, Trace, Workload
from lab.stream import read_stream
from tests.lasting import Lasting
from tests.load.fakes.servers import FakeServer, free_port, grpc_server, http_server
from tests.load.fakes.service import Service
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.processes

NULL = ModelSpec(name="null")
ROOT = Path(__file__).parents[2]


LATE_MS = 50.0
"""How much later than the truth the client may be, in the median: a busy machine stalls some requests for longer, but
not half of them."""


class Block:
    """The rows of one block, in order of their numbers, in ms from the block's start."""

    def __init__(self, folder: Path, block: int, window: Window, progress: Progress | None) -> None:
        table = read_stream(folder / "requests-*.arrows", REQUESTS)
        table = table.filter(np.equal(table["block"].to_numpy(), block)).sort_by("request")
        self.window, self.progress = window, progress
        self.request = table["request"].to_numpy()
        self.was_sent = table["sent_ns"].is_valid().to_numpy()
        start = window.start_ns
        self.due_ms = (table["due_ns"].to_numpy() - start) / 1e6
        self.sent_ms = (table["sent_ns"].fill_null(start).to_numpy() - start) / 1e6
        self.done_ms = (table["done_ns"].to_numpy() - start) / 1e6
        self.latency_ms = self.done_ms - self.due_ms
        self.service_ms = self.done_ms - self.sent_ms
        self.outcome = table["outcome"].to_numpy()
        self.detail = table["detail"].to_pylist()

    def booked(self, service: Service) -> tuple[np.ndarray, np.ndarray]:
        """When each request came to the server and was answered there, as the other times."""
        number = np.frombuffer(b"".join(service.payloads), "<f4").argsort()  # the null model's inputs count up
        came, answered = (np.array(times)[number] for times in (service.arrived_ns, service.answered_ns))
        return (came - self.window.start_ns) / 1e6, (answered - self.window.start_ns) / 1e6

    def count(self, outcome: int) -> int:
        return int((self.outcome == outcome).sum())


class Bench:
    """A generator and a server that stay for several tests, so that messages are prepared once."""

    def __init__(self, folder: Path, generator: Generator, fakes: dict[str, FakeServer]) -> None:
        self.folder, self.generator, self.fakes = folder, generator, fakes
        self.blocks = 0

    def begin(self, arrival: Arrival, duration_s: float, *, url: str | None = None, **more: Any) -> Window:
        self.blocks += 1
        workload = Workload(arrival=arrival, duration_s=duration_s, **{"timeout_s": LIMIT_S, **more})
        return self.generator.begin(Job(self.blocks, url or self.fakes[workload.protocol].url, NULL, workload))

    def rows(self, window: Window, progress: Progress | None = None) -> Block:
        return Block(self.folder, self.blocks, window, progress)

    def run(self, service: Service, arrival: Arrival, duration_s: float, **more: Any) -> Block:
        for fake in self.fakes.values():
            fake.service.take_over(service)
        window = self.begin(arrival, duration_s, **more)
        progress = self.generator.wait(60)
        assert progress.done
        block = self.rows(window, progress)
        check_conservation(block)
        return block


def check_conservation(block: Block) -> None:  # S7
    progress = block.progress
    assert progress is not None
    never_sent = int((~block.was_sent).sum())
    assert len(block.request) == len(set(block.request)) == progress.finished
    assert progress.sent == progress.finished - never_sent
    assert progress.in_flight == 0
    assert progress.planned in (None, progress.sent + never_sent)
    errors = {OUTCOMES[o]: int(n) for o, n in zip(*np.unique(block.outcome, return_counts=True), strict=True) if o}
    assert progress.errors == errors
    assert all((text is None) == (outcome == OK) for text, outcome in zip(block.detail, block.outcome, strict=True))
    assert (block.done_ms >= block.due_ms).all()
    assert (block.sent_ms[block.was_sent] >= block.due_ms[block.was_sent]).all()


@contextmanager
def _bench(folder: Path, workers: int) -> Iterator[Bench]:
    with grpc_server(Service()) as grpc, http_server(Service()) as http, Generator(folder, workers) as generator:
        yield Bench(folder, generator, {"grpc": grpc, "http": http})


@pytest.fixture(scope="module")
def _benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Lasting[Bench]]]:
    """By the number of their workers."""
    with ExitStack() as stack:
        yield {
            workers: stack.enter_context(Lasting(lambda n=workers: _bench(tmp_path_factory.mktemp("bench"), n)))
            for workers in (1, 2)
        }


@pytest.fixture
def bench(_benches: dict[int, Lasting[Bench]], request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from _benches[1].lend(request)


@pytest.fixture
def two(_benches: dict[int, Lasting[Bench]], request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from _benches[2].lend(request)


# --- latency runs from the schedule ---


def check_times(block: Block, service: Service) -> None:
    """A request is stamped before the server has it, and its answer soon after the server gave it."""
    came, answered = block.booked(service)
    assert (block.sent_ms <= came).all()
    assert (block.done_ms >= answered).all()
    assert np.median(block.done_ms - answered) < LATE_MS


def test_waiting_for_a_place_is_part_of_latency(bench: Bench) -> None:  # T3, five times as fast
    service = Service(seconds=0.1)
    block = bench.run(service, Constant(rate_rps=50), 0.16, max_in_flight=1)
    assert block.due_ms == pytest.approx(20.0 * np.arange(8))
    assert (block.latency_ms >= 100 + 80 * np.arange(8) - 1).all()  # the i-th ends at 100 (i + 1), if not later
    check_times(block, service)
    # 280 ms of waiting beside 100 of service; a slower service makes the wait longer still.
    assert np.mean(block.sent_ms - block.due_ms) > 2.5 * np.median(block.service_ms)


@pytest.mark.alone
def test_a_frozen_server_delays_everybody_who_came_meanwhile(bench: Bench) -> None:  # T4, twenty times as fast
    service = Service(frozen_s=(0.6, 0.9))
    block = bench.run(service, Constant(rate_rps=100), 1.5)
    came = (block.due_ms > 601) & (block.due_ms < 899)  # 29 of 150 wait for the thaw, 0.3 s down to nothing
    assert came.sum() == 29
    assert (block.latency_ms[came] - (900 - block.due_ms[came])).min() > -5
    assert np.percentile(block.latency_ms, 90) > 90
    assert np.median(block.latency_ms[came]) > 3 * np.median(block.latency_ms[~came])
    check_times(block, service)


def test_a_paced_client_shows_the_freeze_from_the_schedule_only(bench: Bench) -> None:  # P19, four times as fast
    service = Service(seconds=0.01, frozen_s=(0.5, 0.75))
    block = bench.run(service, Constant(rate_rps=40), 1.5, max_in_flight=1)
    end, truth = 0.0, []
    for due in np.arange(60) * 25.0:
        start = max(due, end)
        end = (750.0 if 500 <= start < 750 else start) + 10
        truth.append(end - due)
    for p in (50, 90, 95, 99):
        assert np.percentile(block.latency_ms, p) > 0.85 * np.percentile(truth, p)
    check_times(block, service)
    # What is seen from the send is one slow request, and what a busy machine adds.
    assert np.percentile(block.latency_ms, 95) > 3 * np.percentile(block.service_ms, 90)


# --- arrivals are what was asked ---


@pytest.mark.parametrize(("rate_rps", "seconds"), [(20, 1.0), (800, 1.0)])
def test_requests_go_out_at_the_asked_rate(bench: Bench, rate_rps: float, seconds: float) -> None:  # T15, S5, P20
    service = Service()
    block = bench.run(service, Constant(rate_rps=rate_rps), seconds)
    n = round(rate_rps * seconds)
    assert len(service.arrived_ns) == n
    assert block.due_ms == pytest.approx(np.arange(n) * 1000 / rate_rps, abs=1e-3)
    assert (block.sent_ms >= block.due_ms).all()
    late = block.sent_ms - block.due_ms
    # Sleeping from one to the next would be later with each: at 800 a second by 80 ms and more at the end. A machine
    # that stands still makes some late, not all.
    assert late[-n // 4 :].min() < LATE_MS
    check_times(block, service)


def test_the_schedule_is_the_seeds(bench: Bench) -> None:  # T16
    block = bench.run(Service(), Poisson(rate_rps=100), 1.0, seed=0)
    assert np.array_equal(np.rint(block.due_ms * 1e6).astype(int), arrivals(Poisson(rate_rps=100), 1.0, 0))


def test_a_trace_is_replayed(bench: Bench, tmp_path: Path) -> None:  # T20: 20 requests in 0.4 s are 50 a second
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(str(i / 50) for i in range(20)))
    block = bench.run(Service(), Trace(path=str(path)), 0.4)
    assert block.count(OK) / block.window.seconds == 50
    assert block.due_ms == pytest.approx(np.arange(20) * 20.0)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_concurrency_is_what_was_asked(bench: Bench, protocol: str) -> None:  # T17, P4
    service = Service(together=128, seconds=0.1)
    block = bench.run(service, ClosedLoop(concurrency=128), 1.0, protocol=protocol)
    assert service.peak_in_flight == 128
    assert block.count(OK) == service.served
    assert block.count(OK) <= 128 * 11


# --- failures are data ---


def test_nobody_there_ends_with_every_request_refused(bench: Bench) -> None:  # T5
    window = bench.begin(Poisson(rate_rps=60), 0.5, url=f"127.0.0.1:{free_port()}")
    progress = bench.generator.wait(60)
    block = bench.rows(window, progress)
    check_conservation(block)
    assert progress.errors == {"refused": len(block.request)}
    assert len(block.request) > 10
    assert all("refused" in detail for detail in block.detail)
    assert block.latency_ms.max() < 1000 * LIMIT_S  # its limit, which nobody waited for


def test_a_server_that_never_answers_does_not_hold_the_run(bench: Bench) -> None:  # T12
    service = Service(silent=True)
    block = bench.run(service, Constant(rate_rps=50), 0.4, timeout_s=0.5)
    assert len(block.request) == 20
    assert set(block.outcome) == {TIMEOUT}
    assert (block.latency_ms >= 500).all()
    assert block.done_ms.max() < 400 + 500 + 1000 * LIMIT_S / 2
    until(lambda: service.cancelled == block.was_sent.sum(), "the server to be told")


def test_a_killed_server_leaves_what_was_measured(bench: Bench) -> None:  # T13
    service = Service(seconds=0.02)
    with grpc_server(service) as fake:
        window = bench.begin(Constant(rate_rps=100), 1.5, url=fake.url)
        until(lambda: service.served >= 20 and time.perf_counter_ns() > window.start_ns + 500_000_000)
        fake.kill()
        killed_ms = (time.perf_counter_ns() - window.start_ns) / 1e6
        progress = bench.generator.wait(60)
    block = bench.rows(window, progress)
    check_conservation(block)
    ok = block.outcome == OK
    assert 10 <= ok.sum() <= killed_ms / 10 + 6
    assert not ok[block.due_ms > killed_ms + 50].any()


def test_refusals_by_a_full_queue_are_counted_by_the_client(bench: Bench, tmp_path: Path) -> None:  # P7
    path = tmp_path / "at_once.txt"
    path.write_text("0\n" * 8)
    service = Service(seconds=0.3, places=1, queue=2, together=8)
    block = bench.run(service, Trace(path=str(path)), 0.1)
    assert (block.count(OK), block.count(REFUSED)) == (3, 5) == (service.served, service.refused)
    assert all(detail == "UNAVAILABLE: Exceeds maximum queue size" for detail in block.detail if detail)
    assert block.done_ms[block.outcome == REFUSED].max() <= block.done_ms[block.outcome == OK].min()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_failures_between_successes_are_told_apart(bench: Bench, protocol: str) -> None:  # P22 a, S7
    service = Service(refuse_every=5)
    block = bench.run(service, Constant(rate_rps=200), 0.5, protocol=protocol)
    assert (block.count(OK), block.count(REFUSED)) == (80, 20) == (service.served, service.refused)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_wrong_request_is_a_wrong_set_up(bench: Bench, protocol: str) -> None:  # P3
    for fake in bench.fakes.values():
        fake.service.take_over(Service(refuse=("INVALID_ARGUMENT", "unexpected shape for input 'INPUT'")))
    window = bench.begin(Poisson(rate_rps=50), 600, protocol=protocol)
    with pytest.raises(InputError, match=r"model null: .*unexpected shape for input 'INPUT'"):
        bench.generator.wait(60)
    assert len(bench.rows(window).request) < 600 * 50 // 2  # not at the block's end
    bench.run(Service(), Constant(rate_rps=20), 0.1)  # the generator goes on to the next block


def test_a_trace_that_is_not_there_is_found_before_the_start(bench: Bench) -> None:
    with pytest.raises(InputError, match="nowhere"):
        bench.begin(Trace(path="nowhere.txt"), 1.0)


# --- a block that runs ---


def test_progress_tells_what_is_planned_from_the_start(bench: Bench) -> None:
    for fake in bench.fakes.values():
        fake.service.take_over(Service())
    bench.begin(Constant(rate_rps=10), 600, warmup_s=0.1)
    progress = bench.generator.poll()
    assert (progress.planned, progress.done) == (6000, False)
    bench.generator.cancel()
    progress = bench.generator.wait(60)
    assert progress.done and progress.planned == progress.finished < 3000


def test_the_window_is_warm_up_and_measurement(bench: Bench) -> None:
    window = bench.run(Service(), Constant(rate_rps=10), 0.5, warmup_s=0.2).window
    assert window.measured_from_ns - window.start_ns == 200_000_000
    assert window.end_ns - window.start_ns == 500_000_000


def test_the_rate_changes_while_the_block_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for fake in bench.fakes.values():
        fake.service.take_over(Service())
    monkeypatch.setattr("lab.load.generator.CHANGE_LEAD_S", 1.0)  # the worker hears of it in time on any machine
    window = bench.begin(Constant(rate_rps=20), 600)
    until(lambda: bench.generator.poll().finished >= 5)
    effect_ms = (bench.generator.change(rate_rps=100) - window.start_ns) / 1e6
    until(lambda: time.perf_counter_ns() > window.start_ns + 1e6 * effect_ms + 300_000_000)
    bench.generator.cancel()
    block = bench.rows(window, bench.generator.wait(60))
    check_conservation(block)
    before, after = block.due_ms[block.due_ms < effect_ms], block.due_ms[block.due_ms >= effect_ms]
    assert np.diff(before) == pytest.approx(50, abs=1e-3)
    assert np.diff(after) == pytest.approx(10, abs=1e-3)
    assert after[0] == pytest.approx(effect_ms, abs=1e-3)
    assert len(before) >= 20 and len(after) >= 30


def test_a_change_of_rate_in_a_long_block_stalls_nothing(bench: Bench) -> None:
    # All 36 million arrivals of the hour that is left, drawn at once, held the worker up for 2.9 s and took 0.8 GB.
    for fake in bench.fakes.values():
        fake.service.take_over(Service())
    worker = psutil.Process(bench.generator.pids[0])
    window = bench.begin(Poisson(rate_rps=200), 3600)
    before_bytes = worker.memory_info().rss
    effect_ms = (bench.generator.change(rate_rps=10_000) - window.start_ns) / 1e6
    until(lambda: bench.generator.poll().sent > 2_000)
    grown_bytes = worker.memory_info().rss - before_bytes
    bench.generator.cancel()
    block = bench.rows(window, bench.generator.wait(60))
    check_conservation(block)
    after = block.sent_ms[block.was_sent & (block.due_ms >= effect_ms)]
    assert np.diff(np.sort(after)).max() < 1000 * LIMIT_S / 2
    assert grown_bytes < 64 * 2**20


def test_a_rate_that_nobody_can_send_is_refused_and_the_block_goes_on(bench: Bench) -> None:
    for fake in bench.fakes.values():
        fake.service.take_over(Service())
    bench.begin(Constant(rate_rps=10), 0.5)
    for rate_rps in (1e8, 0.0, float("nan")):
        with pytest.raises(InputError, match=r"^rate_rps \S+: allowed is above 0, up to 1,000,000 "):
            bench.generator.change(rate_rps=rate_rps)
    assert bench.generator.wait(60).finished == 5
    with pytest.raises(InputError, match=r"1,000,000"):
        bench.begin(Constant(rate_rps=1e8), 3600)


def test_the_concurrency_changes_while_the_block_runs(bench: Bench) -> None:
    service = Service(seconds=0.05)
    for fake in bench.fakes.values():
        fake.service.take_over(service)
    bench.begin(ClosedLoop(concurrency=2), 600)
    until(lambda: service.served >= 10)
    assert service.peak_in_flight == 2
    asked_ns = time.perf_counter_ns()
    effect_ns = bench.generator.change(concurrency=6)
    assert asked_ns <= effect_ns <= time.perf_counter_ns()
    served = service.served
    until(lambda: service.peak_in_flight == 6 and service.served > served + 30)
    assert service.peak_in_flight == 6
    bench.generator.cancel()
    bench.generator.wait(60)


def test_what_cannot_be_changed_says_so(bench: Bench) -> None:
    bench.begin(ClosedLoop(concurrency=1), 0.3)
    with pytest.raises(InputError, match="rate_rps 5"):
        bench.generator.change(rate_rps=5)
    bench.generator.wait(60)
    bench.begin(Poisson(rate_rps=1), 0.3)
    with pytest.raises(InputError, match="concurrency 5"):
        bench.generator.change(concurrency=5)
    bench.generator.wait(60)


def test_cancel_ends_the_block_and_keeps_what_was_measured(bench: Bench) -> None:
    service = Service(silent=True)
    for fake in bench.fakes.values():
        fake.service.take_over(service)
    window = bench.begin(Constant(rate_rps=50), 600)
    until(lambda: len(service.arrived_ns) >= 10)
    bench.generator.cancel()
    progress = bench.generator.wait(60)  # of 600 s that the block had left
    assert progress.done
    block = bench.rows(window, progress)
    check_conservation(block)
    assert progress.errors == {"cancelled": len(block.request)}
    assert progress.planned is not None
    assert 10 <= progress.planned < 600 * 50 // 2


# --- several workers ---


def test_workers_share_one_schedule_and_one_start(two: Bench) -> None:
    block = two.run(Service(), Poisson(rate_rps=200), 0.8, seed=3)
    schedule = arrivals(Poisson(rate_rps=200), 0.8, 3)
    assert np.array_equal(np.rint(block.due_ms * 1e6).astype(int), schedule)
    assert list(block.request) == list(range(len(schedule)))
    for worker in (0, 1):
        table = read_stream(two.folder / f"requests-{worker}.arrows", REQUESTS)
        assert set(table["request"].to_numpy() % 2) == {worker}


def test_workers_share_users_and_the_cap(two: Bench) -> None:
    for users, arrival, more in ((5, ClosedLoop(concurrency=5), {}), (3, Constant(rate_rps=300), {"max_in_flight": 3})):
        service = Service(seconds=0.05)
        for fake in two.fakes.values():
            fake.service.take_over(service)
        two.begin(arrival, 600, **more)
        until(lambda s=service, users=users: s.peak_in_flight == users and s.served > 30, "all of them at once")
        two.generator.cancel()
        two.generator.wait(60)
        assert service.peak_in_flight == users
    service = Service(seconds=0.01)
    block = two.run(service, Constant(rate_rps=50), 0.3, max_in_flight=1)
    assert (service.peak_in_flight, len(block.request)) == (1, 15)


def test_workers_send_different_payloads(two: Bench) -> None:
    service = Service()
    two.run(service, Constant(rate_rps=100), 0.5)
    assert len(set(service.payloads)) == len(service.payloads) == 50


# --- processes that die ---


def test_a_dead_worker_ends_the_block_with_its_last_words(tmp_path: Path) -> None:
    with grpc_server(Service()) as fake, Generator(tmp_path, workers=2) as generator:
        bench = Bench(tmp_path, generator, {"grpc": fake})
        window = bench.begin(Constant(rate_rps=200), 60)
        until(lambda: generator.poll().finished >= 60)
        os.kill(generator.pids[0], signal.SIGKILL)
        with pytest.raises(RunError, match=r"load worker 0 .*signal 9"):
            generator.wait(60)
        block = bench.rows(window)
        assert block.count(OK) >= 60
        with pytest.raises(RunError, match="load worker 0"):
            bench.begin(Constant(rate_rps=10), 1)


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    with Generator(tmp_path, workers=1) as generator:
        generator._all[0].tell({"order": "prepare", "job": {}, "worker": 0, "workers": 1})
        with pytest.raises(RunError, match=r"exit status 1: KeyError: 'workload'"):
            while True:
                generator.poll()
                time.sleep(0.02)


RUN = """
    import sys, time
    from pathlib import Path
    from lab.load.generator import Generator, Job
    from lab.spec import Constant, ModelSpec, Workload
    folder, url = Path(sys.argv[1]), sys.argv[2]
    with Generator(folder, workers=1) as generator:
        workload = Workload(arrival=Constant(rate_rps=200), duration_s=60)
        generator.begin(Job(0, url, ModelSpec(name="null"), workload))
        try:
            print(generator.pids[0], flush=True)
            generator.wait(60)
        except KeyboardInterrupt:
            generator.cancel()
            progress = generator.wait(60)
            print(progress.finished, progress.done, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_sudden_death_keep_what_was_measured(tmp_path: Path, how: signal.Signals) -> None:
    service = Service()
    with grpc_server(service) as fake:
        run = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), fake.url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert run.stdout is not None
        worker = psutil.Process(int(run.stdout.readline()))
        until(lambda: service.served >= 100)
        os.killpg(run.pid, how)  # as a terminal does: the whole foreground group
        told = run.stdout.read().split()
        run.wait(60)
        psutil.wait_procs([worker], timeout=60)
        assert not worker.is_running()
    outcomes = read_stream(tmp_path / "requests-0.arrows", REQUESTS)["outcome"].to_numpy()
    assert (outcomes == OK).sum() >= 100
    if how == signal.SIGINT:
        assert told == [str(len(outcomes)), "True"]
