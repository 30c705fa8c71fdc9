"""The labelled table that `trees` and `network` learn from: 569 cell nuclei of breast tumours, 30 measurements each,
benign (1) or malignant (0). Ships with scikit-learn (Wolberg, Street and Mangasarian, 1995). Every fourth row is held
out: these are what the load generator sends."""

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """features float32 [426, 30] and labels int64 [426] to learn from, then the same held out [142]."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("scikit-learn is not installed, and this model learns from a table that ships with it")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "breast_cancer.csv"
    with path.open() as file:
        table = np.array(list(csv.reader(file))[1:], dtype=np.float64)  # the first line is counts and names
    features, labels = table[:, :30].astype(np.float32), table[:, 30].astype(np.int64)
    held_out = np.arange(len(table)) % 4 == 3
    return features[~held_out], labels[~held_out], features[held_out], labels[held_out]
