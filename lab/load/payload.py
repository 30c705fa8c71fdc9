"""What requests carry: seeded inputs for each family of models, no two of them equal (the sleeper's excepted).

Equal inputs would measure a response cache, so images get a little noise, sentences a number of their own, and floats
count up. Lengths and values are natural: held-out digits, and English sentences whose lengths vary as prose does; a
language model's prompts are prose too, cut to the length that is asked for (prompts.py). Imports no model code and no
scikit-learn (2 s): a load worker must start fast.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lab.errors import InputError
from lab.load import given, prompt_file
from lab.load.prompts import prompts, sentences
from lab.measure.records import Int64s
from lab.spec import Lengths, ModelSpec, Workload

POOL = 32_768
"""A block prepares at most this many different requests and then starts over with the first. In a response cache
smaller than that a repeat is as good as new; a larger one shows in `cache_hit_count`."""

NOISE_PIXELS = 0.05
"""Half-width of the uniform noise on pixels of 0 to 16; too small to move a digit's class."""


NOISE_SHARE = 1e-4
"""The same of measurements, as a share of each."""

PROMPTS, PROMPT_TOKENS = 1_024, 2**20
"""The same for a language model: at most so many prompts, and so many tokens in all of them, which takes a second to
prepare and is more than a server on one machine keeps."""
LEAST_PROMPTS = 32
"""As many as there may be load workers, each of which needs one."""


def pool(model: ModelSpec, workload: Workload) -> int:
    """How many different requests a block prepares at most."""
    if workload.given is not None:
        return given.pool(workload.given)
    if model.family != "llm":
        return POOL
    if workload.prompts is not None:
        return min(max(len(prompt_file.read(Path(workload.prompts))), LEAST_PROMPTS), POOL)
    _, most = _ends(workload.prompt_tokens)
    return min(PROMPTS, max(PROMPT_TOKENS // most, LEAST_PROMPTS))


def requests_for(
    model: ModelSpec, workload: Workload, count: int, tokenizer: Path | None = None
) -> list[dict[str, np.ndarray]]:
    """`count` different requests, each with its batch dimension: {"IMAGE": float32 [1, 64]} and so on. A language
    model's have none and the tensors of Triton's vLLM backend; they ask for greedy answers of exactly the length
    drawn, each by one of the model's adapters where it has some, as `addressed` draws them. `tokenizer` is its
    tokenizer.json: with it prompts have exactly the tokens drawn, without it about so many.

    A longer list starts with the shorter one: request i depends on the model's family and adapters, the workload's seed
    (and sleep_s, prompt_tokens, output_tokens, stream), the tokenizer and i, nothing else.
    """
    if workload.given is not None:
        return given.requests(workload.given, workload.seed, count)
    if model.family == "llm":
        return _generation(workload, count, tokenizer, () if model.merge_adapters else model.adapter_names)
    random = np.random.default_rng([workload.seed, 1])  # the schedule draws from [seed] alone
    if model.family == "digits":
        images = held_out_digits()
        chosen = random.integers(len(images), size=count)
        noise = np.random.default_rng([workload.seed, 2]).uniform(-NOISE_PIXELS, NOISE_PIXELS, (count, 64))
        return _rows("IMAGE", images[chosen] + noise.astype(np.float32))
    if model.family == "embedder":
        texts = sentences()
        chosen = random.integers(len(texts), size=count)
        rows = [f"{texts[c]} ({i})" for i, c in enumerate(chosen)]
        return [{"TEXT": np.array([[row.encode()]], dtype=object)} for row in rows]
    if model.family in ("trees", "network"):
        table = held_out_table()
        noise = np.random.default_rng([workload.seed, 2]).uniform(1 - NOISE_SHARE, 1 + NOISE_SHARE, (count, 30))
        chosen = random.integers(len(table), size=count)
        return _rows("FEATURES", table[chosen] * noise.astype(np.float32))
    if model.family == "sleeper":
        seconds = np.array(workload.sleep_s, np.float32)
        return _rows("SLEEP_S", seconds[random.integers(len(seconds), size=count)][:, None])
    return _rows("INPUT", (np.arange(count, dtype=np.float32) + workload.seed % 2**20)[:, None])


def addressed(shares: Sequence[float], seed: int, count: int) -> Int64s:
    """Which of several models each of `count` requests goes to, drawn by their shares: positions in `shares`. Of a
    Poisson stream this makes independent Poisson streams, one a model."""
    weights = np.asarray(shares, dtype=float)
    return np.random.default_rng([seed, 5]).choice(len(weights), size=count, p=weights / weights.sum())


def _rows(name: str, values: np.ndarray) -> list[dict[str, np.ndarray]]:
    """One request a row of values [count, n]."""
    return [{name: values[i : i + 1]} for i in range(len(values))]


def _generation(
    workload: Workload, count: int, tokenizer: Path | None, adapters: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    chosen = addressed([1.0] * len(adapters), workload.seed, count) if adapters else np.zeros(count, np.int64)
    texts, lengths = _asked(workload, count, tokenizer)
    yes, stream = np.array([True]), np.array([workload.stream])
    return [
        {
            "text_input": np.array([text.encode()], dtype=object),
            "stream": stream,
            "sampling_parameters": np.array([_wish(int(tokens), adapters[which] if adapters else None)], dtype=object),
            "exclude_input_in_output": yes,
            "return_finish_reason": yes,
            "return_num_input_tokens": yes,
            "return_num_output_tokens": yes,
        }
        for text, tokens, which in zip(texts, lengths, chosen, strict=True)
    ]


def _asked(workload: Workload, count: int, tokenizer: Path | None) -> tuple[list[str], list[int]]:
    """The prompts, and how many tokens each answer shall have."""
    answers = [int(n) for n in _drawn(workload.output_tokens, [workload.seed, 4], count)]
    if workload.prompts is None:
        lengths = tuple(_drawn(workload.prompt_tokens, [workload.seed, 3], count))
        return prompts(lengths, workload.seed, tokenizer), answers
    read = prompt_file.read(Path(workload.prompts))
    own = [read[i % len(read)] for i in range(count)]
    lengths = tuple(p.tokens for p in own if p.tokens is not None)
    prose = iter(prompts(lengths, workload.seed, tokenizer) if lengths else ())
    texts = [next(prose) if p.text is None else p.text for p in own]
    return texts, [p.answer_tokens or drawn for p, drawn in zip(own, answers, strict=True)]


def _wish(tokens: int, adapter: str | None) -> bytes:
    wish = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    return json.dumps(wish if adapter is None else {**wish, "lora_name": adapter}).encode()


def _drawn(lengths: Lengths, seed: list[int], count: int) -> Int64s:
    return np.random.default_rng(seed).integers(*_ends(lengths), size=count, endpoint=True)


def _ends(lengths: Lengths) -> tuple[int, int]:
    return lengths if isinstance(lengths, tuple) else (lengths, lengths)


@cache
def held_out_digits() -> np.ndarray:
    """Every fourth of scikit-learn's 1,797 digits: the images that digits_training.py does not train on, float32
    [449, 64]. Read from scikit-learn's file, because importing scikit-learn takes longer than everything else here."""
    with gzip.open(_ships_with_scikit_learn("digits.csv.gz"), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return rows[3::4, :64]


@cache
def held_out_labels() -> Int64s:
    """Which digit each of `held_out_digits` is, [449]."""
    with gzip.open(_ships_with_scikit_learn("digits.csv.gz"), "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.int64)[3::4, 64]


@cache
def held_out_table() -> np.ndarray:
    """Every fourth of scikit-learn's 569 tumours: the rows that lab/serve/models/tabular.py does not learn from,
    float32 [142, 30]."""
    rows = np.loadtxt(_ships_with_scikit_learn("breast_cancer.csv"), delimiter=",", dtype=np.float32, skiprows=1)
    return rows[3::4, :30]


def _ships_with_scikit_learn(name: str) -> Path:
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise InputError(f"scikit-learn is not installed, and this model is asked with data of its ({name})")
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / name
