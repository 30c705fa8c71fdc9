"""An OpenAI-compatible server that keeps to a timetable: what a meter should read from it is known beforehand.

    .venv/bin/python benchmarks/timed_server.py PORT        until it is ended

Every answer's first token is sent TTFT_S after its request was read, and the others ITL_S apart, each by its own
deadline, so that a late one does not push the rest. It computes nothing: whoever shares its processor hardly slows it.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

TTFT_S, ITL_S = 0.12, 0.03
TEXT = " the"
"""One token for any tokenizer: AIPerf counts an answer's tokens by its own tokenizer, whatever the server says."""


async def complete(request: web.Request) -> web.StreamResponse:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    asked = json.loads(await request.read())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for i in range(int(asked["max_tokens"])):
        await asyncio.sleep(began_s + TTFT_S + i * ITL_S - loop.time())
        await response.write(event(choices=[{"index": 0, "text": TEXT, "finish_reason": None}]))
    await response.write(event(choices=[{"index": 0, "text": "", "finish_reason": "length"}]))
    counts = {"prompt_tokens": 1, "completion_tokens": int(asked["max_tokens"])}
    await response.write(event(choices=[], usage=counts))
    await response.write(b"data: [DONE]\n\n")
    return response


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps({"id": "timed", "object": "text_completion", **fields}).encode() + b"\n\n"


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})


async def health(request: web.Request) -> web.Response:
    return web.Response()


if __name__ == "__main__":
    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
