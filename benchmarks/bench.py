"""What "the bench runs" must show: quick to start and to toggle, quick on a million records, no observer effect.

    .venv/bin/python benchmarks/bench.py [--json]          about 8 minutes; needs chromium for the observer rows

Ratios are made inside one run, alternating A B B A; milliseconds are of this machine. The load generator's speed
beside perf_analyzer is in benchmarks/load.py.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.measuring import own_home
from benchmarks.table import Row, main, say
from lab.home import home
from lab.measure.records import REQUESTS, Requests, Window
from lab.measure.summary import summarize
from lab.run import results, runner
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.serve import installation, weights
from lab.serve.triton import Server
from lab.spec import Batching, ModelSpec, Slo
from lab.stream import StreamWriter

PROJECT = Path(__file__).parents[1]
DIGITS = ModelSpec(name="digits")
MILLION = 1_000_000
PAIRS = 4
OPENING_S = 12
"""A page takes seconds of a core to load, once; what is compared is a page that stands open, so it loads in the
warm-up."""
OBSERVED = [
    ("digits", 300.0, ['model.batching={"max_batch_size": 32}']),
    ("sleeper", 60.0, ["model.instances=4", "workload.sleep_s=[0.05]"]),
]
"""Watched models: (name, rate, settings)."""


def measure() -> list[Row]:
    installation.fetch()
    weights.prepare(DIGITS)
    with own_home():
        rows = [*server_rows(), ready_row(), *million_rows()]
        return [*rows, *observer_rows()]


def server_rows() -> list[Row]:
    say("starting and toggling Triton")
    starts, toggles = [], []
    for _ in range(3):
        began = time.perf_counter()
        with Server.start(repository=home() / "repository", log=home() / "triton.log") as server:
            starts.append(time.perf_counter() - began)
            server.load(DIGITS)
            for batching in (Batching(max_batch_size=32), None, Batching(max_batch_size=32, max_queue_delay_us=2000)):
                toggles.append(server.load(DIGITS.model_copy(update={"batching": batching})))
    return [
        Row("Triton start to live", statistics.median(starts), "s", "<= 5", len(starts)),
        Row("toggle batching of digits (write, reload, ready)", statistics.median(toggles), "s", "<= 2", len(toggles)),
    ]


@contextmanager
def dashboard() -> Iterator[tuple[str, float]]:
    """(URL, seconds until the page answers and the model serves) of `lab up` in this LAB_HOME."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "lab", "up", "--port", "0"], cwd=PROJECT, stderr=subprocess.PIPE, text=True
    )
    try:
        url = ""
        for line in process.stderr or ():
            if "ready in" in line:
                url = line.rsplit(" ", 1)[1].strip()
                break
        with urllib.request.urlopen(url, timeout=10) as page:
            page.read()
        server = Server.attach()
        if server is None or not server.state("digits").ready:
            raise SystemExit("the dashboard came up without its model")
        yield url, time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(30)


def ready_row() -> Row:
    say("starting the dashboard")
    times = []
    for _ in range(3):
        with dashboard() as (_, seconds):
            times.append(seconds)
    return Row("make lab to a served page with Triton ready", statistics.median(times), "s", "<= 15", len(times))


def million_rows() -> list[Row]:
    say("summarising a million records")
    folder = million_folder()
    requests = Requests.from_table(folder.read("requests"))
    window = Window(0, 10**9, 1001 * 10**9)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        summary = summarize(requests, window=window, planned=MILLION, slo=Slo(latency_s=0.02))
        times.append(time.perf_counter() - began)
        if summary.ok != MILLION:
            raise SystemExit(f"the summary counts {summary.ok} successes of {MILLION}")
    return [
        Row("1,000,000 records summarised", statistics.median(times), "s", "<= 1", 3),
        page_row(folder),
    ]


def million_folder() -> RunFolder:
    """A finished run of a million requests over 1,000 s, each about 5 ms."""
    rng = np.random.default_rng(0)
    due = np.sort(rng.integers(0, 1000 * 10**9, MILLION)) + 10**9
    sent = due + rng.integers(10_000, 200_000, MILLION)
    done = sent + (rng.gamma(4, 1.25e6, MILLION)).astype(np.int64)
    experiment = single({"name": "digits"}, {"arrival": {"kind": "poisson", "rate_rps": 1000}, "duration_s": 1001}, [])
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    block = {"block": 0, "role": "cell", "cell": 0, "repeat": 0, "planned": MILLION}
    stamps = {"start_ns": 0, "measured_from_ns": 10**9, "end_ns": 1001 * 10**9}
    model = experiment.model.model_dump(mode="json")
    workload = experiment.workload.model_dump(mode="json")
    folder.event("block_start", **block, **stamps, model=model, workload=workload)
    folder.event("block_end", block=0, planned=MILLION, end_ns=stamps["end_ns"])
    columns = [np.zeros(MILLION, np.int32), np.arange(MILLION), due, sent, done, np.zeros(MILLION, np.uint8)]
    arrays = [pa.array(column) for column in columns]
    arrays += [pa.nulls(MILLION, field.type) for field in list(REQUESTS)[len(arrays) :]]
    writer = StreamWriter(folder.path / "requests-0.arrows", REQUESTS)
    table = pa.Table.from_arrays(arrays, schema=REQUESTS)
    for start in range(0, MILLION, 1000):
        writer.write(table.slice(start, 1000))
    writer.close()
    folder.write_summary(results.compute(folder, state="done"))
    folder.set_status("done")
    return folder


def page_row(folder: RunFolder) -> Row:
    name = "page of a run of 1,000,000 records opened"
    try:
        with dashboard() as (url, _), browser() as context:
            times = []
            for _ in range(3):
                page = context.new_page()
                began = time.perf_counter()
                page.goto(f"{url}/live?run={folder.run_id}")
                page.get_by_test_id("stFullScreenFrame").or_(page.locator(".lab-panels canvas")).first.wait_for(
                    timeout=60_000
                )
                page.wait_for_function(
                    "document.querySelectorAll('.stSkeleton, [data-testid=stSkeleton]').length === 0"
                )
                times.append(time.perf_counter() - began)
                page.close()
        return Row(name, statistics.median(times), "s", "<= 3", 3)
    except NoBrowser as error:
        return Row(name, None, "s", "<= 3", 0, str(error))


class NoBrowser(Exception):
    pass


@contextmanager
def browser() -> Iterator[object]:
    if shutil.which("chromium") is None:
        raise NoBrowser("no chromium on PATH")
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        try:
            yield chromium.new_context()
        finally:
            chromium.close()


def observer_rows() -> list[Row]:
    """The same load with nobody watching and with the live page open, in alternating order. Two models: one that
    computes, whose short tail feels every neighbour, and one that only waits."""
    rows = []
    try:
        with dashboard() as (url, _), browser() as context:
            for model, rate_rps, settings in OBSERVED:
                rows += observer_pairs(url, context, model, rate_rps, settings)
    except NoBrowser as error:
        rows.append(Row("live page open against headless", None, "×", None, 0, str(error)))
    return rows


def observer_pairs(url: str, context: object, model: str, rate_rps: float, settings: list[str]) -> list[Row]:
    throughput, p99 = [], []
    for pair in range(PAIRS):
        order = (False, True) if pair % 2 == 0 else (True, False)
        found = {watched: observed(url, context, model, rate_rps, settings, watched=watched) for watched in order}
        throughput.append(found[True]["throughput_rps"] / found[False]["throughput_rps"])
        p99.append(found[True]["latency_p99_s"] / found[False]["latency_p99_s"])
        say(f"{model}, pair {pair + 1}: throughput × {throughput[-1]:.3f}, p99 × {p99[-1]:.3f}")
    return [
        Row(
            f"{model}: throughput off by, live page ÷ headless",
            abs(statistics.median(throughput) - 1),
            "",
            "<= 0.02",
            PAIRS,
        ),
        Row(f"{model}: p99 off by, live page ÷ headless", abs(statistics.median(p99) - 1), "", "<= 0.05", PAIRS),
    ]


def observed(
    url: str, context: object, model: str, rate_rps: float, settings: list[str], *, watched: bool
) -> dict[str, float]:
    run_id = new_run_id("load")
    page = None
    if watched:
        page = context.new_page()
    command = [sys.executable, "-m", "lab", "load", "--model", model, "--rate", str(rate_rps), "--duration", "22"]
    command += ["--warmup", str(OPENING_S), "--json", "--run-id", run_id, *(f"--set={setting}" for setting in settings)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if page is not None:
        deadline = time.monotonic() + 10
        while not (home() / "runs" / run_id).is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        page.goto(f"{url}/live?run={run_id}")
        page.locator(".lab-panels canvas").first.wait_for(timeout=OPENING_S * 1000)
    out, _ = process.communicate(timeout=120)
    if page is not None:
        page.close()
    return dict(json.loads(out)["summary"])


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], measure))
