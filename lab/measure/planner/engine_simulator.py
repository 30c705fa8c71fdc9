"""A language model's engine, step by step: which answers share a step, and what each of them waits for.

The rules are those of lab/serve/models/engine.py with a cache: first come, first served; a step writes one token for
each answer whose prompt is read, then reads at most `prefill_tokens` of the prompts that are not; "one" and "static"
let nobody in until all are through, and a static batch computes the places of those that ended. What a step takes:

    write_fixed_s + rows × write_row_s + tokens held × write_held_s        to write
    read_fixed_s + tokens × read_token_s                                   to read, when there is something to read

The clock is simulated. Preemption is not: a cache with less room than its slots is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.records import Int64s
from lab.spec import Scheduler


@dataclass(frozen=True)
class Steps:
    """Seconds of a step, see above. `outside_s`: what an answer's first token needs besides, on its way there and back;
    `spread`: samples of mean 1 that each step is multiplied with."""

    write_fixed_s: float
    write_row_s: float = 0.0
    write_held_s: float = 0.0
    read_fixed_s: float = 0.0
    read_token_s: float = 0.0
    outside_s: float = 0.0
    spread: tuple[float, ...] = (1.0,)

    def scaled(self, fixed: float = 1.0, row: float = 1.0, held: float = 1.0, read: float = 1.0) -> Steps:
        """The same engine when these parts of a step take so many times as long."""
        return replace(
            self,
            write_fixed_s=self.write_fixed_s * fixed,
            write_row_s=self.write_row_s * row,
            write_held_s=self.write_held_s * held,
            read_fixed_s=self.read_fixed_s * fixed,
            read_token_s=self.read_token_s * read,
        )


@dataclass(frozen=True)
class EngineRules:
    scheduler: Scheduler = "continuous"
    max_batch_size: int = 8
    prefill_tokens: int = 512


@dataclass(frozen=True)
class Asked:
    """What comes: seconds of arrival (ascending; all 0 with `users`), tokens of each prompt and answer."""

    due_s: Floats
    prompt_tokens: Int64s
    output_tokens: Int64s
    users: int | None = None  # a closed loop of so many, each asking for the next when answered


@dataclass(frozen=True)
class Written:
    """One entry a request, seconds; `steps`: (seconds, answers in it) of each step that wrote."""

    due_s: Floats
    first_s: Floats
    done_s: Floats
    output_tokens: Int64s
    steps: tuple[tuple[float, int], ...]

    @property
    def ttft_s(self) -> Floats:
        return self.first_s - self.due_s

    @property
    def latency_s(self) -> Floats:
        return self.done_s - self.due_s

    @property
    def itl_s(self) -> Floats:
        """NaN for an answer of one token."""
        later = np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)
        return np.asarray((self.done_s - self.first_s) / later, float)


@dataclass
class _Answer:
    number: int
    unread: int
    held: int
    left: int


def simulate_engine(asked: Asked, rules: EngineRules, steps: Steps, *, seed: int = 0) -> Written:
    """Answers them all. InputError where a count is below 1."""
    if rules.max_batch_size < 1 or rules.prefill_tokens < 1:
        raise InputError(
            f"max_batch_size {rules.max_batch_size}, prefill_tokens {rules.prefill_tokens}: allowed is 1 or more"
        )
    if len(asked.due_s) and min(asked.prompt_tokens.min(), asked.output_tokens.min()) < 1:
        raise InputError("a prompt or an answer of no token: allowed is 1 or more")
    return _Engine(asked, rules, steps, np.random.default_rng(seed)).run()


class _Engine:
    def __init__(self, asked: Asked, rules: EngineRules, steps: Steps, rng: np.random.Generator) -> None:
        self._asked, self._rules, self._steps = asked, rules, steps
        self._slots = 1 if rules.scheduler == "one" else rules.max_batch_size
        self._rng = rng
        self._drawn: Iterator[float] = iter(())
        n = len(asked.due_s)
        self._due = asked.due_s.astype(float).copy()
        self._first, self._done = np.full(n, np.nan), np.full(n, np.nan)
        self._coming: deque[int] = deque(range(n if asked.users is None else min(asked.users, n)))
        self._later: deque[int] = deque(range(len(self._coming), n))
        self._running: list[_Answer] = []
        self._static_rows = 0
        self._now = 0.0
        self._log: list[tuple[float, int]] = []

    def run(self) -> Written:
        there_s = self._steps.outside_s / 2
        while self._running or self._coming:
            if not self._running:
                self._now = max(self._now, self._due[self._coming[0]] + there_s)
            self._admit(there_s)
            self._write()
            self._read()
        return Written(self._due, self._first, self._done, self._asked.output_tokens, tuple(self._log))

    def _admit(self, there_s: float) -> None:
        if self._running and self._rules.scheduler != "continuous":
            return
        while self._coming and len(self._running) < self._slots:
            number = self._coming[0]
            if self._due[number] + there_s > self._now:
                break
            self._coming.popleft()
            prompt, output = int(self._asked.prompt_tokens[number]), int(self._asked.output_tokens[number])
            self._running.append(_Answer(number, prompt, 0, output))
        self._static_rows = len(self._running) if self._rules.scheduler == "static" else 0

    def _write(self) -> None:
        ready = [answer for answer in self._running if not answer.unread]
        if not ready:
            return
        rows, held = max(len(ready), self._static_rows), sum(answer.held for answer in ready)
        s = self._steps
        took_s = self._some(s.write_fixed_s + rows * s.write_row_s + held * s.write_held_s)
        self._now += took_s
        self._log.append((took_s, len(ready)))
        for answer in ready:
            answer.held += 1
            self._give(answer)

    def _read(self) -> None:
        budget = self._rules.prefill_tokens
        read: list[_Answer] = []
        for answer in sorted(self._running, key=lambda answer: answer.number):
            if answer.unread and budget:
                take = min(answer.unread, budget)
                answer.unread -= take
                answer.held += take
                budget -= take
                read.append(answer)
        if not read:
            return
        tokens = self._rules.prefill_tokens - budget
        self._now += self._some(self._steps.read_fixed_s + tokens * self._steps.read_token_s)
        for answer in read:
            if not answer.unread:
                self._give(answer)

    def _give(self, answer: _Answer) -> None:
        """One token more for it, now."""
        back_s = self._now + self._steps.outside_s / 2
        answer.left -= 1
        if np.isnan(self._first[answer.number]):
            self._first[answer.number] = back_s
        if answer.left == 0:
            self._done[answer.number] = back_s
            self._running.remove(answer)
            if self._later:
                following = self._later.popleft()
                self._due[following] = back_s
                self._coming.append(following)

    def _some(self, seconds: float) -> float:
        factor = next(self._drawn, None)
        if factor is None:
            self._drawn = iter(self._rng.choice(self._steps.spread, 4096).tolist())
            factor = next(self._drawn)
        return seconds * factor


def fit_steps(seen: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """(write_fixed_s, write_row_s, write_held_s) by least squares with no part negative, from blocks' (seconds of a
    step, answers that shared it, tokens they held), means each. With fewer than three blocks of different kinds, parts
    that cannot be told apart are 0. InputError without any."""
    if not seen:
        raise InputError("no block says how long its steps took: nothing to calibrate on")
    from scipy.optimize import nnls  # a second of imports that only a planner needs

    seconds, rows, held = (np.array(column, float) for column in zip(*seen, strict=True))
    # Tokens held are counted in hundreds, so that the columns are of like size; a relative error counts alike.
    columns = np.stack([np.ones_like(rows), rows, held / 100], axis=1)
    distinct = [True, len(set(rows)) > 1, len(set(zip(rows, held, strict=True))) > 2]
    found = np.zeros(3)
    found[distinct], _ = nnls(columns[:, distinct] / seconds[:, None], np.ones_like(seconds))
    return float(found[0]), float(found[1]), float(found[2] / 100)
