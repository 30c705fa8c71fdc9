"""Quantized weights: where they lie, and how they get there at first use.

    LAB_HOME/models/quantized/<content hash>/            see lab/serve/quantize/build.py for what is in it
    LAB_HOME/models/quantized/<content hash>.partial/    what a try that was stopped has finished; the next goes on

The hash is over all that decides the result: the source's weights and configuration, precision, quantizer, group size,
the calibration texts and the version of this format. So nothing is ever stale, and models that differ in scheduler or
name share a folder. Of two that want one at once, one builds and the other waits. The files are checked against their
SHA-256 each time a model is loaded; a folder that does not hold is built anew.

Torch works in a process of its own (python -m lab.serve.quantize).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab import home
from lab.errors import FetchError, InputError
from lab.serve import job, llama_weights
from lab.serve.quantize import prose
from lab.serve.quantize.recipe import CALIBRATED, DOCUMENT, FORMAT_VERSION, Recipe, Unquantizable, check_widths
from lab.serve.quantize.scheme import Scheme
from lab.spec import ModelSpec

PRECISIONS = ("int8", "int8_weight", "int4")
DOCUMENTS = ("config.json", "tokenizer.json")
"""Of the source, besides the weights: another rotation or vocabulary shows the layers other inputs."""


def is_quantized(spec: ModelSpec) -> bool:
    """Whether `spec` is served from a folder of this module's; other families quantize while loading."""
    return spec.family == "llm" and spec.precision in PRECISIONS


def folder(spec: ModelSpec) -> Path | None:
    """Where the weights belong, whether or not they are there; None while the source that they are made from is
    missing, because its contents decide the name."""
    if not llama_weights.is_ready(spec.weights):
        return None
    return _root() / _content_hash(spec)


def is_ready(spec: ModelSpec) -> bool:
    place = folder(spec)
    return place is not None and (place / DOCUMENT).is_file()


def document(spec: ModelSpec) -> dict[str, Any] | None:
    """What quantization.json says of how the weights were found; None when they are not there."""
    place = folder(spec)
    if place is None or not (place / DOCUMENT).is_file():
        return None
    found: dict[str, Any] = json.loads((place / DOCUMENT).read_text())
    return found


def recipe(spec: ModelSpec) -> Recipe:
    """What decides the result."""
    return Recipe(
        precision=spec.precision,
        quantizer=spec.quantizer,
        group_size=spec.group_size if spec.precision == "int4" else None,
        source=source_hash(llama_weights.folder(spec.weights)),
        seed=spec.seed if spec.quantizer in CALIBRATED else 0,
    )


def scheme(spec: ModelSpec) -> Scheme | None:
    """How somebody else quantized the source's weights; None when they are plain, or not there. InputError when they
    are quantized in a way that is not served."""
    place = llama_weights.folder(spec.weights)
    try:
        found = json.loads((place / "config.json").read_text()).get("quantization_config")
        return None if found is None else Scheme.parse(found)
    except Unquantizable as error:
        raise InputError(f"model.weights {place}: {error}") from None
    except (OSError, ValueError, AttributeError):  # no folder yet, or a broken one, which llama_weights tells of
        return None


def check(spec: ModelSpec) -> None:
    """InputError for a language model's weights that cannot be served in its precision, as far as that shows without
    fetching or computing."""
    given = scheme(spec)
    if given is not None:
        _check_fits(spec, given)
    llama_weights.check_named(spec.weights, quantized=given is not None)
    if is_quantized(spec) and llama_weights.is_ready(spec.weights):
        config = llama_weights.check(llama_weights.folder(spec.weights), quantized=given is not None)
        try:
            check_widths(config, spec.group_size if spec.precision == "int4" else None)
        except Unquantizable as error:
            raise InputError(f"model.precision {spec.precision}: {error}") from None


def _check_fits(spec: ModelSpec, given: Scheme) -> None:
    """A checkpoint is served as it is: its precision is no matter of choice."""
    wanted: dict[str, tuple[Any, ...]] = {"precision": ("int4",) if given.bits == 4 else ("int8_weight", "int8")}
    if given.bits == 4:
        wanted["group_size"] = (given.group_size,)
        if given.method != "compressed-tensors":  # which does not tell how they were found
            wanted["quantizer"] = (given.method,)
    if any(getattr(spec, field) not in values for field, values in wanted.items()):
        allowed = ", ".join(f"{field} {' or '.join(map(str, values))}" for field, values in wanted.items())
        found = ", ".join(f"{field} {getattr(spec, field)}" for field in wanted)
        raise InputError(f"model.weights {spec.weights} are {given}, with {found}; allowed: {allowed}")


def prepare(spec: ModelSpec, progress: home.Progress | None = None) -> Path:
    """The folder, quantized where it is not there yet and checked where it is. FetchError when that does not work,
    InputError when the weights cannot be quantized so."""
    source = llama_weights.prepare(spec.weights, progress, quantized=True)
    check(spec)
    place = folder(spec)
    assert place is not None  # noqa: S101  the source is there
    lock = place.with_name(f"{place.name}.lock")
    with home.locked(lock, lambda: _say(f"{spec.precision} by {spec.quantizer} is being made already; waiting for it")):
        if place.is_dir() and (broken := _broken(place)):
            _say(f"{broken}; {place.name} is made anew")
            shutil.rmtree(place)
        if not place.is_dir():
            partial = place.with_name(f"{place.name}.partial")
            partial.mkdir(parents=True, exist_ok=True)
            wanted = {"source": str(source), "folder": str(partial), "recipe": asdict(recipe(spec))}
            _build(wanted, progress or home.steps)
            partial.rename(place)
            if warning := (document(spec) or {}).get("warning"):
                _say(f"{spec.name}: {warning}")
    return place


def source_hash(place: Path) -> str:
    """SHA-256 of the weights of a folder: of the file, or of the list of the files' own where there are several."""
    files = [(path.name, _file_hash(path, *_version(path))) for path in sorted(place.glob("*.safetensors"))]
    if len(files) == 1:
        return files[0][1]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in files).encode()).hexdigest()


def contents(place: Path) -> list[str]:
    """Hashes of all that decides what the model in a folder computes: weights, configuration, vocabulary."""
    documents = [place / name for name in DOCUMENTS if (place / name).is_file()]
    return [source_hash(place), *(_file_hash(path, *_version(path)) for path in documents)]


def _content_hash(spec: ModelSpec) -> str:
    wanted = recipe(spec)
    whole = {
        "format_version": FORMAT_VERSION,
        "texts": prose.calibration_digest() if wanted.is_calibrated else None,
        "contents": contents(llama_weights.folder(spec.weights)),
        **asdict(wanted),
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:20]


def _root() -> Path:
    return home.home() / "models" / "quantized"


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=256)
def _file_hash(path: Path, size: int, mtime_ns: int) -> str:
    """Of a file of that size, last written then: 0.2 s for SmolLM2, and pages ask often."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _broken(place: Path) -> str | None:
    """What of a finished folder is not as it was written; None when it holds."""
    try:
        files = json.loads((place / DOCUMENT).read_text())["files"]
        for name, digest in files.items():
            with (place / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{place / name} is not as it was written"
    except (OSError, ValueError, KeyError) as error:
        return f"{place}: {error}"
    return None


def _build(wanted: dict[str, Any], progress: home.Progress) -> None:
    try:
        job.do("lab.serve.quantize", wanted, progress)
    except job.Failed as error:
        if error.refused:
            raise InputError(f"model.weights {wanted['source']}: {error}") from None
        raise FetchError(f"quantizing {wanted['source']} failed: {error}") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
