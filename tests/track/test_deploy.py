"""A deployed version serves the files that were registered, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from safetensors.numpy import load_file, save_file

from lab.load.payload import held_out_digits
from lab.serve import weights
from lab.serve.triton import Server
from lab.spec import ModelSpec
from lab.track.deploy import deploy
from lab.track.registry import Registered
from lab.track.sources import bring

pytestmark = pytest.mark.triton
PLAIN = ModelSpec(name="dp_digits", family="digits")


def logits(server: Server, model: str) -> np.ndarray:
    tensor = triton.InferInput("IMAGE", [1, 64], "FP32")
    tensor.set_data_from_numpy(held_out_digits()[:1])
    with triton.InferenceServerClient(server.grpc_url) as client:
        return client.infer(model, [tensor]).as_numpy("LOGITS")


def test_registered_weights_are_served(triton_server: Server, tmp_path: Path) -> None:
    triton_server.load(PLAIN)
    own = weights.folder(PLAIN)
    assert own is not None
    stored = load_file(own / "weights.safetensors")
    last = len(stored) // 2 - 1  # of its layers; with its signs turned, so are the logits
    signed = {name: -values if name.startswith(f"{last}.") else values for name, values in stored.items()}
    save_file(signed, tmp_path / "weights.safetensors")
    one = Registered("Signed", "2", ModelSpec(name="digits"), bring(str(tmp_path)), "", 0)
    deployed = deploy(triton_server, one)
    assert deployed.version.replicas[0].model == deployed.spec.name == "signed_v2"
    assert np.array_equal(logits(triton_server, "signed_v2"), -logits(triton_server, PLAIN.name))
    triton_server.unload("signed_v2")
