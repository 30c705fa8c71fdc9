"""Requests for a model of which only its inputs are known: names, datatypes, shapes.

Values are drawn from a seed, different in every request, so that no response cache answers; or read from a JSON file:

    {"data": [{"INPUT": [1, 2, 3], "TEXT": ["a"]},                 a request an entry, flat or nested lists
              {"INPUT": {"content": [1, 2, 3], "shape": [1, 3]}},  with another shape (perf_analyzer's form)
              {"INPUT": {"b64": "…"}},                             raw bytes of the tensor
              [{…}, {…}]]}                                         a sequence: its requests in order

A file that is a list, or a single request, is understood too. Which values make sense nobody can know: floats are
drawn from 0 to 1, whole numbers from 0 to 9, texts from prose, unless told otherwise.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab import own_file
from lab.errors import InputError
from lab.load.prompts import sentences
from lab.load.targets.tensors import BF16, BODY, Sequenced, Tensors
from lab.spec import Given, GivenInput

MOST_BYTES = 64 * 2**20
"""Of all prepared requests together; what is larger starts over sooner."""
MOST, LEAST = 32_768, 2
LARGEST_REQUEST = 2**30
"""Bytes; a gRPC message ends at 2 GiB, and two requests are prepared at least."""
LARGEST_FILE = 512 * 2**20
DRAWN_FROM, DRAWN_TO = -(2**53), 2**53
"""Whole numbers are drawn from within these: a range is given in floats, which hold no larger ones exactly."""

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "BF16": BF16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
}


def pool(given: Given) -> int:
    """How many different requests are prepared; a whole number of sequences."""
    count = min(MOST, max(LEAST, MOST_BYTES // max(1, request_bytes(given))))
    if given.sequence_length is not None:
        together = given.open_sequences * given.sequence_length
        count = max(count // together, 1) * together
    return count


def request_bytes(given: Given) -> int:
    """About what one request takes while it is prepared: 8 bytes a number, as it is drawn, and 32 a text."""
    return sum(math.prod(i.shape) * (32 if i.datatype == "BYTES" else 8) for i in given.inputs)


def requests(given: Given, seed: int, count: int) -> list[Tensors]:
    """`count` requests, each with its batch dimension. InputError for a data file that does not fit, in one line."""
    if given.data is not None and not given.inputs:
        return _bodies(Path(given.data), count)
    if given.data is not None:
        steps = read_data(Path(given.data), given.inputs)
        if given.sequence_length is None:
            flat = [step for sequence in steps for step in sequence]
            return [flat[i % len(flat)] for i in range(count)]
        return _in_turns(steps, count, given.open_sequences)
    made = [_drawn(given.inputs, seed, i) for i in range(count)]
    if given.sequence_length is None:
        return made
    length = given.sequence_length
    return _in_turns([made[i : i + length] for i in range(0, count, length)], count, given.open_sequences)


def _bodies(path: Path, count: int) -> list[Tensors]:
    """Requests of a server that takes JSON of its own kind: each entry of the file is one's body."""
    written = [np.array([json.dumps(entry).encode()], dtype=object) for entry in _written(path)]
    return [{BODY: written[i % len(written)]} for i in range(count)]


def _in_turns(sequences: Sequence[Sequence[Tensors]], count: int, together: int) -> list[Tensors]:
    """So many `together`, a request of each in turn, until there are `count`; ids from 1, each used once."""
    found: list[Tensors] = []
    number = 0
    while len(found) < count:
        batch = [sequences[(number + i) % len(sequences)] for i in range(together)]
        for step in range(max(len(sequence) for sequence in batch)):
            for i, sequence in enumerate(batch):
                if step < len(sequence):
                    last = step == len(sequence) - 1
                    found.append(Sequenced(sequence[step], number + i + 1, start=step == 0, end=last))
        number += together
    return found


def _drawn(inputs: Sequence[GivenInput], seed: int, number: int) -> Tensors:
    random = np.random.default_rng([seed, 6, number])
    return {each.name: _values(each, random, number) for each in inputs}


def _values(asked: GivenInput, random: np.random.Generator, number: int) -> np.ndarray:
    shape, kind = asked.shape, asked.datatype
    if kind == "BYTES":
        texts = sentences()
        chosen = random.integers(len(texts), size=math.prod(shape))
        flat = [f"{texts[c]} ({number})".encode() for c in chosen]
        return np.array(flat, dtype=object).reshape(shape)
    if kind == "BOOL":
        return random.integers(2, size=shape).astype(np.bool_)
    if "INT" in kind:
        low, high = (0 if asked.low is None else int(asked.low)), (9 if asked.high is None else int(asked.high))
        return random.integers(low, high, size=shape, endpoint=True).astype(DTYPES[kind])
    low_f, high_f = (0.0 if asked.low is None else asked.low), (1.0 if asked.high is None else asked.high)
    floats = random.uniform(low_f, high_f, size=shape)
    return as_bf16(floats) if kind == "BF16" else floats.astype(DTYPES[kind])


def as_bf16(values: np.ndarray) -> np.ndarray:
    """Float values as bfloat16: the upper half of float32, rounded to the nearest (ties away from zero)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x8000) >> 16).astype("<u2").view(BF16)


# --- data files ---------------------------------------------------------------------------------------------------


@cache
def read_data(path: Path, inputs: tuple[GivenInput, ...]) -> list[list[Tensors]]:
    """The file's sequences, each a list of requests (a single request is a sequence of one)."""
    written = _written(path)
    sequences = [entry if isinstance(entry, list) else [entry] for entry in written]
    number, read = 0, []
    for sequence in sequences:
        if not sequence:
            raise InputError(f"data {path.name}: the sequence after request {number} is empty; allowed: some requests")
        steps = []
        for entry in sequence:
            number += 1
            steps.append(_request(entry, inputs, f"data {path.name}, request {number}"))
        read.append(steps)
    return read


def _written(path: Path) -> list[Any]:
    """What the file holds, as a list of requests and sequences."""
    try:
        written = json.loads(own_file.read_text(path, "data", LARGEST_FILE))
    except (ValueError, RecursionError) as error:
        raise InputError(f"data {str(path)!r} is no JSON: {error}") from None
    if isinstance(written, dict):
        written = written.get("data", [written])
    if not isinstance(written, list) or not written:
        raise InputError(f'data {str(path)!r}: allowed is {{"data": [request, …]}} with one request or more')
    return written


def _request(entry: Any, inputs: Sequence[GivenInput], where: str) -> Tensors:
    names = [each.name for each in inputs]
    if not isinstance(entry, dict):
        raise InputError(f"{where}: {json.dumps(entry)[:40]} is no request; allowed: an object with {', '.join(names)}")
    for name in entry:
        if name not in names:
            raise InputError(f"{where}: the model has no input {name!r}; allowed: {', '.join(names)}")
    for name in names:
        if name not in entry:
            raise InputError(f"{where}: input {name!r} is missing")
    return {each.name: _tensor(entry[each.name], each, f"{where}, {each.name}") for each in inputs}


def _tensor(value: Any, asked: GivenInput, where: str) -> np.ndarray:
    shape = asked.shape
    if isinstance(value, dict):
        if "shape" in value:
            own = value["shape"]
            if not isinstance(own, list) or not all(isinstance(n, int) and n >= 0 for n in own):
                raise InputError(f"{where}: shape {own!r}; allowed: a list of whole numbers")
            # perf_analyzer leaves the batch dimension of 1 out of it.
            shape = tuple(own) if len(own) == len(shape) else (1, *own)
            if len(shape) != len(asked.shape):
                raise InputError(f"{where}: shape {own} has {len(own)} dimensions; allowed: {len(asked.shape)}")
        if "b64" in value:
            return _raw(value["b64"], asked.datatype, shape, where)
        value = value.get("content")
    flat = list(_flat(value))
    wanted = math.prod(shape)
    if len(flat) != wanted:
        raise InputError(f"{where}: {len(flat):,} values; its shape {list(shape)} takes {wanted:,}")
    return _array(flat, asked.datatype, shape, where)


def _array(flat: list[Any], datatype: str, shape: tuple[int, ...], where: str) -> np.ndarray:
    if datatype == "BYTES":
        texts = [text.encode() if isinstance(text, str) else str(text).encode() for text in flat]
        return np.array(texts, dtype=object).reshape(shape)
    strange = [v for v in flat if not isinstance(v, int | float)]
    if strange:
        raise InputError(f"{where}: {json.dumps(strange[0])[:40]} is no value of {datatype}")
    if "INT" in datatype:
        limits = np.iinfo(DTYPES[datatype])
        bad = next((v for v in flat if not limits.min <= v <= limits.max or v != int(v)), None)  # NaN is in no range
        if bad is not None:
            raise InputError(f"{where}: {bad!r} does not fit {datatype}; allowed: {limits.min} to {limits.max}")
        return np.array([int(v) for v in flat], dtype=DTYPES[datatype]).reshape(shape)
    most = _largest(datatype)
    bad = next((v for v in flat if most < abs(v) < math.inf), None)  # what JSON has as Infinity and NaN is meant so
    if bad is not None:
        raise InputError(f"{where}: {str(bad)[:40]} does not fit {datatype}; allowed: up to {most:g}")
    if datatype == "BF16":
        return as_bf16(np.array(flat, np.float32)).reshape(shape)
    return np.array(flat, dtype=DTYPES[datatype]).reshape(shape)


def _largest(datatype: str) -> float:
    """The largest finite value; of BOOL there is none to keep to."""
    if datatype == "BOOL":
        return math.inf
    return float(np.finfo(np.float32 if datatype == "BF16" else DTYPES[datatype]).max)


def drawable(datatype: str) -> tuple[float, float] | None:
    """The least and the most that values of the datatype can be drawn from; None where none are drawn from a range."""
    if datatype in ("BOOL", "BYTES"):
        return None
    if "INT" in datatype:
        info = np.iinfo(DTYPES[datatype])
        return max(int(info.min), DRAWN_FROM), min(int(info.max), DRAWN_TO)
    most = _largest(datatype)
    return -most / 2, most / 2  # numpy draws from no range that is wider than its largest number


def _raw(text: Any, datatype: str, shape: tuple[int, ...], where: str) -> np.ndarray:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InputError(f"{where}: b64 holds no base64") from None
    if datatype == "BYTES":
        if math.prod(shape) != 1:
            raise InputError(f"{where}: b64 is one text; its shape {list(shape)} takes {math.prod(shape)}")
        return np.array([data], dtype=object).reshape(shape)
    wanted = math.prod(shape) * np.dtype(DTYPES[datatype]).itemsize
    if len(data) != wanted:
        raise InputError(f"{where}: {len(data):,} bytes; {datatype} of shape {list(shape)} takes {wanted:,}")
    return np.frombuffer(data, DTYPES[datatype]).reshape(shape)


def _flat(value: Any) -> Any:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def read_shapes(path: Path, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes that the file's first request gives its inputs: told, or by how its lists are nested. Names that are
    no input are left to `read_data` to refuse."""
    entry = _first(path)
    found = {}
    for name in names:
        value = entry.get(name)
        if isinstance(value, dict) and isinstance(value.get("shape"), list):
            found[name] = tuple(int(n) for n in value["shape"] if isinstance(n, int))
        elif name in entry:
            found[name] = _nesting(value.get("content") if isinstance(value, dict) else value)
    return found


def _first(path: Path) -> dict[str, Any]:
    written = _written(path)
    while isinstance(written, list) and written:
        written = written[0]
    return written if isinstance(written, dict) else {}


def _nesting(value: Any) -> tuple[int, ...]:
    dims = []
    while isinstance(value, list):
        dims.append(len(value))
        value = value[0] if value else None
    return tuple(dims) or (1,)
