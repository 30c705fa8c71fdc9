"""LoRA adapters: where they lie, how they get there at first use, and which a served model has.

    LAB_HOME/models/adapters/<content hash>/     the lab's own (lab/serve/lora: lessons.json says what each is taught)
    LAB_HOME/models/merged/<content hash>/       the base with one folded into its weights: a full copy
    <repository>/<model>/1/multi_lora.json       {name: folder}, as Triton's vLLM backend reads it

An entry of `ModelSpec.adapters` is the name of a lesson, or NAME=FOLDER of an adapter in PEFT's layout. The hash is
over all that decides the result, as in quantized.py: nothing is ever stale, and a try that was stopped goes on.

Adapters come and go while the model serves (`update`): the file is written, and the model is asked to read it again.
"""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from lab import atomic, home
from lab.errors import FetchError, InputError, ModelError
from lab.serve import job, llama_weights, quantized
from lab.serve.lora.lessons import lessons
from lab.serve.lora.recipe import DOCUMENT, FORMAT_VERSION, Recipe
from lab.serve.models import adapter_folder
from lab.serve.models.llama_config import LlamaConfig
from lab.spec import ModelSpec, nearest, set_paths

if TYPE_CHECKING:
    from lab.serve.triton import Server

FILE = "multi_lora.json"
UPDATE_LIMIT_S = 90.0
MERGED = "merged.json"


def named(spec: ModelSpec) -> dict[str, Path | None]:
    """Of each of the spec's adapters the user's folder; None: one of the lab's own. InputError for a name that is
    neither."""
    found: dict[str, Path | None] = {}
    for entry in spec.adapters:
        name, equals, folder = entry.partition("=")
        if not equals and name not in lessons():
            raise InputError(
                f"model.adapters {name!r} is none of the lab's own{nearest(name, lessons())}; allowed: one of "
                f"{', '.join(lessons())}, or NAME=FOLDER in PEFT's layout"
            )
        found[name] = Path(folder).expanduser().absolute() if equals else None
    return found


def folders(spec: ModelSpec) -> dict[str, Path]:
    """Where each of the spec's adapters is, or will be; {} while the base that the lab's own start from is missing."""
    if not spec.adapters or not llama_weights.is_ready(spec.weights):
        return {}
    return {name: given or _root("adapters") / _hash(recipe(spec, name)) for name, given in named(spec).items()}


def recipe(spec: ModelSpec, lesson: str) -> Recipe:
    """What decides an adapter of the lab's own."""
    source = quantized.source_hash(llama_weights.folder(spec.weights))
    return Recipe(lesson, lessons()[lesson].digest, source)


def merged(spec: ModelSpec) -> ModelSpec | None:
    """`spec`, whose one adapter is to be merged, as a model whose weights are that copy; None while the adapter is not
    there."""
    place = merged_folder(spec)
    if place is None:
        return None
    return set_paths(spec, [("merge_adapters", False), ("adapters", []), ("weights", str(place))])


def merged_folder(spec: ModelSpec) -> Path | None:
    """Where the base with the spec's one adapter folded in belongs."""
    places = folders(spec)
    if len(places) != 1 or not all((place / adapter_folder.WEIGHTS).is_file() for place in places.values()):
        return None
    (place,) = places.values()
    adapter = [_digest(place / name) for name in (adapter_folder.CONFIG, adapter_folder.WEIGHTS)]
    source = quantized.contents(llama_weights.folder(spec.weights))
    return _root("merged") / _hash({"format_version": FORMAT_VERSION, "base": source, "adapter": adapter})


def elements(spec: ModelSpec) -> dict[str, int]:
    """Numbers in A and B of each of the spec's adapters, which must be there."""
    config = LlamaConfig.read(llama_weights.folder(spec.weights), quantized=True)
    return {name: adapter_folder.read(place, config).elements for name, place in folders(spec).items()}


def is_ready(spec: ModelSpec) -> bool:
    if not spec.adapters:
        return True
    places = folders(spec)
    there = bool(places) and all((place / adapter_folder.WEIGHTS).is_file() for place in places.values())
    if not there or not spec.merge_adapters:
        return there
    return all((copy := merged_folder(own)) is not None and (copy / MERGED).is_file() for own in _single(spec))


def check(spec: ModelSpec) -> None:
    """InputError for adapters that this base cannot serve, as far as that shows without fetching or training."""
    given = {name: place for name, place in named(spec).items() if place is not None}
    if given and llama_weights.is_ready(spec.weights):
        config = LlamaConfig.read(llama_weights.folder(spec.weights), quantized=True)
        for name, place in given.items():
            try:
                theirs = adapter_folder.read(place, config).base
            except ValueError as error:
                raise InputError(f"model.adapters {name}: {error}") from None
            ours = llama_weights.hub_id(spec.weights)
            if ours and llama_weights.is_hub_id(theirs) and not _same_model(ours, theirs):
                raise InputError(
                    f"model.adapters {name}: {place} was trained on {theirs}, and the base is {ours}; allowed: an "
                    f"adapter of this base (where it is the same by another name, put this one into "
                    f"base_model_name_or_path of its {adapter_folder.CONFIG})"
                )


def doubts(spec: ModelSpec) -> list[str]:
    """A sentence for each adapter of the user's whose files do not tell whether it belongs to this base: its config
    names another folder, or the base has no name of its own. Bases of the same shape take each other's adapters, and
    answer fluently."""
    base = llama_weights.hub_id(spec.weights) or str(llama_weights.folder(spec.weights))
    found = []
    for name, place in named(spec).items():
        theirs = "" if place is None else adapter_folder.base_of(place)
        if theirs and not _same_model(base, theirs):
            found.append(
                f"Adapter {name} was trained on {theirs}, and the base is {base}: whether these are the same model is "
                "not told by their files, and with another one of the same shape its answers mean nothing."
            )
    return found


def _same_model(a: str, b: str) -> bool:
    """By the last part of their names: whose copy it is, is no matter."""
    return Path(a).name.casefold() == Path(b).name.casefold()


def prepare(spec: ModelSpec, progress: home.Progress | None = None) -> dict[str, Path]:
    """The folders, trained where they are not there yet; with `merge_adapters` the copy of the base, too. FetchError
    when that does not work."""
    check(spec)
    if not spec.adapters:
        return {}
    source = llama_weights.prepare(spec.weights, progress)
    check(spec)
    places = folders(spec)
    for name, given in named(spec).items():
        if given is None:
            wanted = recipe(spec, name)
            _made(places[name], {"train": name, "source": str(source), "recipe": asdict(wanted)}, DOCUMENT, progress)
    for own in _single(spec) if spec.merge_adapters else ():
        target, (place,) = merged_folder(own), folders(own).values()
        if target is not None:  # the adapter is there
            _made(target, {"merge": str(place), "source": str(source)}, MERGED, progress)
    return places


def _single(spec: ModelSpec) -> list[ModelSpec]:
    """The same with one adapter each."""
    return [spec.model_copy(update={"adapters": (entry,)}) for entry in spec.adapters]


def write(spec: ModelSpec, version: Path) -> None:
    """The file beside the model's code, whole or not at all; none for a model without adapters of its own."""
    place = version / FILE
    if not spec.adapters or spec.merge_adapters:
        place.unlink(missing_ok=True)
        return
    atomic.write(place, json.dumps({name: str(folder) for name, folder in folders(spec).items()}, indent=2) + "\n")


def update(server: Server, spec: ModelSpec) -> dict[str, Any]:
    """Make the loaded model's adapters be those of `spec`, while it serves: {"loaded": {name: bytes}, "unloaded":
    [name, …]}. One that is unloaded takes no new request at once, and this waits for its last answer.

    InputError when an adapter does not fit, ModelError when the model does not load it or is not there."""
    if server.managed is None:
        raise InputError(f"adapters of {spec.name}: the server was given by URL and is not the lab's to control")
    if spec.instances > 1:
        raise InputError(
            f"instances {spec.instances}: adapters come and go in one process only; allowed: 1, or load the model anew"
        )
    prepare(spec)
    version = Path(server.managed.repository) / spec.name / "1"
    if not version.is_dir():
        raise ModelError(f"model {spec.name} is not loaded; allowed: load it, with its adapters")
    write(spec, version)
    return ask_update(server, spec.name)


def ask_update(server: Server, model: str) -> dict[str, Any]:
    """Has a loaded model read its file again; what it did. ModelError when some of it could not be done."""
    found: dict[str, Any] = json.loads(_asked(server, model, {"update_loras": True}))
    return found


def _asked(server: Server, model: str, parameters: Mapping[str, Any]) -> str:
    """The whole text of one answer."""
    values = {"text_input": b"", "sampling_parameters": json.dumps(dict(parameters)).encode()}
    tensors = []
    for name, value in values.items():
        array = np.array([value], dtype=object)
        tensor = triton.InferInput(name, [1], np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    answers: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
    text = ""
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, tensors, enable_empty_final_response=True)
        while True:
            try:
                result, error = answers.get(timeout=UPDATE_LIMIT_S)
            except queue.Empty:
                raise ModelError(f"model {model} said nothing for {UPDATE_LIMIT_S:g} s") from None
            if error is not None:
                raise ModelError(f"model {model}: {error.message()}")
            found = result.as_numpy("text_output")
            text += "" if found is None else found.flat[0].decode()
            if result.get_response().parameters["triton_final_response"].bool_param:
                return text


def _made(place: Path, wanted: dict[str, Any], last: str, progress: home.Progress | None) -> None:
    """The folder, whole when `last` is in it: made by one, others wait."""
    with home.locked(
        place.with_name(f"{place.name}.lock"), lambda: _say(f"{place.name} is being made; waiting for it")
    ):
        if place.is_dir() and (broken := _broken(place, last)):
            _say(f"{broken}; it is made anew")
            shutil.rmtree(place)
        if not place.is_dir():
            partial = place.with_name(f"{place.name}.partial")
            partial.mkdir(parents=True, exist_ok=True)
            try:
                job.do("lab.serve.lora", {**wanted, "folder": str(partial)}, progress or home.steps)
            except job.Failed as error:
                if error.refused:
                    raise InputError(f"model.adapters: {error}") from None
                raise FetchError(f"making {place.name} of {wanted['source']} failed: {error}") from None
            partial.rename(place)


def _broken(place: Path, last: str) -> str | None:
    """What of a finished folder is not as it was written; None when it holds."""
    try:
        for name, digest in json.loads((place / last).read_text()).get("files", {}).items():
            if _digest(place / name) != digest:
                return f"{place / name} is not as it was written"
    except (OSError, ValueError) as error:
        return f"{place}: {error}"
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hash(value: Any) -> str:
    plain = asdict(value) if isinstance(value, Recipe) else value
    whole = {"format_version": FORMAT_VERSION, **plain}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:20]


def _root(kind: str) -> Path:
    return home.home() / "models" / kind


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
