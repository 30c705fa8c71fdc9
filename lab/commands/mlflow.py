"""`lab mlflow`: MLflow's own pages, from an environment that MLflow has to itself."""

from __future__ import annotations

import argparse

from lab.commands.terminal import say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--install", action="store_true", help="only make the environment that MLflow lives in")


def run(options: argparse.Namespace) -> int:
    from lab.track import mlflow_export

    if not options.install:
        mlflow_export.serve_ui(options.port, say)
    mlflow_export.install(say)
    say("MLflow is here")
    return 0
