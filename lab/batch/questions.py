"""What a family of models takes from a row, and what a row of answers looks like. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lab.batch.table import Row, is_text
from lab.errors import InputError
from lab.spec import ModelSpec

COLUMNS = {"llm": "prompt", "embedder": "text", "digits": "image", "trees": "features", "network": "features"}
"""{family: the column that is asked about, where none is named}."""
TENSORS = {"embedder": "TEXT", "digits": "IMAGE", "trees": "FEATURES", "network": "FEATURES"}
WIDTHS = {"digits": 64, "trees": 30, "network": 30}
CUT = "tokens_cut"
"""Tokens at the end of a text that the model did not read."""
LARGEST = float(np.finfo(np.float32).max)
ROW = [pa.field("row", pa.int64()), pa.field("id", pa.string())]
ANSWERS = {
    "llm": [
        pa.field("answer", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
    ],
    "embedder": [pa.field("answer", pa.list_(pa.float32())), pa.field(CUT, pa.int64())],
    "digits": [pa.field("answer", pa.int64())],
    "trees": [pa.field("answer", pa.float32())],
    "network": [pa.field("answer", pa.float32())],
}
"""digits: the digit; trees and network: the probability."""


def check(spec: ModelSpec) -> None:
    if spec.family not in COLUMNS:
        raise InputError(f"batch: family {spec.family} answers no rows; allowed: {', '.join(COLUMNS)}")


def schema(family: str) -> pa.Schema:
    return pa.schema(ROW + ANSWERS[family])


def asked(family: str, row: Row) -> Row:
    """The row with its value as the model takes it: a text, or a list of numbers (in CSV written as JSON); with an
    error where it is neither."""
    if row.error is not None:
        return row
    value = row.value
    if family in WIDTHS:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return Row(None, row.id, f"{COLUMNS[family]} {shown(value)}; allowed: {WIDTHS[family]} numbers")
        if not _are_numbers(value, WIDTHS[family]):
            return Row(None, row.id, f"{COLUMNS[family]} {shown(value)}; allowed: {WIDTHS[family]} numbers")
    elif not isinstance(value, str) or not is_text(value):
        return Row(None, row.id, f"{COLUMNS[family]} {shown(value)}; allowed: a text")
    return Row(value, row.id)


def _are_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(x, int | float) and not isinstance(x, bool) and -LARGEST <= x <= LARGEST for x in value)
    )


def shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def tensors(family: str, values: Sequence[Any]) -> dict[str, np.ndarray]:
    """One request of all these rows, for a model that answers once."""
    if family == "embedder":
        return {"TEXT": np.array([[value.encode()] for value in values], dtype=object)}
    return {TENSORS[family]: np.array(values, np.float32)}


def answers(family: str, output: bytes, count: int) -> list[dict[str, Any]]:
    """The columns of `count` rows, from the raw float32 output of their request; an error where that is no number."""
    found = np.frombuffer(output, np.float32).reshape(count, -1)
    sound = [bool(row.all()) for row in np.isfinite(found)]
    return [
        {"answer": _answer(family, row)} if is_sound else {"error": "the model answered NaN or infinity"}
        for row, is_sound in zip(found, sound, strict=True)
    ]


def _answer(family: str, row: np.ndarray) -> Any:
    if family == "digits":
        return int(row.argmax())
    return row if family == "embedder" else float(row[0])
