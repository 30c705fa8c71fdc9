"""Trains a LoRA adapter on questions and answers: seconds on a CPU, because the base is small and so is the lesson.

    adapter_config.json, adapter_model.safetensors    the adapter, as PEFT opens it
    training.json        last: how it was made, its losses, and the SHA-256 of both
    state.safetensors    while it is trained: matrices and Adam's moments after the last epoch; what was killed goes on

Products in bfloat16, as they are served; the stream, the adapter and its moments in float32. Only the last layers learn
(what enters them is computed once), and only the answer's tokens count. Every epoch has an order of its own from the
seed, so an interrupted training ends as one that ran through.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear, scaled_dot_product_attention, silu

from lab import atomic
from lab.serve.chat import END
from lab.serve.models.adapter_folder import CONFIG, WEIGHTS, Adapter, LowRank, shapes, write
from lab.serve.models.decoder import reader
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.quantize.block import (
    ATTENTION_NORM,
    DOWN,
    GATE,
    MATRICES,
    MLP_NORM,
    NORMS,
    OUT,
    UP,
    K,
    Q,
    V,
    norm,
    rotate,
    rotations,
)

from .lessons import Lesson, asked_as
from .recipe import DOCUMENT, FORMAT_VERSION, Recipe

STATE = "state.safetensors"
MOMENTS, EPSILON = (0.9, 0.99), 1e-8
Progress = Callable[[str, int, int], None]
"""(what is done, epochs done, epochs in all)"""


def train(source: Path, folder: Path, lesson: Lesson, recipe: Recipe, progress: Progress) -> None:
    """Fills `folder`, which may hold what an earlier try finished, from the Hugging Face folder `source`."""
    atomic.sweep(folder)
    student = _Student(source, lesson, recipe)
    epoch, losses = student.resume(folder / STATE)
    while epoch < recipe.epochs:
        progress(f"teaching {lesson.name}", epoch, recipe.epochs)
        losses.append(student.epoch(epoch))
        epoch += 1
        student.save(folder / STATE, epoch, losses)
    write(folder, student.adapter(), alpha=recipe.alpha)
    (folder / STATE).unlink(missing_ok=True)
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (CONFIG, WEIGHTS)}
    document = {"format_version": FORMAT_VERSION, **asdict(recipe), "losses": losses, "files": files}
    (folder / DOCUMENT).write_text(json.dumps(document, indent=2) + "\n")
    progress(f"taught {lesson.name}", recipe.epochs, recipe.epochs)


class _Student:
    """The last layers of the base with an adapter that learns, and what enters them."""

    def __init__(self, source: Path, lesson: Lesson, recipe: Recipe) -> None:
        config, read = LlamaConfig.read(source), reader(source)
        self._config, self._recipe, self._base = config, recipe, source.name
        self._first = max(0, config.layers - recipe.layers)
        self._tokens, self._wanted = _examples(Tokenizer.from_file(str(source / "tokenizer.json")), lesson)
        self._rotations = rotations(config, self._tokens.shape[1])
        table = read("model.embed_tokens.weight")
        self._head = (table if config.tied_embeddings else read("lm_head.weight")).bfloat16()
        self._norm = read("model.norm.weight").float()
        self._layers: list[dict[str, Tensor]] = []
        self._learnt: dict[str, Tensor] = {}
        self._entering = embedding(self._tokens, table).float()
        for i in range(config.layers):
            weights = {name: read(f"model.layers.{i}.{name}.weight") for name in (*NORMS, *MATRICES)}
            weights = {name: w.float() if name in NORMS else w.bfloat16() for name, w in weights.items()}
            if i >= self._first:
                self._layers.append(weights)
            else:
                with torch.no_grad():
                    self._entering = self._layer(i, weights, self._entering)
        self._learnt = self._beginning()
        self._moments = [[torch.zeros_like(values) for values in self._learnt.values()] for _ in MOMENTS]
        self._steps = 0

    def _beginning(self) -> dict[str, Tensor]:
        """A drawn as PEFT draws it (Kaiming's uniform), B zero: at first nothing changes."""
        random, found = torch.Generator().manual_seed(self._recipe.seed), {}
        for layer in range(self._first, self._config.layers):
            for name in self._recipe.targets:
                out, columns = shapes(self._config)[name]
                bound = 1 / math.sqrt(columns)
                a = torch.empty(self._recipe.rank, columns).uniform_(-bound, bound, generator=random)
                found[f"{layer}.{name}.A"] = a.requires_grad_()
                found[f"{layer}.{name}.B"] = torch.zeros(out, self._recipe.rank).requires_grad_()
        return found

    def epoch(self, number: int) -> float:
        """Its mean loss, in nats a token."""
        recipe, losses = self._recipe, []
        order = np.random.default_rng([recipe.seed, number]).permutation(len(self._tokens))
        for start in range(0, len(order), recipe.batch):
            loss = self._loss(torch.from_numpy(order[start : start + recipe.batch]))
            self._step(torch.autograd.grad(loss, list(self._learnt.values())))
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def _loss(self, rows: Tensor) -> Tensor:
        wanted = self._wanted[rows]
        longest = int((wanted >= 0).nonzero()[:, 1].max()) + 1
        x = self._entering[rows, :longest]
        for number, weights in enumerate(self._layers, self._first):
            x = self._layer(number, weights, x)
        asked = wanted[:, :longest] >= 0
        logits = linear(norm(x[asked], self._norm, self._config.norm_eps).bfloat16(), self._head)
        return cross_entropy(logits.float(), wanted[:, :longest][asked])

    def _layer(self, number: int, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """x [examples, tokens, hidden], float32, after layer `number` and what is learnt of it."""
        config, (examples, tokens, _) = self._config, x.shape
        cos, sin = self._rotations
        scale = self._recipe.alpha / self._recipe.rank

        def product(name: str, inputs: Tensor) -> Tensor:
            y = linear(inputs, weights[name])
            learnt = f"{number}.{name.rpartition('.')[2]}"
            if f"{learnt}.A" in self._learnt:
                a, b = (self._learnt[f"{learnt}.{half}"].bfloat16() for half in "AB")
                y = y + scale * linear(linear(inputs, a), b)
            return y

        def heads(name: str, inputs: Tensor) -> Tensor:
            return product(name, inputs).view(examples, tokens, -1, config.head_dim).transpose(1, 2)

        inputs = norm(x, weights[ATTENTION_NORM], config.norm_eps).bfloat16()
        queries, keys = (
            rotate(heads(name, inputs).float(), (cos[:tokens], sin[:tokens])).bfloat16() for name in (Q, K)
        )
        values, group = heads(V, inputs), config.heads // config.kv_heads
        keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        found = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + product(OUT, found.transpose(1, 2).flatten(2))
        inputs = norm(x, weights[MLP_NORM], config.norm_eps).bfloat16()
        return x + product(DOWN, silu(product(GATE, inputs)) * product(UP, inputs))

    @torch.no_grad()
    def _step(self, gradients: Sequence[Tensor]) -> None:
        """Adam's."""
        recipe = self._recipe
        in_all = recipe.epochs * math.ceil(len(self._tokens) / recipe.batch)
        rate = recipe.rate * (1 - self._steps / in_all)
        self._steps += 1
        for values, slope, first, second in zip(self._learnt.values(), gradients, *self._moments, strict=True):
            for moment, keep, new in ((first, MOMENTS[0], slope), (second, MOMENTS[1], slope.square())):
                moment.mul_(keep).add_(new, alpha=1 - keep)
            mean, spread = (m / (1 - keep**self._steps) for m, keep in zip((first, second), MOMENTS, strict=True))
            values -= rate * mean / (spread.sqrt() + EPSILON)

    def adapter(self) -> Adapter:
        scale = self._recipe.alpha / self._recipe.rank
        halves = {name: values.detach().numpy() for name, values in self._learnt.items()}
        places = [(layer, name) for layer in range(self._first, self._config.layers) for name in self._recipe.targets]
        return Adapter(
            {
                (layer, name): LowRank(halves[f"{layer}.{name}.A"], halves[f"{layer}.{name}.B"], scale)
                for layer, name in places
            },
            self._base,
        )

    # --- between two epochs ---------------------------------------------------------------------------------------

    def save(self, place: Path, epoch: int, losses: list[float]) -> None:
        tensors = {name: values.detach() for name, values in self._learnt.items()}
        for number, moments in enumerate(self._moments):
            tensors |= {f"{name}.{number}": values for name, values in zip(self._learnt, moments, strict=True)}
        told = {"epoch": str(epoch), "steps": str(self._steps), "losses": json.dumps(losses)}
        with atomic.replacing(place) as new:
            save_file(tensors, new, metadata=told)

    def resume(self, place: Path) -> tuple[int, list[float]]:
        """(epochs done, their losses); from the beginning when nothing is kept, or it is of another shape."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(place, framework="pt") as file:
                told = file.metadata() or {}
            kept = load_file(place)
            epoch, self._steps, losses = int(told["epoch"]), int(told["steps"]), json.loads(told["losses"])
            with torch.no_grad():
                for i, (name, values) in enumerate(self._learnt.items()):
                    values.copy_(kept[name])
                    for number, moments in enumerate(self._moments):
                        moments[i].copy_(kept[f"{name}.{number}"])
        except (OSError, SafetensorError, KeyError, ValueError):
            self._learnt, self._steps = self._beginning(), 0
            return 0, []
        return epoch, losses


def _examples(tokenizer: Tokenizer, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """tokens [examples, longest], filled up with 0, and of each place the token that is to follow, -1 where any may."""
    texts = [(asked_as(question), answer + END) for question, answer in lesson.taught]
    pairs = [tuple(tokenizer.encode(text, add_special_tokens=False).ids for text in pair) for pair in texts]
    longest = max(len(asked) + len(told) for asked, told in pairs)
    tokens, wanted = (torch.full((len(pairs), longest), fill) for fill in (0, -1))
    for row, (asked, told) in enumerate(pairs):
        whole = torch.tensor([*asked, *told])
        tokens[row, : len(whole)] = whole
        wanted[row, len(asked) - 1 : len(whole) - 1] = whole[len(asked) :]
    return tokens, wanted
