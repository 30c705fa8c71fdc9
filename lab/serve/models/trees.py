"""Served model `trees`: 30 measurements of a cell nucleus → the probability that the tumour is benign, by
gradient-boosted trees (scikit-learn's HistGradientBoostingClassifier, 100 of them).

Learns when it is loaded, in 0.2 s, so that nothing has to be stored and unpickled. One thread, as the other models:
what it gains from batching must come from batching. scikit-learn computes on CPUs only.
"""

import json
import os
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before scikit-learn starts its threads

import numpy as np
import triton_python_backend_utils as pb_utils
from sklearn.ensemble import HistGradientBoostingClassifier

from .tabular import rows


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        seed = int(json.loads(args["model_config"])["parameters"]["seed"]["string_value"])
        features, labels, _, _ = rows()
        self.trees = HistGradientBoostingClassifier(random_state=seed).fit(features, labels)

    def execute(self, requests: list[Any]) -> list[Any]:
        """FEATURES float32 [b, 30] → PROBABILITY float32 [b, 1]; one pass for all requests."""
        asked = [pb_utils.get_input_tensor_by_name(request, "FEATURES").as_numpy() for request in requests]
        found = self.trees.predict_proba(np.concatenate(asked))[:, 1:].astype(np.float32)
        parts = np.split(found, np.cumsum([len(part) for part in asked])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PROBABILITY", part)]) for part in parts]
