"""Runs an experiment: every cell, every repeat, into one run folder.

    queued → starting → (saturation) → warm-up → running → draining → … → done
                                                                        | failed | cancelled

The process that calls `run` owns the run: its pid and heartbeat stand in status.json, so a reader can tell a run that
goes on from one whose process is gone ("interrupted"). Stop and Ctrl-C end the run between two ticks, or end the
process that prepares or evaluates a format (lab/stopping.py), and keep what was measured.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from lab import stopping
from lab.errors import LabError, RunError
from lab.load.generator import Progress
from lab.measure.formats import change_answers, format_label
from lab.measure.words import level_label
from lab.run import engines, fleet, formats, gauge, lora, quality, results
from lab.run.bench import Bench
from lab.run.control import Inbox
from lab.run.environment import environment, lab_version
from lab.run.equality import Answer, compare_answers, in_fp32
from lab.run.folder import RunFolder
from lab.run.lock import MeasureLock
from lab.run.plan import Block, any_fraction, cell_blocks, level_blocks, load_label, with_rate
from lab.run.serving import serving
from lab.run.starts import measure_of
from lab.run.status import SUMMING
from lab.spec import Experiment, plain

Report = Callable[[str], None]
Way = Callable[[Experiment, RunFolder, Callable[[], bool], Report, Callable[[str, str, float], None]], bool]
"""What measures an experiment in another way than block by block on a bench; whether a page asked it to stop."""


class Stop:
    """Set by SIGINT or SIGTERM (or by hand); asked by the bench once a tick."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        return self._event.is_set()

    def set(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        self._event.set()

    def on_signals(self) -> Stop:
        """Let Ctrl-C and `kill` end the run in order. Only from the main thread."""
        signal.signal(signal.SIGINT, self.set)
        signal.signal(signal.SIGTERM, self.set)
        return self


def create(
    experiment: Experiment,
    run_id: str,
    *,
    quick: bool,
    settings: list[str],
    url: str | None,
    missing: Sequence[dict[str, Any]] = (),
    bet: dict[str, str | None] | None = None,
) -> RunFolder:
    """The run folder with everything that is known before anything runs. `missing`: levels that are left out because
    this machine lacks what they need (lab/run/devices.py); `bet`: what its user expects (lab/show/bets.py)."""
    return RunFolder.create(
        run_id,
        {
            "run": run_id,
            "experiment": experiment.model_dump(mode="json"),
            "cells": [cell.model_dump(mode="json") for cell in experiment.cells()],
            "quick": quick,
            "settings": settings,
            "url": url,
            "missing": list(missing),
            "environment": {**environment(), "lab": lab_version()},
            **({} if bet is None else {"bet": bet}),
        },
    )


def run(
    experiment: Experiment,
    folder: RunFolder,
    *,
    stop: Stop,
    report: Report,
    url: str | None = None,
    way: Way | None = None,
) -> None:
    """Measure `experiment` into `folder`. Ends in the state done, failed or cancelled, with summary.json written
    from whatever was measured; raises the LabError that made it fail. `way`: of an experiment with a rollout, whose
    gateway this layer does not know (lab/track/rehearsal)."""
    state, message = "failed", "the runner ended without saying why"
    try:
        with MeasureLock(folder.path.name) as lock:
            asked = _Asked(folder, stop)
            lock.acquire(_Waiting(folder, asked, report))
            with stopping.heeding(asked):
                _measure(experiment, folder, stop, report, url, way)
        state, message = ("cancelled", "stopped by the user") if stop() else ("done", "")
        if state == "done" and experiment.start is None and results.successes(folder) == 0:
            state, message = "failed", "no request succeeded"
            raise RunError(f"{message}: {results.most_common_failure(folder)}")
    except stopping.Stopped:
        measured = any(event["kind"] == "block_start" for event in folder.events())
        state, message = "cancelled", "stopped by the user" + ("" if measured else " before anything was measured")
    except (LabError, OSError) as error:
        state, message = "failed", str(error)
        raise
    finally:
        _finish(folder, state, message, report)


def _measure_its_way(experiment: Experiment, folder: RunFolder, stop: Stop, report: Report, way: Way) -> None:
    def tick(state: str, phase: str, progress: float) -> None:
        folder.set_status(state=state, phase=phase, progress=progress)

    if way(experiment, folder, stop, report, tick):
        stop.set()


def _measure(
    experiment: Experiment, folder: RunFolder, stop: Stop, report: Report, url: str | None, way: Way | None
) -> None:
    folder.set_status(state="starting", phase="starting", progress=0.0)
    report("starting the server" if url is None else f"asking the server at {url}")
    if experiment.fleet is not None:
        way = fleet.measure
    if engines.are_asked(experiment):
        way = engines.measure
    way = way or measure_of(experiment)
    if way is not None:
        _measure_its_way(experiment, folder, stop, report, way)
        return
    first_pass = level_blocks(experiment) if experiment.reference else []
    blocks = first_pass + cell_blocks(experiment)
    total_s = sum(block.workload.duration_s for block in blocks)
    done_s = 0.0
    with serving(url, folder) as server:
        if url is None:
            formats.prepare(folder, experiment, report)
            formats.evaluate(folder, experiment, report)
        version = server.version()
        folder.event("serving", triton=version, grpc_url=server.grpc_url, managed=server.managed is not None)
        workers = gauge.load_workers(experiment, folder, server, total_s, report)
        with Bench(folder, server, workers=workers, cells=len(experiment.cells()), stopped=stop) as bench:
            if url is None:
                lora.examine(bench, experiment, report)
            for neighbour in experiment.neighbours:
                bench.put(neighbour)
            alike = not change_answers(experiment)  # formats are compared by quality instead
            answers: list[list[Answer]] = []
            saturation_rps: float | None = None
            for index, planned in enumerate(blocks):
                if index == len(first_pass) and first_pass:
                    if any_fraction(blocks):
                        saturation_rps = results.baseline_saturation(folder, experiment)
                    baseline = experiment.judge.baseline if experiment.judge else None
                    if alike:
                        folder.event("answers", **_compared(bench, first_pass, answers, baseline))
                block = with_rate(planned, saturation_rps)
                phase = f"block {index + 1} of {len(blocks)}"
                report(f"{phase}: {describe(block, url)}")
                folder.set_status(
                    state="starting", phase=phase, progress=min(1.0, done_s / total_s if total_s else 1.0)
                )
                if alike and index < len(first_pass):
                    answers.append(bench.ask(block))

                def tick(phase: str, progress: Progress, start: float = done_s, index: int = index) -> None:
                    folder.set_status(
                        state=phase,
                        phase=f"block {index + 1} of {len(blocks)}",
                        progress=min(1.0, start / total_s if total_s else 1.0),
                    )

                bench.block(index, block, on_tick=tick)
                done_s += block.workload.duration_s
                if bench.stop_asked:
                    stop.set()
                if stop():
                    return


def _compared(bench: Bench, blocks: list[Block], answers: list[list[Answer]], baseline: Any) -> dict[str, Any]:
    """Whether all levels answer alike; texts that differ in the served precision are asked for again in fp32."""
    found = compare_answers(blocks, answers, baseline)
    exact = [in_fp32(block.model, found) for block in blocks]
    if exact[0] is None:
        return found
    again = [replace(block, model=model) for block, model in zip(blocks, exact, strict=True) if model]
    differing = max(level["differing"] for level in found["levels"])
    return {
        **compare_answers(again, [bench.ask(block) for block in again], baseline),
        "served": {"precision": found["precision"], "differing": differing},
    }


class _Asked:
    """Whether a stop was asked for, by a signal or by a page, while no bench reads the inbox."""

    def __init__(self, folder: RunFolder, stop: Stop) -> None:
        self._inbox, self._stop = Inbox(folder.path), stop

    def __call__(self) -> bool:
        if any("stop" in change for change in self._inbox.new()):
            self._stop.set()
        return self._stop()


class _Waiting:
    """What happens five times a second while another run measures: a heartbeat, and a look for a stop."""

    def __init__(self, folder: RunFolder, asked: _Asked, report: Report) -> None:
        self._folder, self._asked, self._report = folder, asked, report
        self._said = ""

    def __call__(self, place: int, holder: str) -> None:
        if self._asked():
            raise stopping.Stopped
        where = f"place {place} behind {holder}"
        self._folder.set_status(state="queued", phase=where, progress=0.0)
        if where != self._said:
            self._said = where
            self._report(f"waiting to measure: {where}")


def _finish(folder: RunFolder, state: str, message: str, report: Report) -> None:
    """Write the end down whatever happens: a summary that cannot be made must not leave a run without a state."""
    with suppress(LabError):  # a full disk
        folder.set_status("draining", phase=SUMMING)
    try:
        folder.write_summary(results.compute(folder, state=state, message=message))
    except (LabError, OSError) as error:
        report(f"the summary could not be written: {error}")
    finally:
        try:
            folder.set_status(state=state, phase=state, progress=1.0 if state == "done" else None, message=message)
        except LabError as error:
            report(f"the end of the run could not be written: {error}")
        folder.close()


def describe(block: Block, url: str | None = None) -> str:
    """One line for people: which model, which load. Of a language model at somebody's `url` only its name is known."""
    load = load_label(block.workload)
    what = "saturation of " if block.role == "saturation" else ""
    model, workload = block.model, block.workload
    generated = model.family == "llm"
    fields = ("batching",) if not generated else ("scheduler", "kv_cache") if url is None else ()
    how = [level_label(f"model.{field}", plain(getattr(model, field))) for field in fields]
    if model.family in quality.FAMILIES and (url is None or not generated):
        how.insert(0, format_label(model))
    if generated and workload.prompts is not None:
        how.append(f"prompts of {Path(workload.prompts).name}")
    if generated:
        lengths = ("output_tokens",) if workload.prompts is not None else ("prompt_tokens", "output_tokens")
        how += [level_label(f"workload.{field}", getattr(workload, field)) for field in lengths]
    return f"{what}{', '.join([workload.served_model or model.name, *how, load])}"
