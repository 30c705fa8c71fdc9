"""What the gateway that follows the routes says: whether a version can answer, and whether a change is in force."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from lab.errors import InputError
from lab.track.routes import Routes

LIMIT_S, TAKEN_S, LOOK_S = 10.0, 10.0, 0.02


def check(routes: Routes, model: str, version: str) -> None:
    """InputError for one that is not ready. Where no gateway runs, or it does not say, nothing is known against it."""
    url = routes.gateway()
    told = None if url is None else _said(f"{url}/healthz/{quote(model)}")
    if told is None:
        return
    with suppress(LookupError, TypeError):  # of a version that the gateway has not seen yet
        found = told["models"][model]["versions"][version]
        if not found["ready"]:
            raise InputError(f"version {version} of {model} is not ready: {found['reason']}; deploy it, and then move")


def in_force(routes: Routes, model: str) -> bool:
    """Whether the gateway sends requests as the route now says, which it does within a moment; True where none runs."""
    url, until_s = routes.gateway(), time.monotonic() + TAKEN_S
    if url is None:
        return True
    wanted = routes.by_name[model].model_dump(mode="json")
    while True:
        told = _said(f"{url}/routes")
        with suppress(LookupError, TypeError):
            found = told["routes"][model]
            if all(found[name] == value for name, value in wanted.items()):
                return True
        if time.monotonic() > until_s:
            return False
        time.sleep(LOOK_S)


def _said(url: str) -> Any:
    try:
        with urlopen(url, timeout=LIMIT_S) as answer:  # noqa: S310  our own gateway's
            return json.load(answer)
    except HTTPError as error:  # 503 is an answer too
        with suppress(ValueError), error:
            return json.load(error)
    except (OSError, ValueError):
        pass
    return None
