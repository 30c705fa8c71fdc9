"""A runner without a server: `python -m tests.show.feed RUN_ID [SECONDS]` writes a load run second by second.

Does to the run folder what lab.run.runner does (status with a heartbeat, requests, counters, events) and obeys the same
control file, so that a page or a browser can watch, change, stop or lose it. The served times are simulated.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from lab.run import catalogue
from lab.run.control import Inbox
from lab.run.status import SUMMING
from lab.spec import Batching, parse
from tests.show.synthetic import SECOND, Author, simulate

TICK_S = 0.25


def feed(run_id: str, seconds: float, rate_rps: float = 400.0) -> None:
    workload = {"arrival": {"kind": "poisson", "rate_rps": rate_rps}, "duration_s": seconds}
    experiment = catalogue.single({"name": "digits"}, workload, [])
    author = Author(experiment, run_id, quick=False)
    folder, cell = author.folder, experiment.cells()[0]
    inbox, batching, state = Inbox(folder.path), cell.model.batching, "done"
    start_ns = time.perf_counter_ns()
    folder.event(
        "block_start", block=0, role="cell", cell=0, repeat=0, planned=None,
        workload=cell.workload.model_dump(mode="json"), model=cell.model.model_dump(mode="json"),
        start_ns=start_ns, measured_from_ns=start_ns, end_ns=start_ns + int(seconds * SECOND), t_ns=start_ns,
    )  # fmt: skip
    totals: dict[str, float] = {}
    then_ns = start_ns
    while (now_ns := time.perf_counter_ns()) < start_ns + seconds * SECOND:
        for change in inbox.new():
            if "stop" in change:
                state = "cancelled"
            elif "rate_rps" in change:
                rate_rps = float(change["rate_rps"])
                folder.event("change", field="rate_rps", to=rate_rps)
            elif "batching" in change:
                batching = None if change["batching"] is None else parse(Batching, change["batching"])
                folder.event("change", field="batching", to=change["batching"])
        if state == "cancelled":
            break
        span_s = (now_ns - then_ns) / SECOND
        due = np.sort(author.rng.uniform(0, span_s, author.rng.poisson(rate_rps * span_s)))
        if len(due):
            served = simulate(
                due,
                batching.max_batch_size if batching else 1,
                batching.max_queue_delay_us / 1e6 if batching else 0.0,
            )
            author.requests(0, then_ns, served, 5.0, None)
            for name, value in author.counted(served).items():
                totals[name] = totals.get(name, 0.0) + value
            author.scrape(now_ns, "digits", totals)
            author.telemetry("digits", then_ns, span_s, 1)
        folder.set_status("running", progress=(now_ns - start_ns) / (seconds * SECOND))
        then_ns = now_ns
        time.sleep(TICK_S)
    folder.set_status("draining", phase=SUMMING)
    folder.event("block_end", block=0, planned=None, end_ns=time.perf_counter_ns())
    author.end(state, "stopped by the user" if state == "cancelled" else "")


if __name__ == "__main__":
    feed(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
