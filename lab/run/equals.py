"""Equals measured against each other (an A/A run), from which the machine's noise passport is taken.

One setting is measured again and again, the model loaded anew before each repeat, under a closed loop and at half of
what that serves; what the figures vary by is this machine's noise (lab/measure/noise.py).
"""

from __future__ import annotations

from datetime import UTC, datetime

from lab.errors import RunError
from lab.measure import noise as pure
from lab.measure.compare import Effect, compare
from lab.measure.noise import Noise
from lab.run import passport, results
from lab.run.bench import Bench
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.run.plan import Block
from lab.run.runner import Stop, create
from lab.run.serving import managed
from lab.run.turn import Report, turn
from lab.spec import Experiment, Poisson, set_paths

MODEL = {"name": "digits", "batching": {"max_batch_size": 32}}
USERS, LOAD = 8, 0.5
REPEATS, BLOCK_S, WARMUP_S = 8, 6.0, 1.0
QUICK_REPEATS, QUICK_BLOCK_S = 4, 3.0


def take(report: Report, *, quick: bool = False, stop: Stop | None = None) -> tuple[Noise, list[Effect]]:
    """Measure and keep it: three minutes, or one if `quick`. With it, what its own first half says against its second:
    an A/A comparison that should find nothing. LabError when the server cannot be had."""
    stop = stop or Stop()
    repeats, block_s = (QUICK_REPEATS, QUICK_BLOCK_S) if quick else (REPEATS, BLOCK_S)
    asked = {"arrival": {"kind": "closed", "concurrency": USERS}, "duration_s": block_s, "warmup_s": WARMUP_S}
    experiment = single(MODEL, asked, name="passport")
    folder = create(experiment, new_run_id("passport"), quick=quick, settings=[], url=None)
    with (
        turn(folder, "A/A", stop, report),
        managed(folder) as server,
        Bench(folder, server, workers=1, cells=1, stopped=stop) as bench,
    ):
        _measure(folder, bench, experiment, repeats, report, stop)
    if stop():
        raise RunError("stopped: an unfinished passport is not kept")
    found = _of_run(folder, experiment, block_s)
    passport.keep(found)
    return found, halves(folder, experiment)


def _measure(folder: RunFolder, bench: Bench, experiment: Experiment, repeats: int, report: Report, stop: Stop) -> None:
    """Blocks in turn, closed and open, each pair on a model that was loaded anew."""
    rate: float | None = None
    workload = experiment.workload
    for repeat in range(repeats):
        model = experiment.model
        bench.anew(model)
        for kind in ("closed", "open"):
            asked = workload
            if kind == "open":
                rate = rate or _half(folder, experiment)
                asked = workload.model_copy(update={"arrival": Poisson(rate_rps=rate)})
            asked = set_paths(asked, [("seed", 1000 * repeat)])
            number = 2 * repeat + (kind == "open")
            report(f"repeat {repeat + 1} of {repeats}, {kind} loop")
            folder.set_status(
                state="running", phase=f"block {number + 1} of {2 * repeats}", progress=number / repeats / 2
            )
            bench.block(
                number,
                Block("cell", 0, repeat, model, asked),
                on_tick=lambda phase, progress: None,
            )
            if stop():
                return


def _half(folder: RunFolder, experiment: Experiment) -> float:
    """Half of what the first closed loop served."""
    served = results.block_results(folder, experiment)[0].summary.throughput_rps
    if not served:
        raise RunError("the closed loop was not answered, so there is no noise to measure")
    return LOAD * served


def _of_run(folder: RunFolder, experiment: Experiment, block_s: float) -> Noise:
    blocks = results.block_results(folder, experiment)
    closed = [b.summary for b in blocks[0::2]]
    open_loop = [b.summary for b in blocks[1::2]]
    return Noise(
        fingerprint=passport.fingerprint(folder.document["environment"]),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        model=experiment.model.name,
        block_s=block_s - WARMUP_S,
        floors=pure.floors(closed, open_loop),
    )


def halves(folder: RunFolder, experiment: Experiment) -> list[Effect]:
    """The even repeats against the odd ones, in the figures that every comparison starts with."""
    blocks = results.block_results(folder, experiment)
    found = []
    for metric, chosen in (
        ("throughput_rps", blocks[0::2]),
        ("latency_p50_s", blocks[1::2]),
        ("latency_p99_s", blocks[1::2]),
    ):
        a, b = ([(x.requests, x.window) for x in side] for side in (chosen[0::2], chosen[1::2]))
        found.append(compare(a, b, metric, experiment.slo))
    return found
