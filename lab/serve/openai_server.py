"""Somebody else's OpenAI-compatible server: whether it answers and which models it has. The lab controls nothing of it.

It has no counters that are named the same from one server to the next, so there is nothing to scrape: what the client
sees is all that is measured.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from lab import credentials
from lab.errors import InputError, ServerError
from lab.serve import direct
from lab.serve.address import address, unreachable
from lab.serve.health import ModelState

CALL_LIMIT_S = 10.0
PREFIX = "openai+"
ENDINGS = ("/v1/chat/completions", "/v1/completions", "/v1")
"""How a URL's path may end, if it has one; what stands before is where a provider has put the protocol."""


class OpenAIServer:
    """The server at "openai+http://HOST:PORT", with or without "/v1" behind it. ServerError when nobody answers."""

    managed = None
    pid = None
    metrics_url = None

    def __init__(self, url: str) -> None:
        given = url[len(PREFIX) :] if url.lower().startswith(PREFIX) else url
        address(f"{PREFIX}{given}")  # refuses what is no URL at all
        parts = urlsplit(given)
        path = parts.path.rstrip("/")
        ending = next((ending for ending in ENDINGS if path.endswith(ending)), None if path else "")
        try:
            whole = parts.scheme in ("http", "https") and parts.hostname and ending is not None
            port = parts.port
        except ValueError:
            whole, port = False, None
        if not whole or ending is None or parts.query or parts.fragment:
            allowed = "openai+http://HOST:PORT, with nothing behind it or a path that ends in /v1, /v1/completions or "
            allowed += "/v1/chat/completions"
            raise InputError(f"url {url!r}: allowed is {allowed}")
        name = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        host = name if port is None else f"{name}:{port}"
        before = path.removesuffix(ending)
        self._base = f"{parts.scheme}://{host}{before}"
        self.called = f"{PREFIX}{parts.scheme}://{host}{path}"
        self.http_url = self.grpc_url = self._base + (ending if before or ending != "/v1" else "")
        try:
            self._models()
        except ServerError as error:
            raise unreachable(address(url if "+" in url else self.called), str(error)) from None

    def version(self) -> str:
        return "OpenAI-compatible, version not told"

    def states(self) -> list[ModelState]:
        """The models that it lists; all are ready, as the protocol knows nothing else."""
        return [ModelState(str(model["id"]), True, None) for model in self._models()]

    def alive(self) -> bool:
        try:
            self._models()
        except ServerError:
            return False
        return True

    def died(self) -> str | None:
        return None if self.alive() else f"{self.http_url} does not answer"

    def __enter__(self) -> OpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _models(self) -> list[dict[str, Any]]:
        opener = direct.opener()
        listed = f"{self._base}/v1/models"
        try:
            asked = urllib.request.Request(listed, headers=credentials.headers())  # noqa: S310  http, by address.py
            with opener.open(asked, timeout=CALL_LIMIT_S) as answer:
                return [{**model, "id": str(model["id"])} for model in json.load(answer)["data"]]
        except urllib.error.HTTPError as error:
            raise ServerError(f"{listed} answered {error.code}") from None
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{listed} gave no list of models: {getattr(error, 'reason', error)}") from None
