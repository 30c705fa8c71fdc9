"""Whether a version can answer, by the word of the gateway that would send it traffic."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from lab.errors import InputError
from lab.track.routes import Routes

LIMIT_S = 10.0


def check(routes: Routes, model: str, version: str) -> None:
    """InputError for one that is not ready. Where no gateway runs, or it does not say, nothing is known against it."""
    url = routes.gateway()
    told = None if url is None else _health(f"{url}/healthz/{quote(model)}")
    if told is None:
        return
    with suppress(LookupError, TypeError):  # of a version that the gateway has not seen yet
        found = told["models"][model]["versions"][version]
        if not found["ready"]:
            raise InputError(f"version {version} of {model} is not ready: {found['reason']}; deploy it, and then move")


def _health(url: str) -> Any:
    try:
        with urlopen(url, timeout=LIMIT_S) as answer:  # noqa: S310  our own gateway's
            return json.load(answer)
    except HTTPError as error:  # 503 is an answer too
        with suppress(ValueError), error:
            return json.load(error)
    except (OSError, ValueError):
        pass
    return None
