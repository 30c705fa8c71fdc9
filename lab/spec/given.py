"""What a model that somebody else's server has is asked: its inputs as they are sent."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from lab.spec.value import Value

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
]  # fmt: skip
DATATYPES: tuple[str, ...] = get_args(Datatype)


class GivenInput(Value):
    """One input as it is sent. `shape` is whole: with the batch dimension where the model has one. Values are drawn
    uniformly from `low` to `high`; None is the datatype's own range (lab/load/given.py)."""

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, Field(ge=0, le=2**31)], ...]
    low: float | None = None
    high: float | None = None


class Given(Value):
    """What a model of family "given" is asked: one that is on a server already, and of which the lab knows no more than
    its server says.

    `data`             a JSON file with the values, sent over and over; else they are drawn, and no two requests equal
    `decoupled`        a request may have several responses
    `sequence_length`  requests of a sequence, which has an id; None where the model has no sequences
    `open_sequences`   that are under way at a time, their requests taking turns; no more than the server has places
                       for, or those without one would wait for those that wait behind them
    """

    inputs: tuple[GivenInput, ...]
    data: str | None = None
    decoupled: bool = False
    sequence_length: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    open_sequences: Annotated[int, Field(ge=1, le=1024)] = 8
