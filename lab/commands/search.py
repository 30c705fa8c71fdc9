"""`lab search`: the highest rate that meets an objective."""

from __future__ import annotations

import argparse

from lab.commands.given_options import add_given_options, wishes
from lab.commands.load import batching
from lab.commands.objective_options import add_objective, objective
from lab.commands.terminal import INTERRUPTED, add_json, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--most", type=float, metavar="RPS", help="no higher rate; default 4 times a closed loop's")
    parser.add_argument("--minutes", type=float, default=5.0, help="no longer than that; default 5")
    parser.add_argument("--batching", type=batching, default=argparse.SUPPRESS, metavar="off|N[:US]")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    parser.add_argument("--run-id", help=argparse.SUPPRESS)
    add_objective(parser)
    add_given_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.commands.execution import begin
    from lab.errors import InputError
    from lab.run import given, results, search
    from lab.run.catalogue import single
    from lab.spec import set_path

    slo = objective(options)
    if slo is None:
        raise InputError("no objective is given; allowed: --latency MS, for a language model --ttft MS and --itl MS")
    plan = given.Plan({"name": options.model}, {}, None, ())
    if options.url is not None:
        plan = given.of_url(options.url, options.model, wishes(options))
    model = plan.model | ({"batching": options.batching} if "batching" in options else {})
    arrival = {"kind": "poisson", "rate_rps": 1.0}
    asked = {"arrival": arrival, "duration_s": 4.0, "warmup_s": 0.8, **plan.workload}
    experiment = single(model, asked, options.settings, name="search")
    experiment = set_path(experiment, "slo", slo)
    search.check(options.most, options.minutes)
    folder, stop, report = begin(experiment, "search", options, url=options.url, assumed=plan.notes)
    search.run(
        experiment,
        folder,
        most_rps=options.most,
        minutes=options.minutes,
        stop=stop,
        report=report,
        url=options.url,
    )
    document = results.document(folder)
    if options.json:
        print_json({"run": folder.run_id, **document["search"]})
    else:
        print(document["search"]["text"])
    return INTERRUPTED if stop() else 0
