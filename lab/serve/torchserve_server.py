"""Somebody else's TorchServe: whether it answers. The lab controls nothing of it, and reads no counters.

Which models it has stands on another port (its management API), which need not be open; a model that is not there
shows when the first request is refused.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from lab.serve.address import address, unreachable
from lab.serve.health import ModelState

CALL_LIMIT_S = 10.0


class TorchServeServer:
    """The server at "torchserve+http://HOST:PORT". ServerError, which says who answers there, when it is none."""

    managed = None
    pid = None
    metrics_url = None

    def __init__(self, url: str) -> None:
        self._address = address(url)
        self.called = self._address.url
        self.http_url = self.grpc_url = f"http://{self._address.host}:{self._address.port}"
        if (reason := self._why_not()) is not None:
            raise unreachable(self._address, reason)

    def version(self) -> str:
        return "TorchServe, version not told"

    def states(self) -> list[ModelState]:
        """Unknown here, so none."""
        return []

    def alive(self) -> bool:
        return self._why_not() is None

    def died(self) -> str | None:
        return self._why_not()

    def __enter__(self) -> TorchServeServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _why_not(self) -> str | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"{self.http_url}/ping"
        try:
            with opener.open(url, timeout=CALL_LIMIT_S) as answer:
                status = json.load(answer)["status"]
            return None if status in ("Healthy", "Partial Healthy") else f"{url} says {status!r}"
        except urllib.error.HTTPError as error:
            return f"{url} answered {error.code}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{url}: {getattr(error, 'reason', error)}"
