"""Who slows whom: each model of a fleet asked lightly, with the others idle and then with each of them at work.

Both streams of a pair are one Poisson stream whose requests are addressed by lot, which makes two independent ones.
Saturation is found first, so that "lightly" and "at work" mean the same for a small model and a large one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

from lab.errors import RunError
from lab.load.generator import Job
from lab.measure.records import Window
from lab.run.bench import TICK_S
from lab.run.fleet_bench import FleetBench
from lab.spec import Experiment, Fleet, ModelSpec, set_paths

SATURATION_S, WARMUP_S = 1.5, 0.5
VICTIM_LOAD, DISTURBER_LOAD = 0.2, 0.6
"""Shares of its own saturation at which a model is asked while it is watched, and while it disturbs."""
PAIR_BLOCKS = 1_000_000
"""Numbers of the blocks of pairs begin here, away from those of the cells."""
MOST_KINDS = 4
MOST_PAIR_S = 120.0
"""A pair is not stretched beyond this for the sake of `Fleet.pair_answers`."""

Report = Callable[[str], None]


def pairs(
    experiment: Experiment, bench: FleetBench, filled: list[str], stopped: Callable[[], bool], report: Report
) -> None:
    """Each model asked lightly, with the others idle and then with each at work: events "pair"."""
    gate = bench.gate
    assert experiment.fleet is not None  # noqa: S101  it is a fleet's run
    kinds = 1 + len(experiment.fleet.others)
    victims = filled[: min(kinds, MOST_KINDS)]
    twins = dict(zip(victims, filled[kinds:], strict=False))  # the next copy of the same model
    names = [*victims, *twins.values()]
    with ExitStack() as held:
        for name in names:  # they stay while this goes on
            gate.acquire(name)
            held.callback(gate.release, name)
        _matrix(experiment, bench, victims, twins, stopped, report)


def _matrix(
    experiment: Experiment,
    bench: FleetBench,
    victims: list[str],
    twins: dict[str, str],
    stopped: Callable[[], bool],
    report: Report,
) -> None:
    fleet, gate = experiment.fleet, bench.gate
    assert fleet is not None  # noqa: S101  it is a fleet's run
    spec = gate.shelf.specs
    numbers = iter(range(PAIR_BLOCKS, 2 * PAIR_BLOCKS))
    saturation: dict[str, float] = {}
    for name in victims:
        saturation[name] = _saturation(experiment, bench, spec[name], next(numbers), stopped)
    for victim in victims:
        others = {name: saturation[name] for name in victims if name != victim}
        if victim in twins:
            others[twins[victim]] = saturation[victim]
        for disturber in (None, *others):
            if stopped():
                return
            report(f"{victim} at a light load, {f'{disturber} at work' if disturber else 'the others idle'}")
            rate = VICTIM_LOAD * saturation[victim]
            mix = [(spec[victim], rate)]
            if disturber is not None:
                mix.append((spec[disturber], DISTURBER_LOAD * others[disturber]))
            seconds = duration_s(fleet, rate)
            workload = set_paths(
                experiment.workload,
                [
                    ("arrival", {"kind": "poisson", "rate_rps": sum(share for _, share in mix)}),
                    ("duration_s", seconds),
                    ("warmup_s", min(WARMUP_S, seconds / 4)),
                ],
            )
            number = next(numbers)
            window = _run(bench, Job(number, gate.url, spec[victim], workload, None, tuple(mix)), stopped)
            bench.folder.event(
                "pair",
                victim=victim,
                disturber=disturber,
                block=number,
                victim_rps=rate,
                disturber_rps=mix[1][1] if disturber else None,
                **asdict(window),
            )


def duration_s(fleet: Fleet, rate_rps: float) -> float:
    """Of a pair whose watched model is asked so often. Of a Poisson stream three standard deviations more are waited
    for than are wanted, so that chance does not leave one pair of many below a percentile's least count."""
    wanted = fleet.pair_answers + 3 * math.sqrt(fleet.pair_answers)
    return max(fleet.pair_s, min(WARMUP_S + wanted / rate_rps, MOST_PAIR_S)) if fleet.pair_answers else fleet.pair_s


def _saturation(
    experiment: Experiment, bench: FleetBench, spec: ModelSpec, number: int, stopped: Callable[[], bool]
) -> float:
    workload = set_paths(
        experiment.workload,
        [
            ("arrival", {"kind": "closed", "concurrency": 8}),
            ("duration_s", SATURATION_S),
            ("warmup_s", WARMUP_S),
        ],
    )
    window = _run(bench, Job(number, bench.gate.url, spec, workload, None, ((spec, 1.0),)), stopped)
    table = bench.folder.read("requests")
    rows = table.filter(
        (table["block"].to_numpy() == number) & (table["done_ns"].to_numpy() >= window.measured_from_ns)
    )
    rate: float = rows.num_rows / window.seconds
    if not rate and not stopped():
        raise RunError(f"{spec.name} answered no request in {SATURATION_S:g} s, so no load can be a fraction of that")
    return rate


def _run(bench: FleetBench, job: Job, stop: Callable[[], bool]) -> Window:
    window = bench.generator.begin(job)
    while not bench.generator.poll().done:
        if stop():
            bench.generator.cancel()
        time.sleep(TICK_S)
    return window
