"""`lab mlflow`: MLflow's own pages."""

from __future__ import annotations

import argparse

from lab.commands.terminal import say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=5000)


def run(options: argparse.Namespace) -> int:
    from lab.track import mlflow_export

    mlflow_export.serve_ui(options.port, say)
