"""Which adapters a loaded language model has, and others while it serves: `python -m lab adapters`.

What a model was loaded with is read back from the server and its repository, so it needs not be given again. The change
itself is adapters.py's: no restart, nobody else's request waits, and one that is unloaded answers what it has begun.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lab.errors import InputError
from lab.serve import adapters, llama_weights, quantized
from lab.serve.quantize.recipe import DOCUMENT
from lab.serve.triton import Server
from lab.spec import ModelSpec, nearest, parse


def of(server: Server, model: str) -> dict[str, Path]:
    """{name: folder}, in the order in which they came. ModelError when the model is not loaded, InputError when it is
    none that has adapters."""
    parameters = server.config(model).get("parameters", {})
    family = parameters.get("family", {}).get("string_value")
    if family != "llm":
        raise InputError(f"model {model} is of family {family}, which has no adapters; allowed: a language model")
    place = _version(server, model) / adapters.FILE
    if not place.is_file():
        return {}
    return {name: Path(folder) for name, folder in json.loads(place.read_text()).items()}


def change(server: Server, model: str, load: Sequence[str], unload: Collection[str]) -> dict[str, Any]:
    """As adapters.update. An entry of `load` is one of the lab's own or NAME=FOLDER, as in ModelSpec.adapters; one of
    the same name is replaced."""
    there = of(server, model)
    if stranger := next((name for name in unload if name not in there), None):
        raise InputError(
            f"--unload {stranger}: {model} has no such adapter{nearest(stranger, there)}; allowed: "
            f"{', '.join(there) or 'nothing, as it has none'}"
        )
    new = {entry.partition("=")[0]: entry for entry in load}
    entries = {name: f"{name}={folder}" for name, folder in there.items() if name not in unload} | new
    return adapters.update(server, _spec(server, model, list(entries.values())))


def _spec(server: Server, model: str, entries: list[str]) -> ModelSpec:
    config = server.config(model)
    given = {name: value["string_value"] for name, value in config["parameters"].items()}
    return parse(
        ModelSpec,
        {
            "name": model,
            "family": "llm",
            "precision": given["precision"],
            "max_adapters": json.loads(given["max_adapters"]),
            "instances": sum(group["count"] for group in config["instance_group"]),
            "weights": _source(_version(server, model) / "weights"),
            "adapters": entries,
        },
    )


def _source(link: Path) -> str | None:
    """What `ModelSpec.weights` was: None for the lab's own base, also where it was quantized from that."""
    place, own = link.resolve(), llama_weights.folder(None)
    if place == own.resolve():
        return None
    document = place / DOCUMENT
    made = json.loads(document.read_text()) if document.is_file() else {}
    if made and llama_weights.is_ready(None) and made["source"] == quantized.source_hash(own):
        return None
    return str(place)


def _version(server: Server, model: str) -> Path:
    if server.managed is None:
        raise InputError(f"adapters of {model}: the server was given by URL and is not the lab's to control")
    return Path(server.managed.repository) / model / "1"
