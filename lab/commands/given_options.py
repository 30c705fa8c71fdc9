"""What `call`, `load` and `search` may be told of a model on somebody else's server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.run.given import Wishes


def add_given_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a model that the lab does not know")
    group.add_argument(
        "--shape", action="append", default=[], type=_shape, metavar="INPUT:N,N", help="of dimensions that are open"
    )
    group.add_argument(
        "--range", action="append", default=[], type=_range, metavar="INPUT:LOW:HIGH", help="of values that are drawn"
    )
    group.add_argument("--data", metavar="FILE.json", help="values to send, as perf_analyzer has them")
    group.add_argument("--batch", type=int, default=1, help="items a request; default 1")
    group.add_argument("--with", action="append", default=[], dest="optional", metavar="INPUT", help="optional inputs")
    group.add_argument("--sequence-length", type=int, metavar="N", help="requests of a sequence")


def wishes(options: argparse.Namespace) -> Wishes:
    from lab.run.given import Wishes

    return Wishes(
        shapes=dict(options.shape),
        ranges=dict(options.range),
        data=options.data,
        batch=options.batch,
        optional=tuple(options.optional),
        sequence_length=options.sequence_length,
    )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition(":")
    try:
        found = tuple(int(n) for n in dims.split(","))
    except ValueError:
        found = ()
    if not name or not found or min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is INPUT:N,N such as input_ids:1,128")
    return name, found


def _range(text: str) -> tuple[str, tuple[float, float]]:
    parts = text.rsplit(":", 2)
    try:
        name, low, high = parts[0], float(parts[1]), float(parts[2])
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is INPUT:LOW:HIGH such as input_ids:0:30000") from None
    return name, (low, high)
