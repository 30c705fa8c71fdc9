"""What version 2 of a rehearsal is: the same model in another format, or with a fault planted before it answers."""

from __future__ import annotations

from pathlib import Path

from tritonclient.utils import InferenceServerException

from lab.errors import ModelError
from lab.serve import repository, weights
from lab.serve.triton import LOAD_LIMIT_S, Server
from lab.spec import Challenger, ModelSpec, set_paths
from lab.track.deploy import warm

FAULTS: dict[Challenger, str] = {
    "slower": "if dice.random() < 0.1: time.sleep(0.02)",
    "errs": "if dice.random() < 0.02: raise RuntimeError('planted')",
    "worse": "if dice.random() < 0.05: values = values[:, ::-1].copy()",
}
"""Of the model's execute, for each answer; `values` are its logits, whose mirror image is never right."""

AROUND = """\
import random, time
import triton_python_backend_utils as pb_utils
from .planted_into import TritonPythonModel as Good

dice = random.Random({seed})


class TritonPythonModel(Good):
    def execute(self, requests):
        answers = []
        for answer in super().execute(requests):
            values = answer.output_tensors()[0].as_numpy()
            try:
                {fault}
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('LOGITS', values)]))
            except RuntimeError as error:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        return answers
"""


def named(model: ModelSpec, what: Challenger) -> ModelSpec:
    """Version 2 of `model` as it is served beside it, or in a server of its own; the good one is in bf16."""
    name = [("name", f"{model.name}_{what}"), ("family", model.family)]
    return set_paths(model, [*name, ("precision", "bf16")] if what == "good" else name)


def serve(server: Server, model: ModelSpec, what: Challenger, *, seed: int = 0) -> ModelSpec:
    """Load and warm version 2 of `model`. ModelError when it does not load or answer."""
    spec = named(model, what)
    if what == "good":
        server.load(spec)
    else:
        _plant(server, spec, FAULTS[what], seed)
    warm(server, spec)
    return spec


def _plant(server: Server, spec: ModelSpec, fault: str, seed: int) -> None:
    assert server.managed is not None  # noqa: S101  its repository is on this machine
    weights.prepare(spec)
    version = repository.write_model(spec, Path(server.managed.repository)) / "1"
    (version / "planted_into.py").write_bytes((version / "model.py").read_bytes())
    (version / "model.py").write_text(AROUND.format(fault=fault, seed=seed))
    try:
        server.client.load_model(spec.name, client_timeout=LOAD_LIMIT_S)
    except InferenceServerException as error:
        raise ModelError(f"model {spec.name} did not load: {error.message()}") from None
