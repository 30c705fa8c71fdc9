"""The gateway's paths.

    POST /v1/completions  /v1/chat/completions  /v1/embeddings      OpenAI's, JSON and server-sent events
    WS   /v1/stream          the same bodies as messages, chunks as messages; {"cancel": true} ends an answer
    POST /predict/{model}    {"inputs": {NAME: nested lists}} → {"outputs": {NAME: nested lists}}
    POST /v1/feedback        {"id": X-Request-Id of an answer, "score": 0 to 1}: how good it was, for the guard
    GET  /v1/models  /v1/models/{model}  /healthz  /healthz/{model}  /metrics  /routes

Of a request: X-Request-Id (made here unless given), X-Sticky-Key or `user` (the same version each time),
X-Model-Version (that one), X-Request-Timeout (seconds). Of an answer: X-Request-Id, X-Model-Version. Routes are read
only here: they are changed where they stand (lab/track/rollout.py), never over HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from lab.errors import LabError
from lab.gateway import bodies
from lab.gateway.asking import over_http, whole_body
from lab.gateway.core import Gateway
from lab.gateway.edge import Edge
from lab.gateway.health import health
from lab.gateway.refusals import Refusal, wrong
from lab.gateway.websocket import converse

BEGAN = int(time.time())


def make_app(gateway: Gateway, edge: Edge) -> FastAPI:
    """The ASGI application; it opens the gateway at its start and closes it at its end."""

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        await gateway.open()
        yield
        await gateway.close()

    app = FastAPI(title="Serving lab gateway", lifespan=alive, docs_url=None, redoc_url=None)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _not_here)
    app.add_exception_handler(Exception, _broken)

    async def completions(request: Request) -> Response:
        return await edge.generate(await over_http(request, gateway), chat=False)

    async def chat(request: Request) -> Response:
        return await edge.generate(await over_http(request, gateway), chat=True)

    async def embeddings(request: Request) -> Response:
        return await edge.embed(await over_http(request, gateway))

    async def predict(request: Request) -> Response:
        return await edge.predict(await over_http(request, gateway, request.path_params["model"]))

    async def feedback(request: Request) -> Response:
        given = bodies.read(
            bodies.Score, bodies.json_object(await whole_body(request, gateway.settings.body_limit_bytes))
        )
        gateway.score(given.id, given.score)
        return JSONResponse({"id": given.id, "score": given.score})

    # Plain routes: their bodies are read and checked here, and what FastAPI would do for each request is not free.
    app.add_route("/v1/completions", completions, ["POST"])
    app.add_route("/v1/chat/completions", chat, ["POST"])
    app.add_route("/v1/embeddings", embeddings, ["POST"])
    app.add_route("/predict/{model:path}", predict, ["POST"])
    app.add_route("/v1/feedback", feedback, ["POST"])

    @app.websocket("/v1/stream")
    async def stream(socket: WebSocket) -> None:
        await converse(socket, gateway, edge)

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [_model(name) for name in gateway.routes.by_name]}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Any:
        return _model(gateway.route(model).model)

    @app.get("/healthz")
    async def all_healthy() -> Response:
        return _health(await health(gateway))

    @app.get("/healthz/{model:path}")
    async def healthy(model: str) -> Response:
        return _health(await health(gateway, gateway.route(model).model))

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(gateway.metrics.text(gateway.in_flight), media_type="text/plain; version=0.0.4")

    @app.get("/routes")
    async def routes() -> Any:
        return gateway.told()

    return app


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": BEGAN, "owned_by": "serving-lab"}


def _health(found: dict[str, Any]) -> Response:
    return JSONResponse(found, status_code=200 if found["ready"] else 503)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101  what it is registered for
    return JSONResponse(error.body, status_code=error.status, headers=error.headers())


async def _not_here(request: Request, error: Exception) -> Response:
    """A path that there is not, or not with this method."""
    assert isinstance(error, HTTPException)  # noqa: S101  what it is registered for
    refusal = wrong(f"{request.method} {request.url.path}: {error.detail}", code="not_found", status=error.status_code)
    return JSONResponse(refusal.body, status_code=error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    said = str(error) if isinstance(error, LabError) else type(error).__name__
    refusal = Refusal(500, f"the gateway failed: {said}", code="failed")
    return JSONResponse(refusal.body, status_code=500)
