"""`lab sweep`: many settings of a few knobs under one load; which are worth having."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from lab.commands.given_options import add_given_options, wishes
from lab.commands.terminal import INTERRUPTED, add_json, print_json
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", help="of a server that runs already: there only batching can be a knob of the model")
    parser.add_argument(
        "--knob", action="append", default=[], metavar="PATH=[LEVEL,…]", help="such as model.instances=[1,2]"
    )
    rate = parser.add_mutually_exclusive_group(required=True)
    rate.add_argument("--rate", type=float, metavar="RPS", help="open loop: Poisson arrivals a second")
    rate.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    parser.add_argument("--latency", type=float, default=100.0, metavar="MS", help="objective; default 100")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured for each setting; default 6")
    parser.add_argument("--minutes", type=float, default=5.0, help="no longer than that in all; default 5")
    parser.add_argument(
        "--guided",
        action=argparse.BooleanOptionalAction,
        help="Optuna chooses the next setting; default from three knobs on",
    )
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    parser.add_argument("--run-id", help=argparse.SUPPRESS)
    add_given_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.commands.execution import begin
    from lab.run import given, sweep
    from lab.run.catalogue import single
    from lab.spec import Slo, parse_setting, set_paths

    for knob in options.knob:
        if "=" not in knob:
            raise InputError(f"--knob {knob!r}: allowed is PATH=[LEVEL,LEVEL…], such as model.instances=[1,2]")
    knobs = dict(parse_setting(knob) for knob in options.knob)
    for path, levels in knobs.items():
        if not isinstance(levels, list) or len(levels) < 2:
            raise InputError(f"--knob {path}: allowed is a list of two levels or more, such as {path}=[1,2]")
    if not knobs:
        raise InputError("no --knob is given; allowed: one or more, such as --knob model.instances=[1,2]")
    plan = given.Plan({"name": options.model}, {}, None, ())
    if options.url is not None:
        plan = given.of_url(options.url, options.model, wishes(options))
    arrival = {"kind": "closed", "concurrency": options.concurrency}
    if options.rate is not None:
        arrival = {"kind": "poisson", "rate_rps": options.rate}
    asked = {"arrival": arrival, "duration_s": options.seconds * 1.2, "warmup_s": options.seconds * 0.2}
    experiment = single(plan.model, asked | plan.workload, options.settings, name="sweep")
    slo = Slo(latency_s=options.latency / 1e3)
    experiment = set_paths(experiment, [("slo", slo), ("factors", {p: tuple(v) for p, v in knobs.items()})])
    sweep.check(experiment, options.minutes)
    folder, stop, report = begin(experiment, "sweep", options, url=options.url, assumed=plan.notes)
    guided = len(knobs) > 2 if options.guided is None else options.guided
    found = sweep.run(
        experiment, folder, guided=guided, minutes=options.minutes, stop=stop, report=report, url=options.url
    )
    if options.json:
        print_json({"run": folder.run_id, **found})
    else:
        print("\n".join([*lines(found), "", found["text"]]))
    return INTERRUPTED if stop() else 0


def lines(found: Mapping[str, Any]) -> list[str]:
    """The points as a table, the frontier marked."""
    from lab.measure.words import format_metric, level_label, metric_label
    from lab.run.columns import aligned

    names = list(found["better"])
    rows = [["", "setting", *(metric_label(name) for name in names), "objective", ""]]
    for point in found["points"]:
        label = ", ".join(level_label(path, level) for path, level in point["factors"].items())
        figures = [format_metric(name, point["figures"][name]) for name in names]
        met = {True: "met", False: "missed", None: "n/a"}[point["met"]]
        rows.append(["*" if point["frontier"] else "", label, *figures, met, point["why"] or ""])
    return aligned(rows)
