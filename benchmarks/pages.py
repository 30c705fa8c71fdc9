"""What "decide" must show of its pages: Compare with six large runs, two hundred runs listed, a report to be mailed.

    .venv/bin/python benchmarks/pages.py [--json]          about a minute; needs chromium, no server and no model

The runs are made up: records are drawn and summarised as a runner does, so what is measured is reading, comparing and
drawing. Times run from the request for the page to its last chart, in a browser, on a dashboard that has shown its
start page but has read none of these runs yet.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bench import NoBrowser, browser
from benchmarks.measuring import own_home
from benchmarks.table import Row, main, say
from lab.home import home
from lab.measure.records import REQUESTS
from lab.run import results, runner
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.run.sides import Name
from lab.show.report import report
from lab.show.report_html import to_html
from lab.spec import Batching
from lab.stream import StreamWriter
from tests.browser.conftest import serving

RECORDS, RATE_RPS = 100_000, 2000.0
DELAYS_US = (None, 0, 500, 1000, 2000, 5000)
"""Of the six runs: batching off, then on with these queue delays."""
LISTED = 200
REPEATS = 3
DRAWN = """(charts) => !document.querySelector("[data-testid=stStatusWidget], [data-testid=stSkeleton]")
  && document.querySelectorAll(".lab-plot .main-svg").length >= charts
  && [...document.querySelectorAll(".lab-plot")].every((plot) => plot.querySelector(".main-svg"))"""


def measure() -> list[Row]:
    with own_home():
        say("making up six runs of 100,000 records")
        names = [large(delay, seed) for seed, delay in enumerate(DELAYS_US)]
        rows = [*compared(names), reported(names)]
        say(f"copying them into {LISTED} runs")
        copied(names[0])
        return [*rows, *listed()]


def large(delay_us: int | None, seed: int) -> str:
    """A finished run of RECORDS requests at RATE_RPS whose latency grows with the queue delay; its id."""
    rng = np.random.default_rng(seed)
    batching = None if delay_us is None else Batching(max_batch_size=32, max_queue_delay_us=delay_us)
    seconds = RECORDS / RATE_RPS
    model = {"name": "digits", "batching": batching and batching.model_dump(mode="json")}
    arrival = {"kind": "poisson", "rate_rps": RATE_RPS}
    experiment = single(model, {"arrival": arrival, "duration_s": seconds + 1, "warmup_s": 1.0}, [])
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    stamps = {"start_ns": 0, "measured_from_ns": 10**9, "end_ns": int((seconds + 1) * 10**9)}
    block = {"block": 0, "role": "cell", "cell": 0, "repeat": 0, "planned": RECORDS}
    served = experiment.model.model_dump(mode="json")
    folder.event("block_start", **block, **stamps, model=served, workload=experiment.workload.model_dump(mode="json"))
    folder.event("block_end", block=0, planned=RECORDS, end_ns=stamps["end_ns"])
    due = np.sort(rng.integers(stamps["measured_from_ns"], stamps["end_ns"], RECORDS))
    sent = due + rng.integers(10_000, 200_000, RECORDS)
    done = sent + rng.gamma(4, 1e6, RECORDS).astype(np.int64) + (delay_us or 0) * 500
    columns = [np.zeros(RECORDS, np.int32), np.arange(RECORDS), due, sent, done, np.zeros(RECORDS, np.uint8)]
    arrays = [pa.array(column) for column in columns]
    arrays += [pa.nulls(RECORDS, field.type) for field in list(REQUESTS)[len(arrays) :]]
    table = pa.Table.from_arrays(arrays, schema=REQUESTS)
    with StreamWriter(folder.path / "requests-0.arrows", REQUESTS) as writer:
        for start in range(0, RECORDS, 1000):
            writer.write(table.slice(start, 1000))
    folder.write_summary(results.compute(folder, state="done"))
    folder.set_status("done")
    folder.close()
    return folder.run_id


def compared(names: Sequence[str]) -> list[Row]:
    """Compare as its link opens it, on a dashboard that has not read the runs, and once more on the same one."""
    link = f"compare?base={names[0]}&{'&'.join(f'run={name}' for name in names[1:])}"
    first, again = [], []
    for n in range(REPEATS):
        say(f"opening Compare, {n + 1} of {REPEATS}")
        times = opened([(link, 3), (link, 3)])
        if isinstance(times, str):
            return [Row("Compare with 6 runs of 100,000 records", None, "s", "<= 2", 0, times)]
        first.append(times[0])
        again.append(times[1])
    return [
        Row("Compare with 6 runs of 100,000 records, opened", statistics.median(first), "s", "<= 2", REPEATS),
        Row("the same, opened again", statistics.median(again), "s", "<= 2", REPEATS),
    ]


def reported(names: Sequence[str]) -> Row:
    say("writing the report of the six")
    size = len(to_html(report([Name(name) for name in names])).encode())
    return Row("report of 6 runs of 100,000 records, one HTML file", size / 1e6, "MB", "<= 5", 1)


def copied(run_id: str) -> None:
    """LISTED runs in all: copies of one without its records, each with an id of its own."""
    of = RunFolder.open(run_id).path
    for n in range(LISTED - len(DELAYS_US)):
        place = of.parent / f"20261101-{n:06d}-load-copy"
        shutil.copytree(of, place, ignore=shutil.ignore_patterns("*.arrows"))
        for file in ("run.json", "summary.json"):
            written = json.loads((place / file).read_text())
            (place / file).write_text(json.dumps({**written, "run": place.name}))


def listed() -> list[Row]:
    rows = []
    for page, charts in (("runs", 0), ("compare", 0)):
        say(f"opening {page} with {LISTED} runs")
        times = [opened([(page, charts)]) for _ in range(REPEATS)]
        told = next((found for found in times if isinstance(found, str)), "")
        seconds = None if told else statistics.median(found[0] for found in times if not isinstance(found, str))
        name = {"runs": f"{LISTED} runs listed on Runs", "compare": f"Compare opened among {LISTED} runs"}[page]
        rows.append(Row(name, seconds, "s", "<= 2", 0 if told else REPEATS, told))
    return rows


def opened(links: Sequence[tuple[str, int]]) -> list[float] | str:
    """Seconds until each link (with at least so many charts) is drawn, one after the other on one fresh dashboard; why
    not, where there is no browser."""
    try:
        with serving(home()) as dashboard, browser() as context:
            page: Any = context.new_page()  # type: ignore[attr-defined]
            page.goto(dashboard.page())
            drawn(page, 0)
            times = []
            for link, charts in links:
                page.goto("about:blank")
                began = time.perf_counter()
                page.goto(dashboard.page(link))
                drawn(page, charts)
                times.append(time.perf_counter() - began)
            return times
    except NoBrowser as error:
        return str(error)


def drawn(page: Any, charts: int) -> None:
    page.get_by_role("heading", level=1).wait_for(timeout=60_000)
    page.wait_for_function(DRAWN, arg=charts, timeout=60_000)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], measure))
