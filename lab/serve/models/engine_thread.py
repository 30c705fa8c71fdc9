"""An engine at work in a thread of its own, for callers in others: submit, be called for every token, cancel.

The engine is touched by its thread only. A step that fails ends the requests of that moment with its error and leaves
the engine serving; a receiver that fails loses its own request and nobody else's.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .engine import Engine
from .request import Counters, Output

Receiver = Callable[[Output], None]
"""Called in the engine's thread, so it must not take long: every running request waits for it."""


class EngineThread:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count(1)
        self._receivers: dict[str, Receiver] = {}
        self._inbox: list[Callable[[], None]] = []
        self._counters = replace(engine.counters)
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: str | Sequence[int], parameters: Mapping[str, Any], receive: Receiver) -> str:
        """Queues a request and returns its id. `receive` gets every output; the last has a finish_reason.

        ValueError at once when the request is wrong; RuntimeError after `close`.
        """
        request = self._engine.request(str(next(self._ids)), prompt, parameters)

        def add() -> None:
            self._receivers[request.id] = receive
            self._engine.add(request)

        self._tell(add)
        return request.id

    def cancel(self, id: str) -> None:
        """The request gets at most the token that is being computed, then an output with reason "cancelled".

        Nothing happens when it has ended already."""
        self._tell(lambda: self._engine.cancel(id), even_if_closed=True)

    def generate(self, prompt: str | Sequence[int], parameters: Mapping[str, Any]) -> Iterator[Output]:
        """The outputs as they come. Leaving the loop early cancels the request."""
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        id = self.submit(prompt, parameters, outputs.put)
        finished = False
        try:
            while not finished:
                output = outputs.get()
                finished = output.finish_reason is not None
                yield output
        finally:
            if not finished:
                self.cancel(id)

    def counters(self) -> Counters:
        """A copy, as of the last step."""
        with self._changed:
            return replace(self._counters)

    def close(self) -> None:
        """Cancels what is there, tells its receivers, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _tell(self, action: Callable[[], None], even_if_closed: bool = False) -> None:
        with self._changed:
            if self._closing and not even_if_closed:
                raise RuntimeError("the engine is closed")
            self._inbox.append(action)
            self._changed.notify()

    def _run(self) -> None:
        engine = self._engine
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._inbox or self._closing or engine.has_work)
                actions, self._inbox = self._inbox, []
                closing = self._closing
            for action in actions:
                action()
            if closing:
                for id in list(self._receivers):
                    engine.cancel(id)
            try:
                outputs = engine.step()
            except Exception as error:  # noqa: BLE001  the boundary: one bad step must not end serving
                outputs = engine.abandon(f"{type(error).__name__}: {error}".splitlines()[0])
            with self._changed:
                self._counters = replace(engine.counters)
            for output in outputs:
                self._deliver(output)
            if closing:
                return

    def _deliver(self, output: Output) -> None:
        receive = self._receivers[output.id]
        if output.finish_reason is not None:
            del self._receivers[output.id]
        try:
            receive(output)
        except Exception:  # noqa: BLE001  the receiver's own request ends, the others go on
            if output.finish_reason is None:
                self._engine.cancel(output.id)
                self._receivers[output.id] = lambda _: None
