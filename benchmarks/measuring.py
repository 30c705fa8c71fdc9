"""What benchmarks measure with: a LAB_HOME of their own, blocks of load, and sides that take turns.

A ratio is the median of the ratios of neighbours in time, so that a machine that slows down meanwhile does not decide.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lab.home import home
from lab.load.generator import Generator, Job
from lab.measure.records import REQUESTS, Requests, Window
from lab.measure.summary import Summary, summarize
from lab.spec import Arrival, ClosedLoop, ModelSpec, Workload
from lab.stream import read_stream

PATIENCE_S = 60.0
"""How long after its planned end a block may go on."""

T = TypeVar("T")


@contextmanager
def own_home() -> Iterator[Path]:
    """A LAB_HOME of the benchmark's, with the real one's downloads, server and weights: nobody's runs are touched."""
    real = home()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("downloads", "triton", "models"):
            (real / name).mkdir(exist_ok=True)
            (Path(folder) / name).symlink_to(real / name)
        os.environ["LAB_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ["LAB_HOME"] = str(real)


class Blocks:
    """A load generator that writes into `folder`, asked for one block at a time."""

    def __init__(self, folder: Path, generator: Generator) -> None:
        self.folder, self.generator = folder, generator
        self._last = 0

    def run(
        self,
        url: str,
        model: ModelSpec,
        workload: Workload,
        tokenizer: Path | None = None,
        during: Callable[[Window], object] | None = None,
    ) -> tuple[Requests, Window]:
        """`during` is called once the load has begun."""
        self._last += 1
        window = self.generator.begin(Job(self._last, url, model, workload, tokenizer))
        if during is not None:
            during(window)
        self.generator.wait(timeout_s=workload.duration_s + PATIENCE_S)
        return Requests.from_table(read_stream(self.folder / "requests-*.arrows", REQUESTS), self._last), window

    def closed(
        self,
        url: str,
        model: ModelSpec,
        users: int,
        seconds: float,
        warmup_s: float,
        *,
        tokenizer: Path | None = None,
        **more: Any,
    ) -> Summary:
        """The figures of `seconds` of a closed loop, after its warm-up; each block has a seed of its own unless given.
        SystemExit when a request failed."""
        arrival: Arrival = ClosedLoop(concurrency=users)
        timed = {"duration_s": seconds + warmup_s, "warmup_s": warmup_s, "seed": self._last + 1}
        workload = Workload(arrival=arrival, **(timed | more))
        requests, window = self.run(url, model, workload, tokenizer)
        found = summarize(requests, window=window, planned=None, slo=None, closed_loop=True)
        if found.error_fraction != 0 or not found.throughput_rps or not found.latency_p50_s:
            raise SystemExit(
                f"{model.name} at {url}, {users} in flight: {[problem.text for problem in found.problems]}"
            )
        return found


def in_turns(sides: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """What each side gave, once a repeat, in alternating order: a b, b a, a b, …"""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in sides if repeat % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name]())
    return found


def median(values: Sequence[float]) -> float | None:
    """None of none."""
    return statistics.median(values) if values else None


def ratio(of: Sequence[float], base: Sequence[float]) -> float | None:
    """The median of the neighbours' ratios; None where a side was not measured."""
    return median([a / b for a, b in zip(of, base, strict=True)]) if of and base else None
