"""What `Server` asks a Triton, over HTTP: for servers of which only that port can be reached.

The methods have the names, arguments, answers and errors of tritonclient.grpc's client, so that whoever asks need not
know which of the two it holds. Only what the lab asks is here.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from lab.serve import direct

DEFAULT_LIMIT_S = 10.0


class HttpClient:
    """`base` is "http://HOST:PORT"."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._opener = direct.opener()

    def is_server_live(self, client_timeout: float | None = None) -> bool:
        self._call("health/live", limit_s=client_timeout)
        return True

    def is_model_ready(self, name: str, client_timeout: float | None = None) -> bool:
        try:
            self._call(f"models/{quote(name, safe='')}/ready", limit_s=client_timeout)
        except InferenceServerException as error:
            if error.status() == "400":
                return False
            raise
        return True

    def get_server_metadata(self, client_timeout: float | None = None) -> Any:
        return self._parsed(self._call("", limit_s=client_timeout), service_pb2.ServerMetadataResponse())

    def get_model_metadata(self, name: str, *, as_json: bool = False, client_timeout: float | None = None) -> Any:
        found = self._call(f"models/{quote(name, safe='')}", limit_s=client_timeout)
        return found if as_json else self._parsed(found, service_pb2.ModelMetadataResponse())

    def get_model_config(self, name: str, *, as_json: bool = False, client_timeout: float | None = None) -> Any:
        found = {"config": self._call(f"models/{quote(name, safe='')}/config", limit_s=client_timeout)}
        return found if as_json else self._parsed(found, service_pb2.ModelConfigResponse())

    def get_model_repository_index(self, *, as_json: bool = False, client_timeout: float | None = None) -> Any:
        found = {"models": self._call("repository/index", body={}, limit_s=client_timeout)}
        return found if as_json else self._parsed(found, service_pb2.RepositoryIndexResponse())

    def get_inference_statistics(self, name: str, *, client_timeout: float | None = None) -> Any:
        found = self._call(f"models/{quote(name, safe='')}/stats", limit_s=client_timeout)
        return self._parsed(found, service_pb2.ModelStatisticsResponse())

    def load_model(self, name: str, *, config: str | None = None, client_timeout: float | None = None) -> None:
        body = {} if config is None else {"parameters": {"config": config}}
        self._call(f"repository/models/{quote(name, safe='')}/load", body=body, limit_s=client_timeout)

    def unload_model(self, name: str, *, client_timeout: float | None = None) -> None:
        self._call(f"repository/models/{quote(name, safe='')}/unload", body={}, limit_s=client_timeout)

    def close(self) -> None:
        """Nothing is kept open."""

    def _call(self, path: str, *, body: dict[str, Any] | None = None, limit_s: float | None = None) -> Any:
        """The answer's JSON, {} of an empty one; InferenceServerException with the server's words."""
        url = f"{self._base}/v2/{path}" if path else f"{self._base}/v2"
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  http, by address.py
        try:
            with self._opener.open(asked, timeout=limit_s or DEFAULT_LIMIT_S) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise InferenceServerException(_error_of(error.read()) or str(error), status=str(error.code)) from None
        except (OSError, ValueError, HTTPException) as error:
            raise InferenceServerException(f"{url}: {getattr(error, 'reason', error)}") from None

    def _parsed(self, found: Any, message: Any) -> Any:
        try:
            return json_format.ParseDict(found, message, ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise InferenceServerException(f"{self._base}: an answer that is not Triton's: {error}") from None


def _error_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
