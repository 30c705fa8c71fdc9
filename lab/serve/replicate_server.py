"""Somebody else's server of Replicate's predictions API: whether it answers, and takes the key. Not tried on the live
service; the lab controls nothing of it and reads no counters.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from lab import credentials
from lab.serve.address import address, unreachable
from lab.serve.health import ModelState

CALL_LIMIT_S = 10.0


class ReplicateServer:
    """The server at "replicate+https://api.replicate.com". ServerError, which says who answers there, when it is none
    or wants a key."""

    managed = None
    pid = None
    metrics_url = None

    def __init__(self, url: str) -> None:
        self._address = address(url)
        self.called = self._address.url
        scheme = self._address.scheme.partition("+")[2]
        self.http_url = self.grpc_url = f"{scheme}://{self._address.host}:{self._address.port}"
        if (reason := self._why_not()) is not None:
            raise unreachable(self._address, reason)

    def version(self) -> str:
        return "Replicate's API, version not told; not verified against the live service"

    def states(self) -> list[ModelState]:
        """Thousands, so none."""
        return []

    def alive(self) -> bool:
        return self._why_not() is None

    def died(self) -> str | None:
        return self._why_not()

    def __enter__(self) -> ReplicateServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _why_not(self) -> str | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"{self.http_url}/v1/account"
        try:
            asked = urllib.request.Request(url, headers=credentials.headers())  # noqa: S310  http, by address.py
            with opener.open(asked, timeout=CALL_LIMIT_S) as answer:
                told = json.load(answer)
            return None if "username" in told else f"{url} gives no account"
        except urllib.error.HTTPError as error:
            needs = "; it wants a key, which LAB_API_KEY holds" if error.code in (401, 403) else ""
            return f"{url} answered {error.code}{needs}"
        except (OSError, ValueError, TypeError) as error:
            return f"{url}: {getattr(error, 'reason', error)}"
