"""Which answers are good: the limits of an objective, as `load` and `search` take them."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.spec import Slo

PERCENTILE = 0.99


def add_objective(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("objective: an answer is good within every limit that is given")
    group.add_argument("--latency", type=float, metavar="MS", help="the whole answer, from its scheduled arrival")
    group.add_argument("--ttft", type=float, metavar="MS", help="the first token, from its scheduled arrival")
    group.add_argument("--itl", type=float, metavar="MS", help="mean time between tokens")
    group.add_argument("--percentile", type=float, metavar="P", help=f"of all offered requests; default {PERCENTILE:g}")


def objective(options: argparse.Namespace) -> Slo | None:
    """None where no limit is given. InputError for one that is none, and for a percentile of nothing."""
    from lab.errors import InputError
    from lab.spec import Slo, parse

    for name in ("latency", "ttft", "itl"):
        if (limit := getattr(options, name)) is not None and not 0 < limit < math.inf:
            raise InputError(f"--{name} {limit:g}: allowed: milliseconds above 0")
    if options.percentile is not None and not 0 < options.percentile < 1:
        raise InputError(f"--percentile {options.percentile:g}: allowed: above 0 and below 1, such as {PERCENTILE:g}")
    limits = {"latency_s": options.latency, "ttft_s": options.ttft, "itl_s": options.itl}
    slo = {name: value / 1e3 for name, value in limits.items() if value is not None}
    if not slo and options.percentile is not None:
        allowed = "with --latency, --ttft or --itl"
        raise InputError(f"--percentile {options.percentile:g} without a limit; allowed: {allowed}")
    if not slo:
        return None
    return parse(Slo, {**slo, "percentile": PERCENTILE if options.percentile is None else options.percentile})
