"""HTTP straight to the server that was given: past any proxy of the environment, and with no redirect followed, which
would take a key along to whomever it names."""

from __future__ import annotations

import urllib.request
from typing import Any


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None: the answer stays what it is, an error with its status."""


def opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)
