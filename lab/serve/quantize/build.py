"""A quantized folder from a Llama's, block by block, each in a file of its own: what was killed goes on where it was.

    block-000.safetensors …    the matrices of a block and its norms
    rest.safetensors           embedding, last norm, and head where it is not the embedding
    config.json, tokenizer*.json, generation_config.json as they were
    quantization.json          last: how it was made, and the SHA-256 of every file

A block is found for what it sees when everything before it is quantized already, so to go on is to run the texts
through the finished blocks first. Float32 throughout; the calibration texts of SmolLM2 take about 40 MB a pass.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import embedding

from lab import atomic
from lab.serve.models.decoder import reader
from lab.serve.models.llama_config import LlamaConfig

from . import checkpoints, prose
from .block import MATRICES, NORMS, Block, Stage, rotations
from .gptq import gptq
from .grid import nearest
from .recipe import DOCUMENT, FORMAT_VERSION, Recipe, Unquantizable, check_widths
from .scales import Inputs, awq, fitted, smooth
from .scheme import Scheme

KEPT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
REST = "rest.safetensors"
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"

Read = Callable[[str], Tensor]

Progress = Callable[[str, int, int], None]
"""(what is done, bytes of weights done, bytes in all)"""


def build(source: Path, folder: Path, recipe: Recipe, progress: Progress) -> None:
    """Fills `folder`, which may hold what an earlier try finished, from the Hugging Face folder `source`.

    Unquantizable when the weights are none that can be quantized."""
    config = LlamaConfig.read(source, quantized=True)
    check_widths(config, recipe.group_size)
    _check_finite(source)
    atomic.sweep(folder)
    read, scheme = reader(source), _scheme(source)
    walk = _Walk(source, config, recipe, read) if recipe.is_calibrated and scheme is None else None
    total = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    for i in range(config.layers):
        file, prefix = folder / f"block-{i:03d}.safetensors", f"model.layers.{i}"
        finished = load_file(file) if _is_whole(file) else None
        if finished is not None and not walk:
            continue
        if walk:
            block = Block(config, {name: read(f"{prefix}.{name}.weight").float() for name in (*NORMS, *MATRICES)})
            walk.through(block, finished, prefix)
            stored = block.tensors(prefix)
        else:
            stored = _converted(prefix, scheme, source) if scheme else _rounded(prefix, recipe, read)
        if finished is None:
            _save(stored | _norms(prefix, stored, read), file)
        done = total * (i + 1) // (config.layers + 1)
        progress(
            f"quantizing to {recipe.precision} by {recipe.quantizer}, block {i + 1} of {config.layers}", done, total
        )
    if not _is_whole(folder / REST):
        _save(_rest(config, read), folder / REST)
    _write_documents(source, folder, config, recipe, scheme, walk)
    for mark in folder.glob("*.sha256"):
        mark.unlink()
    progress(f"quantized to {recipe.precision} by {recipe.quantizer}", total, total)


def _rounded(prefix: str, recipe: Recipe, read: Read) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name in MATRICES:
        found |= nearest(read(f"{prefix}.{name}.weight").float(), recipe.group_size).tensors(f"{prefix}.{name}")
    return found


def _converted(prefix: str, scheme: Scheme, source: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name in MATRICES:
        found |= checkpoints.matrix(f"{prefix}.{name}", scheme, _optional(source)).tensors(f"{prefix}.{name}")
    return found


def _norms(prefix: str, stored: dict[str, Tensor], read: Read) -> dict[str, Tensor]:
    """The norms that have taken up nothing, as they were."""
    return {key: read(key) for key in (f"{prefix}.{name}.weight" for name in NORMS) if key not in stored}


class _Walk:
    """The calibration texts on their way through the blocks."""

    def __init__(self, source: Path, config: LlamaConfig, recipe: Recipe, read: Read) -> None:
        self.recipe = recipe
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        tokenizer.no_truncation()
        tokens = min(prose.PASSAGE_TOKENS, config.context_tokens)
        texts = prose.calibration_texts()
        passages = prose.passages(texts, tokenizer, prose.LEAST_PASSAGES, tokens, recipe.seed)
        if not passages:
            raise Unquantizable(f"{recipe.quantizer}: the calibration texts make no passage of {tokens} tokens")
        self.warning = too_few(len(passages), tokens, max(config.hidden, config.mlp))
        self.document = {
            "texts": "pydoc_data.topics",
            "passages": len(passages),
            "tokens": tokens,
            "seed": recipe.seed,
            "sha256": prose.calibration_digest(),
            "topics": sorted({passage.topic for passage in passages}),
        }
        self._rotations = rotations(config, tokens)
        ids = torch.tensor([passage.tokens for passage in passages])
        self._x = embedding(ids, read(f"{EMBEDDING}.weight").float())

    def through(self, block: Block, finished: dict[str, Tensor] | None, prefix: str) -> None:
        """Quantizes the block and leaves the texts behind it; one that is `finished` only lets them through."""
        if finished is not None:
            block.restore(finished, prefix)
        self._x = block(self._x, self._rotations, self.look if finished is None else None)

    def look(self, block: Block, stage: Stage, inputs: Tensor) -> Tensor | None:
        seen, weights, size = Inputs.of(inputs), block.stacked(stage), self.recipe.group_size

        def tie(values: Tensor) -> Tensor:
            return block.tie(stage, values)

        if size is None:  # SmoothQuant
            factors = smooth(weights, inputs, seen, tie)
            return block.replace(stage, nearest(weights * factors, None), factors)
        if self.recipe.quantizer == "awq":
            factors = awq(weights, seen, size, tie)
            scaled = weights * factors
            return block.replace(stage, fitted(scaled, seen.divided(factors), size).round(scaled), factors)
        return block.replace(stage, gptq(weights, seen.hessian, fitted(weights, seen, size)))


def too_few(passages: int, tokens: int, widest: int) -> str | None:
    """A warning when the calibration shows too little of what the layers see; None when it is enough."""
    if passages < prose.LEAST_PASSAGES:
        return f"calibrated on {passages} passages; {prose.LEAST_PASSAGES} or more are needed to trust the result"
    if passages * tokens < widest:
        return f"calibrated on {passages * tokens} tokens, and a matrix has {widest} inputs; more tokens are needed"
    return None


def _check_finite(source: Path) -> None:
    """Unquantizable for a tensor with a NaN or an infinity: one would spread over its whole group."""
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  a file is no dict
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    raise Unquantizable(f"{name} holds NaN or infinity, which no integer stands for")


def _in_8_bit(config: LlamaConfig) -> tuple[str, ...]:
    """Head and embedding, whatever the others are: they are the largest matrices, and the likeliest tokens hang on
    them."""
    return (EMBEDDING,) if config.tied_embeddings else (EMBEDDING, HEAD)


def _rest(config: LlamaConfig, read: Read) -> dict[str, Tensor]:
    found = {"model.norm.weight": read("model.norm.weight")}
    for name in _in_8_bit(config):
        found |= nearest(read(f"{name}.weight").float(), None).tensors(name)
    return found


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with atomic.replacing(path) as new:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new, metadata={"format": "pt"})
    atomic.write(_mark(path), sha256(path))


def _mark(file: Path) -> Path:
    """Where the hash of a finished file stands until all are: without it, what an earlier try left would be taken for
    whole whatever became of it since."""
    return file.with_suffix(".sha256")


def _is_whole(file: Path) -> bool:
    """Whether an earlier try finished it, and it still is what was written then."""
    return file.is_file() and _mark(file).is_file() and _mark(file).read_text() == sha256(file)


def _write_documents(
    source: Path, folder: Path, config: LlamaConfig, recipe: Recipe, scheme: Scheme | None, walk: _Walk | None
) -> None:
    for name in KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    plain = json.loads((source / "config.json").read_text())
    if plain.pop("quantization_config", None) is not None:
        (folder / "config.json").write_text(json.dumps(plain, indent=1) + "\n")
    bits = 8 if recipe.group_size is None else 4
    matrices = {f"model.layers.{i}.{name}": {"bits": bits} for i in range(config.layers) for name in MATRICES}
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".json")]
    document = {
        "format_version": FORMAT_VERSION,
        "precision": recipe.precision,
        "quantizer": recipe.quantizer,
        "group_size": recipe.group_size,
        "source": recipe.source,
        "checkpoint": scheme and str(scheme),
        "calibration": walk and walk.document,
        "warning": walk and walk.warning,
        "matrices": matrices | {name: {"bits": 8} for name in _in_8_bit(config)},
        "files": {path.name: sha256(path) for path in files},
    }
    atomic.write(folder / DOCUMENT, json.dumps(document, indent=1) + "\n")


def _scheme(source: Path) -> Scheme | None:
    found = json.loads((source / "config.json").read_text()).get("quantization_config")
    return None if found is None else Scheme.parse(found)


def _optional(source: Path) -> Callable[[str], Tensor | None]:
    """Like `reader`, with None for what is not there."""
    read = reader(source)

    def found(name: str) -> Tensor | None:
        try:
            return read(name)
        except ValueError:
            return None

    return found


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
