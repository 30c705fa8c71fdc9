"""A settled experiment becomes a run, which these options describe and which is told when it is over."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lab.commands.run_document import add_price, tell
from lab.commands.terminal import INTERRUPTED, add_json, say
from lab.errors import InputError, LabError

if TYPE_CHECKING:
    from lab.run.folder import RunFolder
    from lab.run.runner import Stop, Way
    from lab.spec import Experiment


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    add_json(parser)
    parser.add_argument("--run-id", help=argparse.SUPPRESS)
    parser.add_argument("--mlflow", action="store_true", help="write it into MLflow once it is over, on the side")
    add_price(parser)


def execute(
    experiment: Experiment,
    options: argparse.Namespace,
    *,
    quick: bool,
    url: str | None = None,
    assumed: Sequence[str] = (),
) -> int:
    """Runs it in this process and prints what came out, also of a run that failed; the exit status. `assumed`: what its
    figures hold for alone, in sentences that are kept with them."""
    from lab.run import devices, results, runner
    from lab.run.prices import find

    experiment, missing = (experiment, []) if url is not None else devices.without_missing(experiment)
    if options.price is not None:
        find(options.price)  # before there is a run that cannot be priced
    bet = getattr(options, "bet", None)
    made = {"missing": missing, "bet": None if bet is None else dataclasses.asdict(bet)}
    folder, stop, report = begin(experiment, experiment.id, options, quick=quick, url=url, assumed=assumed, **made)
    failure: LabError | None = None
    try:
        runner.run(experiment, folder, stop=stop, report=report, url=url, way=_way(experiment))
    except LabError as error:
        failure = error
    if options.mlflow:
        from lab.track import mlflow_export

        mlflow_export.start(folder.run_id)
    document, declared = results.document(folder), folder.document["experiment"]
    tell(document, declared, options)
    if bet is not None:
        from lab.show import bets

        say(bets.score(bet, *bets.judged(document, declared)).text)
    if failure is not None:
        raise failure
    return INTERRUPTED if stop() else 0


def _way(experiment: Experiment) -> Way | None:
    """How it is measured, where that is not block by block on a bench."""
    if experiment.rollout is None:
        return None
    from lab.track.rehearsal.rehearse import measure

    return measure


def begin(
    experiment: Experiment,
    name: str,
    options: argparse.Namespace,
    *,
    url: str | None,
    assumed: Sequence[str],
    quick: bool = False,
    **made: Any,
) -> tuple[RunFolder, Stop, Callable[[str], None]]:
    """A checked experiment's run folder, called after `name`, the stop that signals ask for, and where a line of
    progress goes. `made`: what else runner.create takes."""
    from lab.run import preflight, runner
    from lab.run.folder import new_run_id

    preflight.check(experiment, url)
    run_id = new_run_id(name) if options.run_id is None else free(options.run_id)
    stop = runner.Stop().on_signals()
    folder = runner.create(experiment, run_id, quick=quick, settings=options.settings, url=url, **made)
    for note in assumed:
        folder.event("assumed", text=note)
        say(f"note: {note}")
    say(f"run {folder.run_id}")

    def report(line: str) -> None:
        folder.log(line)
        say(line)

    return folder, stop, report


def free(run_id: str) -> str:
    """The run id that was asked for, if a run can be made under it."""
    from lab.home import home
    from lab.run.folder import RUN_ID

    if not RUN_ID.fullmatch(run_id):
        raise InputError(f"--run-id {run_id!r}: allowed are 8 to 60 lower-case letters, digits and dashes")
    if (home() / "runs" / run_id).exists():
        raise InputError(f"--run-id {run_id!r}: that run exists already; watch it, or start one under another id")
    return run_id
