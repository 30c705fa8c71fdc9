"""The gateway's paths.

    POST /v1/completions  /v1/chat/completions  /v1/embeddings      OpenAI's, JSON and server-sent events
    WS   /v1/stream          the same bodies as messages, chunks as messages; {"cancel": true} ends an answer
    POST /predict/{model}    {"inputs": {NAME: nested lists}} → {"outputs": {NAME: nested lists}}
    POST /v1/feedback        {"id": X-Request-Id of an answer, "score": 0 to 1}: how good it was, for the guard
    GET  /v1/models  /v1/models/{model}  /healthz  /healthz/{model}  /metrics  /routes

Of a request: X-Request-Id (made here unless given), X-Sticky-Key or `user` (the same version each time),
X-Model-Version (that one), X-Request-Timeout (seconds). Of an answer: X-Request-Id, and X-Model-Version where a version
was asked. Other headers go no further, a client's key among them. Routes are read only here: they are changed where
they stand (lab/track/rollout.py), never over HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from lab.gateway import bodies
from lab.gateway.asking import named, over_http, whole_body
from lab.gateway.core import Gateway
from lab.gateway.edge import Edge
from lab.gateway.health import health
from lab.gateway.refusals import Refusal, broken, wrong
from lab.gateway.websocket import converse

BEGAN = int(time.time())
PREDICT = "/predict/"

Answers = Callable[[Request], Awaitable[Response]]


def make_app(gateway: Gateway, edge: Edge) -> Front:
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

    posts: dict[str, Answers] = {
        "/v1/completions": completions,
        "/v1/chat/completions": chat,
        "/v1/embeddings": embeddings,
        "/v1/feedback": feedback,
    }
    for path, answers in {**posts, f"{PREDICT}{{model:path}}": predict}.items():
        app.add_route(path, answers, ["POST"])

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

    return Front(app, posts, predict, gateway)


class Front:
    """The paths that are asked most go straight to who answers them: FastAPI's search for the route and its layers
    around it would take longer than all that is done here. Everything else, and every other method, is FastAPI's.
    What was answered here is counted by path and status, also what never came as far as a version."""

    def __init__(self, rest: FastAPI, posts: Mapping[str, Answers], predict: Answers, gateway: Gateway) -> None:
        self._rest, self._posts, self._predict, self._gateway = rest, posts, predict, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = self._answers(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if answers is None:
            await self._rest(scope, receive, send)
            return
        request = Request(scope, receive)
        fault: Exception | None = None
        try:
            response = await answers(request)
        except Refusal as refusal:
            response = await _refused(request, refusal)
        except Exception as error:  # noqa: BLE001  raised below
            fault, response = error, await _broken(request, error)
        try:
            await response(scope, receive, send)
        finally:
            path = PREDICT.rstrip("/") if answers is self._predict else scope["path"]
            self._gateway.metrics.responses.add((path, str(response.status_code)))
        if fault is not None:
            raise fault  # to the server's log

    def _answers(self, scope: Scope) -> Answers | None:
        path: str = scope["path"]
        if path.startswith(PREDICT) and len(path) > len(PREDICT):
            scope["path_params"] = {"model": path.removeprefix(PREDICT)}
            return self._predict
        return self._posts.get(path)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": BEGAN, "owned_by": "serving-lab"}


def _health(found: dict[str, Any]) -> Response:
    return JSONResponse(found, status_code=200 if found["ready"] else 503)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101  what it is registered for
    headers = {**error.headers(), "X-Request-Id": named(request.headers.get)}
    return JSONResponse(error.body, status_code=error.status, headers=headers)


async def _not_here(request: Request, error: Exception) -> Response:
    """A path that there is not, or not with this method."""
    assert isinstance(error, HTTPException)  # noqa: S101  what it is registered for
    refusal = wrong(f"{request.method} {request.url.path}: {error.detail}", code="not_found", status=error.status_code)
    return JSONResponse(refusal.body, status_code=error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    return await _refused(request, broken(error))
