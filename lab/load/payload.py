"""What requests carry: seeded inputs for each family of models, no two of them equal (the sleeper's excepted).

Equal inputs would measure a response cache, so images get a little noise, sentences a number of their own, and floats
count up. Lengths and values are natural: held-out digits, and English sentences whose lengths vary as prose does.
Imports no model code and no scikit-learn (2 s): a load worker must start fast.
"""

from __future__ import annotations

import gzip
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lab.errors import InputError
from lab.spec import ModelSpec, Workload

POOL = 32_768
"""A block prepares at most this many different requests and then starts over with the first. In a response cache
smaller than that a repeat is as good as new; a larger one shows in `cache_hit_count`."""

NOISE_PIXELS = 0.05
"""Half-width of the uniform noise on pixels of 0 to 16; too small to move a digit's class."""


def requests_for(model: ModelSpec, workload: Workload, count: int) -> list[dict[str, np.ndarray]]:
    """`count` different requests, each with its batch dimension: {"IMAGE": float32 [1, 64]} and so on.

    A longer list starts with the shorter one: request i depends on the model's family, the workload's seed (and
    sleep_s) and i, nothing else.
    """
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
    if model.family == "sleeper":
        seconds = np.array(workload.sleep_s, np.float32)
        return _rows("SLEEP_S", seconds[random.integers(len(seconds), size=count)][:, None])
    return _rows("INPUT", (np.arange(count, dtype=np.float32) + workload.seed % 2**20)[:, None])


def _rows(name: str, values: np.ndarray) -> list[dict[str, np.ndarray]]:
    """One request a row of values [count, n]."""
    return [{name: values[i : i + 1]} for i in range(len(values))]


@cache
def held_out_digits() -> np.ndarray:
    """Every fourth of scikit-learn's 1,797 digits: the images that digits_training.py does not train on, float32
    [449, 64]. Read from scikit-learn's file, because importing scikit-learn takes longer than everything else here."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise InputError("scikit-learn is not installed, and the digits model is asked with its images")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return rows[3::4, :64]


@cache
def sentences() -> list[str]:
    """Sentences of Python's own manual, in order, code and tables left out."""
    from pydoc_data.topics import topics

    found = []
    for _, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\s*\n", text):
            # Prose starts at the margin or with three spaces, as the manual is set; deeper is code.
            if re.match(r" {0,3}[A-Z]", paragraph) and "   " not in paragraph.strip() and "***" not in paragraph:
                flowing = " ".join(paragraph.split())
                found += [s for s in re.split(r"(?<=[.?!:])\s+(?=[A-Z])", flowing) if len(s.split()) >= 4]
    return found
