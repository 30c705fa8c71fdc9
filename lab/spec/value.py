"""What every value of the vocabulary is: frozen, and refusing unknown fields; and the types that fields share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PLAIN_NAME = r"^[a-z][a-z0-9_]{0,39}$"
PLAIN_NAME_WORDS = "a letter and up to 39 more letters, digits and _, in lower case"
Name = Annotated[str, Field(pattern=PLAIN_NAME, description=PLAIN_NAME_WORDS)]
ModelName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}$", description="letters, digits and _ - . :, up to 255 of them"
    ),
]
"""Of a model on any server; the lab's own have a Name."""
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
Lengths = Annotated[
    Tokens | tuple[Tokens, Tokens],
    Field(description="a whole number from 1 to 1,000,000, or two such numbers as [least, most]"),
]
"""Lengths in tokens: all equal, or drawn uniformly from the first to the last of a pair."""


class Value(BaseModel):
    """A frozen value; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
