"""`lab up`: the dashboard, and a Triton that lives as long as it does."""

from __future__ import annotations

import argparse

from lab.commands.terminal import say
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8501)


def run(options: argparse.Namespace) -> int:
    from lab.run.dashboard import run_dashboard

    if not 0 <= options.port <= 65_535:
        raise InputError(f"port {options.port}: allowed are 1 to 65535, or 0 for any that is free")
    return run_dashboard(options.port, say)
