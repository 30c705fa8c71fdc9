"""Somebody else's server of Replicate's predictions API: whether it answers, and takes the key. Not tried on the live
service.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException

from lab import credentials
from lab.serve import direct
from lab.serve.elsewhere import CALL_LIMIT_S, Elsewhere


class ReplicateServer(Elsewhere):
    """The server at "replicate+https://api.replicate.com"; one that wants a key says so."""

    def version(self) -> str:
        return "Replicate's API, version not told; not verified against the live service"

    def why_not(self) -> str | None:
        opener = direct.opener()
        url = f"{self.http_url}/v1/account"
        try:
            asked = urllib.request.Request(url, headers=credentials.headers())  # noqa: S310  http, by address.py
            with opener.open(asked, timeout=CALL_LIMIT_S) as answer:
                told = json.load(answer)
            return None if "username" in told else f"{url} gives no account"
        except urllib.error.HTTPError as error:
            needs = "; it wants a key, which LAB_API_KEY holds" if error.code in (401, 403) else ""
            return f"{url} answered {error.code}{needs}"
        except (OSError, HTTPException, ValueError, TypeError) as error:
            return f"{url}: {getattr(error, 'reason', error)}"
