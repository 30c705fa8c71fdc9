"""Somebody else's TorchServe. Its models stand on another port (its management API), which need not be open."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException

from lab.serve import direct
from lab.serve.elsewhere import CALL_LIMIT_S, Elsewhere


class TorchServeServer(Elsewhere):
    """The server at "torchserve+http://HOST:PORT"."""

    def version(self) -> str:
        return "TorchServe, version not told"

    def why_not(self) -> str | None:
        opener = direct.opener()
        url = f"{self.http_url}/ping"
        try:
            with opener.open(url, timeout=CALL_LIMIT_S) as answer:
                status = json.load(answer)["status"]
            return None if status in ("Healthy", "Partial Healthy") else f"{url} says {status!r}"
        except urllib.error.HTTPError as error:
            return f"{url} answered {error.code}"
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            return f"{url}: {getattr(error, 'reason', error)}"
