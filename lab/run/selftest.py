"""The lab measures itself against servers whose truth is known: `python -m lab selftest`.

The sleeper answers after a time that the request states, the null model answers at once; so the right figures are
known before anything is measured. Each test is one or two short blocks through the same bench that experiments use.
The ids are those of the measurement rules: S1 known latency, S2 known shape, S3 freeze, S5 achieved rate, S7
conservation, S8 Little's law, S9 agreement with the server, S10 the generator's own ceiling are here; S4, S6, S14, S17
in truths.py, S11 to S13, S15, S16, S18 in served_truths.py. The result is kept with the machine's fingerprint.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import tritonclient.grpc as grpcclient

from lab.errors import RunError, ServerError
from lab.load.ceiling import ceiling
from lab.load.payload import requests_for
from lab.measure.pace import Floats
from lab.measure.percentile import interval, needed, percentile
from lab.measure.records import OK
from lab.measure.server import server_delta
from lab.measure.summary import Summary
from lab.run import gauge, results, selftest_kept, served_truths, truths
from lab.run.bench import Bench
from lab.run.catalogue import single
from lab.run.equality import infer
from lab.run.folder import RunFolder, new_run_id
from lab.run.lock import MeasureLock
from lab.run.outcome import Outcome
from lab.run.plan import cell_blocks
from lab.run.results import BlockResult
from lab.run.runner import Stop, create
from lab.run.serving import managed
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import Experiment, ModelSpec, Workload, parse

Report = Callable[[str], None]

BEGIN_LIMIT_S = 60.0
"""The longest that a block takes to begin, on a busy machine."""
COUNT_LIMIT_S = 5.0
"""The longest that Triton takes to count an answer that it has given."""
BESIDE, ECHOED = 16, 320
"""How many users ask the sleeper, and how often in all, to compare the batches it ran with those Triton counts."""


def run_selftest(report: Report, stop: Stop | None = None) -> list[Outcome]:
    """Every self-test, in the order of their ids; about three minutes. LabError when the server cannot be had."""
    stop = stop or Stop()
    experiment = single({"name": "sleeper", "batching": {"max_batch_size": 32}}, _workload(50, 4), name="selftest")
    run_id = new_run_id("selftest")
    folder = create(experiment, run_id, quick=False, settings=[], url=None)
    with MeasureLock(run_id) as lock:
        lock.acquire(lambda place, holder: report(f"waiting for {holder} (place {place})"))
        folder.set_status(state="running", phase="selftest", progress=0.0)
        try:
            with managed(folder) as server, Bench(folder, server, workers=1, cells=1, stopped=stop) as bench:
                found = [*_Tests(folder, server, bench, report).all(), *truths.all_of_them()]
                outcomes = sorted(found, key=lambda outcome: int(outcome.id[1:]))
        except BaseException:
            folder.set_status(state="failed", phase="selftest", progress=None)
            raise
        folder.write_summary(results.compute(folder, state="done") | {"selftest": [o.to_dict() for o in outcomes]})
        folder.set_status(state="done", phase="selftest", progress=1.0)
    selftest_kept.keep([outcome.to_dict() for outcome in outcomes])
    return outcomes


class _Tests:
    def __init__(self, folder: RunFolder, server: Server, bench: Bench, report: Report) -> None:
        self._folder, self._server, self._bench, self._report = folder, server, bench, report
        self._index = 0
        self._counted: dict[int, int] = {}
        """Successes that Triton counted, by block."""

    def all(self) -> Any:
        # A metronome well below what the instances can take: nothing queues, so a service is the sleep and what the
        # server adds to it. Both blocks at one rate on one configuration, so that it adds the same.
        known = self._measure(_workload(40, 5, sleep_s=[0.010]) | _constant(40), instances=4)
        long = self._measure(_workload(20, 24, sleep_s=[0.100]) | _constant(20), instances=4)
        yield known_latency({0.010: _service_s(known), 0.100: _service_s(long)})
        shape = _workload(40, 10, sleep_s=[0.010] * 19 + [0.100]) | _constant(40)
        yield known_shape(_service_s(self._measure(shape, instances=4)), _service_s(known))
        yield self._freeze()
        rated = self._measure(_workload(200, 5, sleep_s=[0.0]) | _constant(200))
        yield self._achieved_rate(rated)
        yield conservation([(block.summary, self._counted[block.number]) for block in (known, rated)])
        yield self._little(self._measure(_workload(100, 8, sleep_s=[0.020]), instances=4))
        yield self._server_agreement()
        yield self._ceiling()
        yield from served_truths.all_of_them(self._folder, self._server, self._measure, known)

    def _measure(
        self,
        workload: dict[str, Any],
        *,
        model: str = "sleeper",
        batch: int = 1,
        instances: int = 1,
        during: Callable[[], None] | None = None,
    ) -> BlockResult:
        spec = {"name": model, "batching": {"max_batch_size": batch}, "instances": instances}
        experiment: Experiment = single(spec, workload, name="selftest")
        index, self._index = self._index, self._index + 1
        self._report(f"self-test block {index}: {model}, {workload['arrival']}")
        block = cell_blocks(experiment)[0]
        self._bench.put(block.model)  # before Triton's counters are read, since a reload starts them anew
        before = self._successes(model)
        helper = threading.Thread(target=during) if during else None
        if helper:
            helper.start()
        self._bench.block(index, block, on_tick=lambda phase, progress: None)
        if helper:
            helper.join()
        self._counted[index] = self._successes(model) - before
        return results.block_results(self._folder, experiment)[index]

    def _successes(self, model: str) -> int:
        statistics = self._server.client.get_inference_statistics(model).model_stats
        return sum(int(version.inference_stats.success.count) for version in statistics)

    def _freeze(self) -> Outcome:
        pid = self._server.pid
        if pid is None:
            raise ServerError("the freeze test needs a server that the lab started; stop --url")

        number = self._index

        def freeze() -> None:
            deadline = time.monotonic() + BEGIN_LIMIT_S
            while not any(e["kind"] == "block_start" and e["block"] == number for e in self._folder.events()):
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)
            time.sleep(2.5)
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(1.0)
            finally:
                os.kill(pid, signal.SIGCONT)

        workload = {**_workload(20, 6, warmup_s=0.0, sleep_s=[0.010]), "max_in_flight": 1}
        summary = self._measure(workload, during=freeze).summary
        found = summary.latency_p95_s
        passed = found is not None and found > 0.5
        text = f"server frozen for 1 s of 6: p95 {_ms(found)} from schedule, {_ms(summary.service_p95_s)} from send"
        return Outcome("S3", passed, found, 0.781, "above 500 ms", text)

    def _achieved_rate(self, block: BlockResult) -> Outcome:
        found, truth = block.summary.sent_rps, 200.0
        passed = found is not None and abs(found - truth) <= 0.01 * truth
        return Outcome("S5", passed, found, truth, "1 %", f"asked for 200 req/s, sent {found:.1f}")

    def _little(self, block: BlockResult) -> Outcome:
        found = block.summary.little_ratio
        passed = found is not None and abs(found - 1) <= 0.05
        shown = "n/a" if found is None else f"{found:.3f}"
        return Outcome("S8", passed, found, 1.0, "5 %", f"mean in flight ÷ (rate × mean latency) = {shown}")

    def _server_agreement(self) -> Outcome:
        block = self._measure(_workload(200, 5, sleep_s=[0.005]), batch=8)
        echoed, counted = self._batches()
        return agreement(block.summary, echoed, counted)

    def _batches(self) -> tuple[list[int], float | None]:
        """(the size of the batch that each answer says it ran in, the mean batch that Triton counted meanwhile), of the
        sleeper as it is loaded."""
        workload = parse(Workload, _workload(50, 1, sleep_s=[0.005]))
        asked = requests_for(parse(ModelSpec, {"name": "sleeper"}), workload, ECHOED)
        counters = [scrape(self._server, ["sleeper"])]
        done = self._successes("sleeper") + len(asked)
        with grpcclient.InferenceServerClient(self._server.grpc_url) as client, ThreadPoolExecutor(BESIDE) as users:
            answers = list(users.map(lambda request: infer(client, "sleeper", request), asked))
        deadline = time.monotonic() + COUNT_LIMIT_S
        while self._successes("sleeper") < done and time.monotonic() < deadline:
            time.sleep(0.02)
        counters.append(scrape(self._server, ["sleeper"]))
        found = server_delta(pa.concat_tables(counters), "sleeper", 0, time.perf_counter_ns())
        return [int(answer["BATCH"].item()) for answer in answers], None if found is None else found.batch_mean

    def _ceiling(self) -> Outcome:
        null = single({"name": "null", "batching": {"max_batch_size": 64}}, _workload(50, 4)).model
        self._bench.put(null)
        rate = ceiling(self._server.grpc_url)
        if rate:
            gauge.keep(rate, workers=1)
        text = f"the load generator's own ceiling here is {rate:,.0f} req/s"
        return Outcome("S10", rate > 0, rate, None, "reported, not judged", text)


def known_latency(found: Mapping[float, Floats]) -> Outcome:
    """S1 from the service times in s of constant sleeps at low load, by their length in s: p50 and, of the longest, p99
    within max(2 ms, 5 %).

    A p99 takes 459 answers, and on a small machine one stall of some milliseconds meets several of them: where its 95 %
    interval holds a p99 within the tolerance, the meter is not told to be off."""
    longest = max(found)
    parts, passed = [], True
    for sleep_s, service_s in found.items():
        middle = percentile(service_s, 0.5)
        passed &= middle is not None and abs(middle - sleep_s) <= max(0.002, 0.05 * sleep_s)
        parts.append(f"{_ms(sleep_s)} are measured as {_ms(middle)} at p50")
    tail = percentile(found[longest], 0.99) if len(found[longest]) >= needed(0.99) else None
    low_s, high_s = interval(np.sort(found[longest]), 0.99)
    allowed_s = max(0.002, 0.05 * longest)
    within = low_s is not None and low_s <= longest + allowed_s and (high_s is None or high_s >= longest - allowed_s)
    parts.append(f"{_ms(tail)} at p99 (95 %: from {_ms(low_s)})")
    text = "; ".join(parts)
    return Outcome("S1", passed and tail is not None and within, tail, longest, "2 ms or 5 %", text)


def conservation(blocks: Sequence[tuple[Summary, int]]) -> Outcome:
    """S7 from the figures of blocks, each with the successes that Triton counted from before its first request to after
    its last: no request is lost on the way, and the server's count is the client's. What the client gave up on may have
    been answered all the same, and explains as large a gap."""
    wrong = gap = explained = 0
    for s, counted in blocks:
        if s.planned is None or s.dropped is None:
            wrong += 1
            continue
        ended = s.ok + s.refused + s.timeout + s.cancelled + s.truncated + s.error
        wrong += abs(s.planned - s.sent - s.dropped) + abs(s.sent - ended)
        more = counted - s.ok
        gap, explained = gap + abs(more), explained + min(max(more, 0), s.timeout + s.cancelled)
    text = f"{wrong} requests unaccounted for; Triton's successes are {gap} off the client's"
    text += f", {explained} of which the client gave up on" if gap else ""
    return Outcome("S7", wrong == 0 and gap == explained, float(wrong + gap - explained), 0.0, "exact", text)


def agreement(summary: Summary, echoed: Sequence[int], counted_mean: float | None) -> Outcome:
    """S9 from a block's figures, and from answers that each say how large a batch they ran in (`echoed`) while Triton
    counted a mean batch: of b answers from one batch each stands for 1/b of it."""
    client, server = summary.service_mean_s, summary.server_mean_s
    gap = None if client is None or server is None else client - server
    mean = len(echoed) / float(np.sum(1 / np.asarray(echoed, dtype=np.float64))) if echoed else None
    same = mean is not None and counted_mean is not None and abs(mean - counted_mean) < 1e-9 * mean
    text = f"client mean {_ms(client)}, server mean {_ms(server)}; mean batch {_plain(counted_mean)} by Triton's "
    text += f"count, {_plain(mean)} by what the model echoed"
    passed = gap is not None and 0 <= gap < 0.002 and same
    return Outcome("S9", passed, gap, 0.0, "0 to 2 ms; the batch exact", text)


def known_shape(service_s: Floats, constant_s: Floats) -> Outcome:
    """S2 from the service times in s of 95 % sleeps of 10 ms and 5 % of 100 ms, beside those of S1, a constant 10 ms.

    The sleeper's sleep is not all that a request takes: passing it in and out of Triton's process adds a millisecond
    or two. Their median in S1 is the baseline that the known shape stands on: one stall there moves it not."""
    mean, added_s = float(np.mean(service_s)), float(np.median(constant_s)) - 0.010
    found = {p: float(np.quantile(service_s, p)) for p in (0.50, 0.90, 0.99)}
    # The seeded draw, not the distribution it is drawn from, is the truth for this very block.
    truth = float(np.mean(np.where(service_s > 0.055, 0.100, 0.010))) + added_s
    passed = (
        abs(found[0.50] - 0.010 - added_s) <= 0.002
        and abs(found[0.90] - 0.010 - added_s) <= 0.003
        and abs(found[0.99] - 0.100 - added_s) <= 0.005
        and abs(mean - truth) <= max(0.05 * truth, 0.001)
    )
    figures = ", ".join(f"p{100 * p:g} {_ms(v)}" for p, v in found.items())
    text = f"95 % at 10 ms and 5 % at 100 ms, on {_ms(added_s)} that the server adds (S1): {figures}, mean {_ms(mean)}"
    return Outcome("S2", passed, mean, truth, "2 ms at p50, 5 ms at p99, 5 % of the mean", text)


def _service_s(block: BlockResult) -> Floats:
    """Service times in s of the requests that were answered."""
    ok = block.requests.outcome == OK
    if not ok.any():
        raise RunError("self-test: the sleeper answered no request")
    return np.asarray((block.requests.done_ns - block.requests.sent_ns)[ok] / 1e9)


def _workload(rate_rps: float, duration_s: float, **more: Any) -> dict[str, Any]:
    arrival = {"kind": "poisson", "rate_rps": rate_rps}
    return {"arrival": arrival, "duration_s": duration_s, "warmup_s": 0.5, "seed": 7} | more


def _constant(rate_rps: float) -> dict[str, Any]:
    return {"arrival": {"kind": "constant", "rate_rps": rate_rps}}


def _ms(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{1e3 * seconds:.1f} ms"


def _plain(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
