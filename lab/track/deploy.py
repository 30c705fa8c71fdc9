"""A registered version into the lab's Triton: its files checked, its model loaded under a name of its own, asked once.

Each version stands beside the others under NAME_vVERSION, so a route can be split between them, and a way back is
there as long as the older one stays loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from lab.errors import ModelError
from lab.load.payload import requests_for
from lab.run.conversation import request, stream, tensors_of
from lab.serve.triton import Server
from lab.spec import ClosedLoop, ModelSpec, Workload, parse
from lab.track.registry import Registered
from lab.track.routing import LAB, Version
from lab.track.sources import check

WARM_REQUESTS = 3
WARM_LIMIT_S = 60.0


@dataclass(frozen=True)
class Deployed:
    """`version` as a route takes it, without weight yet; `load_s` until Triton called it ready."""

    version: Version
    spec: ModelSpec
    load_s: float


def deploy(server: Server, one: Registered) -> Deployed:
    """Load and warm. ModelError when it does not load or does not answer, FetchError when its files have changed."""
    check(one.held)
    spec = spec_of(one)
    # A language model's spec names its files itself; they may have to be quantized first.
    load_s = server.load(spec, None if spec.family == "llm" else one.held.path)
    warm(server, spec)
    replica = {"url": LAB, "model": spec.name}
    version = parse(Version, {"version": one.version, "weight": 0.0, "replicas": [replica]})
    return Deployed(version, spec, load_s)


def spec_of(one: Registered) -> ModelSpec:
    """The version's spec under its own name."""
    stem = re.sub(r"[^a-z0-9_]", "_", one.name.lower())
    stem = (stem if stem[0].isalpha() else f"m_{stem}")[: 38 - len(one.version)]
    own = {"name": f"{stem}_v{one.version}", "family": one.spec.family}
    if one.spec.family == "llm":
        own["weights"] = str(one.held.path)
    return parse(ModelSpec, {**one.spec.model_dump(mode="json", exclude_unset=True), **own})


def warm(server: Server, spec: ModelSpec) -> None:
    """The first answers of a model take longer; they are nobody's."""
    if spec.family == "llm":
        for _ in stream(server.grpc_url, spec.name, request("Hello", {"max_tokens": 4, "temperature": 0.0})):
            pass
        return
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, sleep_s=(0.0,))
    client = triton.InferenceServerClient(server.grpc_url)
    try:
        for tensors in requests_for(spec, workload, WARM_REQUESTS):
            client.infer(spec.name, tensors_of(tensors), client_timeout=WARM_LIMIT_S)
    except InferenceServerException as error:
        raise ModelError(f"model {spec.name} loaded and does not answer: {error.message()}") from None
    finally:
        client.close()
