"""What commands print: the result on stdout, as text or with --json as one document; all else on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))
