"""`lab export`: ended runs into MLflow, each with its report; exit status 1 where one could not be written."""

from __future__ import annotations

import argparse

from lab.commands.terminal import say
from lab.errors import FolderError, InputError, LabError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN")


def run(options: argparse.Namespace) -> int:
    from lab.run.folder import RunFolder
    from lab.run.sides import Name
    from lab.show.report import report
    from lab.show.report_html import to_html
    from lab.track import mlflow_export

    for run_id in options.runs:
        try:
            RunFolder.open(run_id)
        except FolderError as error:
            raise InputError(str(error)) from None
    status = 0
    for run_id in options.runs:
        try:
            found = mlflow_export.export(run_id, to_html(report([Name(run_id)])))
        except LabError as error:
            mlflow_export.note_failure(run_id, str(error))
            raise
        say(f"{run_id}: {found.text}{f' ({found.seconds:g} s)' if found.seconds is not None else ''}")
        status = max(status, int(found.state != "done"))
    return status
