"""Whether the files of a model's folder are whole, as far as that shows without loading them.

A library that loads a broken file speaks of headers and offsets, inside Triton, and names no file. Here each finding is
one line: the file, what is wrong with it, and what to do. What the tensors hold is not looked at.

    *.safetensors   8 bytes: length of the header; header: JSON, name → dtype, shape, [begin, end) in the data; data
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
LFS_POINTER = b"version https://git-lfs"
INDEX = "model.safetensors.index.json"


class BrokenFile(ValueError):
    """One line: the file and what is wrong with it, without a remedy."""


def check_folder(folder: Path) -> dict[str, list[int]]:
    """{tensor: shape} of a Hugging Face folder; BrokenFile for the first of its files that is not whole: config,
    tokenizer, weights, and shards that an index names."""
    json_object(folder / "config.json")
    _check_tokenizer(folder / "tokenizer.json", _version(folder / "tokenizer.json"))
    held = {path.name: tensors(path) for path in sorted(folder.glob("*.safetensors"))}
    if (folder / INDEX).is_file():
        _check_index(folder, held)
    return {tensor: shape for file in held.values() for tensor, shape in file.items()}


@lru_cache(maxsize=16)
def _check_tokenizer(path: Path, version: tuple[int, ...] | None) -> None:
    """Each version of a file is read once: it has megabytes, and every format of a model is checked by itself."""
    if "model" not in json_object(path):
        raise BrokenFile(f"{path}: no tokenizer: it has no field model")


def _version(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _check_index(folder: Path, held: dict[str, dict[str, list[int]]]) -> None:
    places = json_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise BrokenFile(f"{folder / INDEX}: no index: it has no field weight_map")
    named = sorted({str(name) for name in places.values()})
    if missing := [name for name in named if name not in held]:
        raise BrokenFile(f"{folder / INDEX} names {len(named)} files, of which {', '.join(missing)} is not there")
    for tensor, name in places.items():
        if tensor not in held[str(name)]:
            raise BrokenFile(f"{folder / str(name)}: holds no {tensor}, which {INDEX} says it does")


def is_whole(path: Path) -> bool:
    """Whether a safetensors file is there and whole."""
    try:
        tensors(path)
    except BrokenFile:
        return False
    return True


def tensors(path: Path) -> dict[str, list[int]]:
    """{name: shape} from the header of a safetensors file; BrokenFile when it is none, or is not as long as it says."""
    try:
        with path.open("rb") as file:
            begin = file.read(LENGTH.size)
            length = LENGTH.unpack(begin)[0] if len(begin) == LENGTH.size else 0
            size = path.stat().st_size
            if (begin + file.read(len(LFS_POINTER) - len(begin))).startswith(LFS_POINTER):
                raise BrokenFile(
                    f"{path}: a pointer of Git LFS, not the weights themselves; `git lfs pull` fetches them"
                )
            file.seek(LENGTH.size)
            header = file.read(length) if length <= min(LONGEST_HEADER, size) else b""
    except OSError as error:
        raise BrokenFile(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        found = json.loads(header)
        found.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in found.values()]
        shapes = {str(name): list(entry["shape"]) for name, entry in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise BrokenFile(f"{path}: no safetensors file, or its header is broken ({size:,} bytes)") from None
    wanted = LENGTH.size + length + max(ends, default=0)
    if size != wanted:
        cut = "cut short" if size < wanted else "too long"
        raise BrokenFile(f"{path}: {cut}: {size:,} bytes, by its header {wanted:,}")
    return shapes


def json_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds; BrokenFile when it is not there or holds no object."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise BrokenFile(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BrokenFile(f"{path}: no JSON, or cut short ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict):
        raise BrokenFile(f"{path}: a JSON {type(found).__name__}, where an object is expected")
    return found
