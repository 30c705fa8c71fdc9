"""Costly things that tests use one after the other: a load generator, a server, a browser.

A test that fails may leave such a thing in any state (a block that runs, a stream that is open). The next test then
gets another one, so that one fault is one failed test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, TypeVar

import pytest

T = TypeVar("T")
FAILED = pytest.StashKey[bool]()
"""Set on a test's item by tests/conftest.py once its setup or its body has failed."""


class Lasting(Generic[T]):
    """What `make` makes, from its first use until it is no longer `sound`, a test fails with it, or `close`."""

    def __init__(self, make: Callable[[], AbstractContextManager[T]], sound: Callable[[T], bool] = lambda _: True):
        self._make, self._sound = make, sound
        self._ends = ExitStack()
        self._made: list[T] = []

    def lend(self, request: pytest.FixtureRequest) -> Iterator[T]:
        """For a fixture of one test: `yield from lasting.lend(request)`."""
        if self._made and not self._sound(self._made[0]):
            self.close()
        if not self._made:
            self._made.append(self._ends.enter_context(self._make()))
        yield self._made[0]
        if failed(request.node):
            self.close()

    def close(self) -> None:
        self._made.clear()
        self._ends.close()

    def __enter__(self) -> Lasting[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def failed(item: Any) -> bool:
    """Whether this test has failed so far; to be asked where its fixtures end."""
    return bool(item.stash.get(FAILED, False))
