"""Somebody else's server of which the lab knows only whether it answers: it controls nothing there and reads no
counters. Which models it has shows when the first request is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from lab.serve.address import address, unreachable
from lab.serve.health import ModelState

CALL_LIMIT_S = 10.0


class Elsewhere(ABC):
    """The server at "KIND+http://HOST:PORT". ServerError, which says who answers there, when it is none of its kind."""

    managed = None
    pid = None
    metrics_url = None

    def __init__(self, url: str) -> None:
        self._address = address(url)
        self.called = self._address.url
        scheme = self._address.scheme.partition("+")[2]
        self.http_url = self.grpc_url = f"{scheme}://{self._address.host}:{self._address.port}"
        if (reason := self.why_not()) is not None:
            raise unreachable(self._address, reason)

    @abstractmethod
    def version(self) -> str:
        """What it is, as runs keep it."""

    @abstractmethod
    def why_not(self) -> str | None:
        """Why it does not answer as its kind does, in one line; None: it does."""

    def states(self) -> list[ModelState]:
        """Unknown here, so none."""
        return []

    def alive(self) -> bool:
        return self.why_not() is None

    def died(self) -> str | None:
        return self.why_not()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None
