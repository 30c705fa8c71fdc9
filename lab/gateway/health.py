"""Whether each model can answer: by its replicas' own word, and where the lab's Triton serves it by its processes too,
since Triton calls a model ready whose process is dead (lab/serve/health.py)."""

from __future__ import annotations

import asyncio
from typing import Any

from lab.errors import LabError
from lab.gateway.core import Gateway
from lab.gateway.refusals import Refusal
from lab.serve.triton import Server
from lab.track.routing import LAB, Replica

LIMIT_S = 5.0


async def health(gateway: Gateway, model: str | None = None) -> dict[str, Any]:
    """{"ready", "models": {name: {"ready", "versions": {version: {"ready", "weight", "reason"}}}}}. A model is ready
    when every version that requests are drawn for has a replica that is."""
    routes = gateway.routes.by_name
    chosen = routes if model is None else {model: routes[model]}
    replicas = {r for route in chosen.values() for v in route.versions for r in v.replicas}
    dead = await asyncio.to_thread(_dead_models)
    reasons = dict(zip(replicas, await asyncio.gather(*(_why_not(gateway, r, dead) for r in replicas)), strict=True))
    models: dict[str, Any] = {}
    for name, route in chosen.items():
        versions = {}
        for version in route.versions:
            why = [reasons[replica] for replica in version.replicas]
            ready = None in why
            versions[version.version] = {
                "ready": ready,
                "weight": version.weight,
                "reason": None if ready else "; ".join(str(reason) for reason in why),
            }
        ready = all(versions[v.version]["ready"] for v in route.versions if v.weight > 0)
        models[name] = {"ready": ready, "versions": versions}
    whole = all(found["ready"] for found in models.values()) and gateway.problem is None and gateway.absent is None
    return {"ready": whole, "problem": gateway.problem or gateway.absent, "models": models}


async def _why_not(gateway: Gateway, replica: Replica, dead: dict[tuple[str, str], str]) -> str | None:
    residency = gateway.residency
    if residency is not None and residency.places().get(replica.model, "resident") != "resident":
        return None  # it is loaded when it is asked for
    if (replica.url, replica.model) in dead:
        return dead[replica.url, replica.model]
    try:
        async with asyncio.timeout(LIMIT_S):
            upstream = await gateway.upstream(replica.url)
            return None if await upstream.is_ready(replica.model) else f"{replica.model} is not ready at {replica.url}"
    except Refusal as refusal:
        return str(refusal)
    except TimeoutError:
        return f"{replica.url} does not answer"


def _dead_models() -> dict[tuple[str, str], str]:
    """Models of the lab's own Triton whose process is gone: (url, model) to the reason."""
    try:
        server = Server.attach()
        if server is None:
            return {}
        with server:
            return {(LAB, state.name): state.reason for state in server.states() if not state.ready and state.reason}
    except LabError:
        return {}
