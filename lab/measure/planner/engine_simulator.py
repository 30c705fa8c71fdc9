"""A language model's engine, step by step: which answers share a step, and what each of them waits for.

The rules are those of lab/serve/models/engine.py with a cache: first come, first served; a step writes one token for
each answer whose prompt is read, then reads at most `prefill_tokens` of the prompts that are not, and what it gave
leaves at its end; "one" and "static" let nobody in until all are through, and a static batch computes the places of
those that ended. What a step takes is in steps.py.

Between two changes of who runs, steps differ only by the tokens that were written meanwhile, so they are computed
together. The clock is simulated. Preemption is not: a cache with less room than its slots is refused.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.queueing import Routing
from lab.measure.planner.steps import Steps
from lab.measure.records import Int64s
from lab.spec import Scheduler


@dataclass(frozen=True)
class EngineRules:
    """Of each replica; a router in front of several gives each request to one of them when it comes."""

    scheduler: Scheduler = "continuous"
    max_batch_size: int = 8
    prefill_tokens: int = 512
    replicas: int = 1
    routing: Routing = "round_robin"


@dataclass(frozen=True)
class Asked:
    """What comes: seconds of arrival (ascending; all 0 with `users`), tokens of each prompt and answer."""

    due_s: Floats
    prompt_tokens: Int64s
    output_tokens: Int64s
    users: int | None = None  # a closed loop of so many, each asking for the next when answered


@dataclass(frozen=True)
class Written:
    """One entry a request, seconds; `start_s`: when it got its place; `stretches`: (seconds, answers in a step, steps)
    of each row of steps that wrote for the same answers, `read_s` what all steps that read took; `most_held`: tokens
    that one replica's cache held at a time."""

    due_s: Floats
    first_s: Floats
    done_s: Floats
    output_tokens: Int64s
    start_s: Floats
    stretches: tuple[tuple[float, int, int], ...]
    read_s: float = 0.0
    most_held: int = 0

    @property
    def batch_mean(self) -> float | None:
        """Answers that shared a step, mean over steps."""
        steps = sum(count for _, _, count in self.stretches)
        return sum(rows * count for _, rows, count in self.stretches) / steps if steps else None

    @property
    def busy_s(self) -> float:
        """What all steps took, of all replicas."""
        return self.read_s + sum(seconds for seconds, _, _ in self.stretches)

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
    """Answers them all. InputError where a count is below 1, and for users of several replicas."""
    if min(rules.max_batch_size, rules.prefill_tokens, rules.replicas) < 1:
        raise InputError(
            f"max_batch_size {rules.max_batch_size}, prefill_tokens {rules.prefill_tokens}, replicas {rules.replicas}: "
            "allowed is 1 or more"
        )
    if len(asked.due_s) and min(asked.prompt_tokens.min(), asked.output_tokens.min()) < 1:
        raise InputError("a prompt or an answer of no token: allowed is 1 or more")
    if asked.users is not None and rules.replicas > 1:
        raise InputError(f"replicas {rules.replicas} with users who wait for their answer: allowed is 1")
    rng = np.random.default_rng(seed)
    log = _Log(asked)
    engines = [_Engine(log, rules, steps, rng) for _ in range(rules.replicas)]
    if asked.users is not None:
        engines[0].users(asked.users)
    else:
        _spread(log, engines, rules.routing, rng)
    for engine in engines:
        engine.advance(np.inf)
    return Written(
        np.array(log.due_s, float),
        np.array(log.first_s, float),
        np.array(log.done_s, float),
        asked.output_tokens,
        np.array(log.start_s, float),
        tuple(stretch for engine in engines for stretch in engine.stretches),
        sum(engine.read_s for engine in engines),
        max((engine.most_held for engine in engines), default=0),
    )


def _spread(log: _Log, engines: Sequence[_Engine], routing: Routing, rng: np.random.Generator) -> None:
    """Gives each request to an engine, when it comes."""
    count = len(engines)
    for number, due_s in enumerate(log.due_s):
        if count == 1 or routing == "round_robin":
            engines[number % count].coming.append(number)
            continue
        for engine in engines:
            engine.advance(due_s)
        if routing == "two_choices":
            among: Sequence[int] = rng.choice(count, 2, replace=False).tolist()
        else:
            among = [(number + i) % count for i in range(count)]  # ties go round
        engines[min(among, key=lambda i: engines[i].outstanding(due_s))].coming.append(number)


class _Log:
    """What became of each request, in seconds; NaN for what has not happened."""

    def __init__(self, asked: Asked) -> None:
        n = len(asked.due_s)
        self.due_s: list[float] = asked.due_s.astype(float).tolist()
        self.start_s, self.first_s, self.done_s = [math.nan] * n, [math.nan] * n, [math.nan] * n
        self.prompt_tokens, self.output_tokens = asked.prompt_tokens.tolist(), asked.output_tokens.tolist()


class _Engine:
    """One replica. `coming`: numbers of requests that were given to it and are not admitted yet."""

    def __init__(self, log: _Log, rules: EngineRules, steps: Steps, rng: np.random.Generator) -> None:
        self.coming: deque[int] = deque()
        self.stretches: list[tuple[float, int, int]] = []
        self.read_s, self.most_held = 0.0, 0
        self._log, self._rules, self._cost, self._rng = log, rules, steps, rng
        self._slots = 1 if rules.scheduler == "one" else rules.max_batch_size
        self._added_s = [steps.added_s(rows) for rows in range(self._slots + 1)]
        self._later: deque[int] = deque()
        self._running: list[_Answer] = []
        self._static_rows = 0
        self._now = 0.0
        self._ended: list[float] = []

    def users(self, count: int) -> None:
        """All requests are this engine's, of so many users."""
        n = len(self._log.due_s)
        self.coming.extend(range(min(count, n)))
        self._later.extend(range(len(self.coming), n))

    def outstanding(self, at_s: float) -> int:
        """Requests that were given to it and whose last token has not left it by then."""
        return len(self.coming) + len(self._running) + len(self._ended) - bisect.bisect_right(self._ended, at_s)

    def advance(self, until_s: float) -> None:
        """Steps until one ends at `until_s` or later, or until there is nothing to do before then."""
        there_s = self._cost.outside_s / 2
        while self._now < until_s:
            if not self._running:
                if not self.coming:
                    return
                arrives_s = self._log.due_s[self.coming[0]] + there_s
                if arrives_s >= until_s:
                    return
                self._now = max(self._now, arrives_s)
            self._admit(there_s)
            for answer in self._write(until_s, there_s) + self._read():
                self._give(answer)

    def _admit(self, there_s: float) -> None:
        if self._running and self._rules.scheduler != "continuous":
            return
        while self.coming and len(self._running) < self._slots:
            number = self.coming[0]
            if self._log.due_s[number] + there_s > self._now:
                break
            self.coming.popleft()
            if self._running:
                self._now += self._cost.intake_s
            self._log.start_s[number] = self._now
            prompt, output = self._log.prompt_tokens[number], self._log.output_tokens[number]
            self._running.append(_Answer(number, prompt, 0, output))
        self._static_rows = len(self._running) if self._rules.scheduler == "static" else 0

    def _write(self, until_s: float, there_s: float) -> list[_Answer]:
        """One token for each answer that is read; as many steps as pass until somebody leaves, comes or is read."""
        ready = [answer for answer in self._running if not answer.unread]
        if not ready:
            return []
        rows, held = max(len(ready), self._static_rows), sum(answer.held for answer in ready)
        count = 1 if len(ready) < len(self._running) else min(answer.left for answer in ready)
        cost = self._cost
        took_s = cost.write_fixed_s + self._added_s[rows] + held * cost.write_held_s
        longer_s = len(ready) * cost.write_held_s
        if len(cost.spread) > 1:  # each step is drawn apart
            count, longer_s = 1, 0.0
            took_s *= float(self._rng.choice(cost.spread))
        elif self._rules.scheduler == "continuous" and len(self._running) < self._slots:
            next_s = self._log.due_s[self.coming[0]] + there_s if self.coming else math.inf
            count = min(count, _steps_until(min(next_s, until_s) - self._now, took_s, longer_s))
        stretch_s = count * took_s + longer_s * count * (count - 1) / 2
        self._now += stretch_s
        self.stretches.append((stretch_s, len(ready), count))
        for answer in ready:
            answer.held += count
            answer.left -= count
        self.most_held = max(self.most_held, held + count * len(ready))
        return ready

    def _read(self) -> list[_Answer]:
        """Those whose prompts this reads to their ends, which gives their first token."""
        budget = self._rules.prefill_tokens
        read: list[_Answer] = []
        for answer in self._running:  # in order of arrival, as they were admitted
            if answer.unread and budget:
                take = min(answer.unread, budget)
                answer.unread -= take
                answer.held += take
                budget -= take
                read.append(answer)
        if not read:
            return []
        tokens = self._rules.prefill_tokens - budget
        took_s = self._cost.read_fixed_s + tokens * self._cost.read_token_s
        if len(self._cost.spread) > 1:
            took_s *= float(self._rng.choice(self._cost.spread))
        self._now += took_s
        self.read_s += took_s
        self.most_held = max(self.most_held, sum(answer.held for answer in self._running if answer.left))
        done = [answer for answer in read if not answer.unread]
        for answer in done:
            answer.left -= 1
        return done

    def _give(self, answer: _Answer) -> None:
        """What the step that ends now has for it."""
        back_s = self._cost.outside_s / 2
        if math.isnan(self._log.first_s[answer.number]):
            self._log.first_s[answer.number] = self._now + back_s
        if answer.left == 0:
            self._log.done_s[answer.number] = self._now + back_s
            self._running.remove(answer)
            self._ended.append(self._now)
            if self._later:
                following = self._later.popleft()
                self._log.due_s[following] = self._now + back_s
                self.coming.append(following)


def _steps_until(seconds: float, first_s: float, longer_s: float) -> int:
    """The number of steps, at least one, after which so many seconds have passed, if the first takes `first_s` and each
    further one `longer_s` more than the one before."""
    if seconds <= first_s:
        return 1
    if math.isinf(seconds):
        return 2**62
    if longer_s == 0:
        return math.ceil(seconds / first_s)
    half = first_s / longer_s - 0.5
    return math.ceil(math.sqrt(half**2 + 2 * seconds / longer_s) - half)
