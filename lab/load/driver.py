"""One worker's share of a block: sends requests when they are due, and writes down how each of them ended.

    Driver        what both loops share: requests in flight, time limits, giving up, the end of the block
    ├── OpenLoop    arrivals come when the schedule says
    └── ClosedLoop  a user asks again when its last answer has come and it has thought for think_s

One rule for time: a request is due at its scheduled arrival and given up `timeout_s` after that, sent or not. So a
block ends at most timeout_s after its last arrival, and what waits in the client (max_in_flight, or a client that
cannot keep up) waits on its own latency. `due` never falls, so the oldest request is always the first to be given up
and one timer serves all of them. Knows nothing of processes, files, or wire formats.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from lab.load.pacer import Pacer
from lab.load.recorder import NEVER_SENT, Recorder
from lab.load.schedule import share
from lab.load.targets import INVALID, Generated, Target
from lab.load.timetable import Timetable
from lab.load.turns import Turns
from lab.measure.records import CANCELLED, ERROR, OK, TIMEOUT, Int64s

BURST = 64
"""Most requests sent before answers are read again: a client that has fallen behind must still hear the server."""

EVER_NS = 2**63 - 1

now = time.perf_counter_ns


class Driver:
    """Worker k of n has the requests k, k + n, k + 2n …; its j-th carries `messages[j]`, starting over at their end.

    `sequences[j]` is the sequence of `messages[j]`, where they belong to some (lab/load/turns.py). Give `done` to the
    target, then the target to `start`, and await `over`. Subclasses say what is sent when.
    """

    def __init__(
        self,
        *,
        duration_s: float,
        timeout_s: float,
        messages: Sequence[Any],
        recorder: Recorder,
        sequences: Sequence[int] = (),
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        self.invalid: str | None = None
        """What the server said when the block's first answer was that the request itself is wrong; ends the block."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._duration_ns = round(duration_s * 1e9)
        self._start_ns = self._end_ns = EVER_NS
        self._timeout_ns = round(timeout_s * 1e9)
        self._too_late = f"no answer within {timeout_s:g} s"
        self._messages = messages
        self._turns = Turns(sequences, workers)
        self._recorder = recorder
        self._worker, self._workers = worker, workers
        self._next = worker  # number of the next request
        self._any_ok = False
        self._in_flight: dict[int, tuple[int, int]] = {}  # number → due_ns, sent_ns; oldest first
        self._target: Target
        self._pacer = Pacer(self._on_time)
        self._limit: asyncio.TimerHandle | None = None

    def start(self, target: Target, start_ns: int) -> None:
        self._target = target
        self._start_ns = start_ns
        self._end_ns = start_ns + self._duration_ns
        self._pacer.set(self._start_ns)
        self._limit_at(self._start_ns + self._timeout_ns)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def planned(self) -> int | None:
        """Arrivals of this worker's share until the end of the block; None where users decide. Those that are not yet
        drawn count as what their rate lets expect, so it is exact once all are."""
        return None

    def cancel(self) -> None:
        """End now: nothing more is sent, and what is unanswered is recorded as cancelled."""
        if not self.over.done():
            at_ns = now()
            self._end_ns = min(self._end_ns, at_ns)
            self._give_up(EVER_NS, CANCELLED, "stopped", at_ns)
            self._finish()

    def done(
        self, number: int, outcome: int, detail: str | None, arrived_ns: int, generated: Generated | None = None
    ) -> None:
        """The target's report that a request has ended (targets.Done)."""
        times = self._in_flight.pop(number, None)
        if times is None:
            return
        if outcome == OK:
            self._any_ok = True
        elif outcome == INVALID:
            outcome = ERROR
            if not self._any_ok and self.invalid is None:
                self.invalid = detail
        self._recorder.add(number, *times, arrived_ns, outcome, detail, generated)
        if self.invalid is not None:
            self.cancel()
        else:
            if self._turns:
                self._send_following(number)
            self._after(arrived_ns)

    def _send(self, number: int, due_ns: int) -> None:
        if self._turns and not self._turns.take(number, due_ns):
            return
        self._in_flight[number] = (due_ns, now())
        self._target.send(number, self._messages[number // self._workers % len(self._messages)])

    def _send_following(self, number: int) -> None:
        """What waited for request `number` of its sequence."""
        following = self._turns.ended(number)
        if following is not None:
            self._send(*following)
            self._in_flight = dict(sorted(self._in_flight.items(), key=lambda item: item[1]))  # oldest first

    def _after(self, at_ns: int) -> None:
        """A request that was in flight has ended at `at_ns`."""
        raise NotImplementedError

    def _on_time(self) -> None:
        """The deadline that the pacer was set to has passed."""
        raise NotImplementedError

    def _waiting(self) -> deque[tuple[int, int]]:
        """(number, due_ns) of arrivals that wait in the client for a place, oldest first."""
        return deque()

    def _limit_at(self, at_ns: int) -> None:
        delay_s = max((at_ns - now()) / 1e9, 0.001)  # the loop's timers know milliseconds
        self._limit = asyncio.get_running_loop().call_later(delay_s, self._on_limit)

    def _on_limit(self) -> None:
        """Give up what is too old, and sleep until the next request can be."""
        at_ns = now()
        for _ in range(self._give_up(at_ns - self._timeout_ns, TIMEOUT, self._too_late, at_ns)):
            self._after(at_ns)
        if not self.over.done():
            oldest_ns, _ = next(iter(self._in_flight.values()), (at_ns, 0))
            waiting = [queue[0][1] for queue in (self._waiting(), self._turns.held) if queue]
            self._limit_at(min(oldest_ns, *waiting, at_ns) + self._timeout_ns)

    def _give_up(self, due_until_ns: int, outcome: int, detail: str, at_ns: int) -> int:
        """Record the unanswered requests that were due until then as ended; how many of them had been sent, or had
        waited for their turn in a sequence."""
        old = []
        for number, (due_ns, _) in self._in_flight.items():
            if due_ns > due_until_ns:
                break
            old.append(number)
        for number in old:
            times = self._in_flight.pop(number)
            self._recorder.add(number, *times, at_ns, outcome, detail, self._target.cancel(number))
        held = len(self._turns.held)
        for queue in (self._waiting(), self._turns.held):
            while queue and queue[0][1] <= due_until_ns:
                self._never_sent(*queue.popleft(), at_ns, outcome, detail)
        held -= len(self._turns.held)
        for number in old if self._turns else ():
            self._send_following(number)
        return len(old) + held

    def _never_sent(self, number: int, due_ns: int, at_ns: int, outcome: int, detail: str) -> None:
        self._recorder.add(number, due_ns, NEVER_SENT, at_ns, outcome, f"never sent, {detail}")

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
            self._pacer.close()
            if self._limit is not None:
                self._limit.cancel()


class OpenLoop(Driver):
    """Sends at the times of `schedule`: the arrivals of *all* workers in chunks, offsets in ns from the start, of which
    this worker takes its own. They are drawn a little ahead of their time, so `rate_rps` says how many the rest will
    be. `max_in_flight` is this worker's cap: an arrival above it waits, and its latency runs."""

    def __init__(
        self, *, schedule: Iterable[Int64s], rate_rps: float = 0.0, max_in_flight: int | None = None, **share: Any
    ) -> None:
        super().__init__(**share)
        self._table = Timetable(schedule, rate_rps)
        self._cap = max_in_flight
        self._backlog: deque[tuple[int, int]] = deque()

    @property
    def planned(self) -> int:
        return share(self._table.planned(self._duration_ns), self._worker, self._workers)

    def change_schedule(self, at_ns: int, schedule: Iterable[Int64s], rate_rps: float = 0.0) -> None:
        """Replace the arrivals from `at_ns` on by `schedule`, offsets from at_ns."""
        self._table.change(at_ns - self._start_ns, schedule, rate_rps)
        self._table.draw_ahead(self._next, now() - self._start_ns)
        if not self.over.done():
            self._pacer.set(now())

    def cancel(self) -> None:
        table = self._table
        table.end(now() - self._start_ns)
        due = range(self._next, table.drawn, self._workers)
        self._backlog.extend((number, self._start_ns + table.due[number - table.first]) for number in due)
        self._next = due.stop
        super().cancel()

    def _on_time(self) -> None:
        table = self._table
        due, first = table.due, table.first
        for _ in range(BURST):
            if self._next >= table.drawn:
                break
            number = self._next
            due_ns = self._start_ns + due[number - first]
            at_ns = now()
            if due_ns > at_ns:
                break
            self._next = number + self._workers
            if at_ns - due_ns >= self._timeout_ns:
                self._never_sent(number, due_ns, at_ns, TIMEOUT, self._too_late)
            elif self._cap is not None and len(self._in_flight) >= self._cap:
                self._backlog.append((number, due_ns))
            else:
                self._send(number, due_ns)
        if self._next >= table.draw_at:
            table.draw_ahead(self._next, now() - self._start_ns)
        if self._next < table.drawn:
            self._pacer.set(self._start_ns + due[self._next - table.first])
        elif now() < self._end_ns:
            self._pacer.set(self._end_ns)
        else:
            self._finish_when_idle()

    def _after(self, at_ns: int) -> None:
        if self._backlog and (self._cap is None or len(self._in_flight) < self._cap):
            self._send(*self._backlog.popleft())
        elif not self._in_flight:
            self._finish_when_idle()

    def _finish_when_idle(self) -> None:
        if not self._in_flight and self._next >= self._table.drawn and now() >= self._end_ns:
            self._finish()

    def _waiting(self) -> deque[tuple[int, int]]:
        return self._backlog


class ClosedLoop(Driver):
    """`users` of this worker, each with one request at a time, due when the user is ready to send it."""

    def __init__(self, *, users: int, think_s: float = 0.0, **share: Any) -> None:
        super().__init__(**share)
        self._users = users
        self._begun = False
        self._present = 0  # users who wait or think; above `users` until those too many have had their answer
        self._think_ns = round(think_s * 1e9)
        self._ready_ns: deque[int] = deque()  # when the thinking users will be ready, soonest first

    def change_users(self, users: int) -> None:
        """New users ask at once; those too many leave with their next answer."""
        self._users = users
        if self._start_ns <= now() < self._end_ns:
            self._fill(now())

    def _fill(self, due_ns: int) -> None:
        while self._present < self._users:
            self._present += 1
            self._ask(due_ns)

    def _ask(self, due_ns: int) -> None:
        number = self._next
        self._next = number + self._workers
        self._send(number, due_ns)

    def _after(self, at_ns: int) -> None:
        ready_ns = at_ns + self._think_ns
        if ready_ns >= self._end_ns or self._present > self._users:
            self._leave()
        elif self._think_ns:
            self._ready_ns.append(ready_ns)
            if len(self._ready_ns) == 1:
                self._pacer.set(ready_ns)
        else:
            self._ask(at_ns)

    def _on_time(self) -> None:
        at_ns = now()
        if not self._begun and at_ns < self._end_ns:
            self._begun = True
            self._fill(self._start_ns)
        while self._ready_ns and self._ready_ns[0] <= at_ns:
            ready_ns = self._ready_ns.popleft()
            if self._present > self._users:
                self._leave()
            else:
                self._ask(ready_ns)
        if at_ns < self._end_ns:
            self._pacer.set(self._ready_ns[0] if self._ready_ns else self._end_ns)
        else:
            self._finish_when_empty()

    def _leave(self) -> None:
        self._present -= 1
        self._finish_when_empty()

    def _finish_when_empty(self) -> None:
        if self._present == 0 and now() >= self._end_ns:
            self._finish()
