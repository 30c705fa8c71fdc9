"""Calibrates a language model's engine out of measured blocks, from all of them or from all but a few.

Counters and records tell what a step takes that writes and one that reads. What they cannot tell is found by replaying
blocks: an answer is in more of the long steps than of the short ones, so the mean of its tokens' intervals is not that
of steps, and what a request that comes takes from the others' answers (`intake_s`) shows in their time to the first
token. Both are moved until the replays say what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.calibration import QUIET_QUEUE, Measured, engine_rules
from lab.measure.planner.engine_simulator import Asked, simulate_engine
from lab.measure.planner.service import line
from lab.measure.planner.steps import Steps, fit_curve, fit_steps, kinds
from lab.measure.records import Int64s

AGAIN = 2
"""Times that a closed loop's requests are there for a replay: it may be faster than what was measured."""
ALMOST_ALONE = 2
"""Answers in a step on average, below which nobody else's prompt was in the way."""
APART = 1.05
"""Tokens of steps that read, from which on they are of two lengths."""
SHOWN = 4
"""Blocks that are replayed at the most, to tune, of closed loops and of open ones."""
INTAKES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Tried for `intake_s`, of `outside_s`: what a request takes on its way, of others' cores or not."""
ROUNDS = 2
"""Times that steps are fitted to what replays leave."""


@dataclass(frozen=True)
class Tuned:
    """What replays told. `intake`: of `outside_s`; `longer`, in a closed loop (True) and an open one: (rows, how many
    times as long as at first thought a step is that writes), ascending, with the same for all beyond either end."""

    intake: float = 0.0
    longer: Mapping[bool, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def factor(self, closed: bool, rows: float) -> float:
        known = self.longer.get(closed)
        return float(np.interp(np.log(rows), *np.array([(np.log(r), f) for r, f in known]).T)) if known else 1.0


def engine_steps(blocks: Sequence[Measured], near: Sequence[Measured] = ()) -> Steps:
    """Of a language model's engine: its shape by all `blocks`, its speed by those of them that are `near` (by all where
    none is). A step that writes is the time between tokens less what others' prompts took of it, so that sending the
    tokens is in it. InputError when the blocks say nothing of it."""
    return EngineCalibrator(blocks).steps(near=[block.number for block in near])


class EngineCalibrator:
    """Blocks of one engine, each looked at once. They are named by their numbers, which differ."""

    def __init__(self, blocks: Sequence[Measured]) -> None:
        # A static batch computes the places of those that ended, which its counters do not count.
        plain = [block for block in blocks if block.model.scheduler != "static"] or blocks
        self._blocks = {block.number: block for block in plain}
        self._seen = {block.number: seen for block in plain if (seen := _seen(block)) is not None}

    def steps(self, among: Sequence[int] = (), near: Sequence[int] = (), tuned: Tuned | None = None) -> Steps:
        """From the blocks `among` (all when empty), with the speed of those that are `near`."""
        numbers = [number for number in sorted(among or self._blocks) if number in self._seen]
        how = self.tune(numbers) if tuned is None else tuned
        steps = self._shape(numbers, how)
        speeds = [
            self._write(number, how)[0] / steps.write_s(*self._seen[number].write[1:])
            for number in numbers
            if number in near
        ]
        return steps.times(float(np.exp(np.mean(np.log(speeds))))) if speeds else steps

    def tune(self, among: Sequence[int]) -> Tuned:
        """What makes replays of these blocks say what was measured in them; nothing where none can be replayed."""
        numbers = [number for number in sorted(among) if number in self._seen]
        shown = self._telling(numbers)
        if not shown:
            return Tuned()
        found: tuple[float, Tuned] | None = None
        outside_s = self._shape(numbers, Tuned()).outside_s
        for intake in INTAKES if outside_s else INTAKES[:1]:
            how = Tuned(intake)
            for _ in range(ROUNDS):
                how = self._closer(numbers, shown, how)
            off = self._off(numbers, shown, how)
            if found is None or off < found[0]:
                found = off, how
        assert found is not None  # noqa: S101
        return found[1]

    def _closer(self, numbers: Sequence[int], shown: Sequence[int], how: Tuned) -> Tuned:
        """With each kind of block's steps as much longer as its replays' intervals between tokens were too short."""
        steps = self._shape(numbers, how)
        left: dict[bool, list[tuple[float, float]]] = {}
        for number in shown:
            too_short = _itl_s(self._blocks[number]) / self._replayed(number, steps, how)[0]
            left.setdefault(self._closed(number), []).append((self._seen[number].write[1], too_short))
        longer = {
            closed: tuple((rows, how.factor(closed, rows) * factor) for rows, factor in kinds(seen))
            for closed, seen in left.items()
        }
        return replace(how, longer=longer)

    def _off(self, numbers: Sequence[int], shown: Sequence[int], how: Tuned) -> float:
        """How far replays are from what was measured, of the time to the first token in company."""
        steps = self._shape(numbers, how)
        off = []
        for number in shown:
            ttft_s = self._blocks[number].summary.ttft_mean_s
            if ttft_s and self._seen[number].write[1] >= ALMOST_ALONE:
                off.append(abs(np.log(self._replayed(number, steps, how)[1] / ttft_s)))
        return float(np.mean(off)) if off else 0.0

    def _replayed(self, number: int, steps: Steps, how: Tuned) -> tuple[float, float]:
        """(mean time between tokens, mean time to the first) of a block, replayed at its own speed."""
        block, seen = self._blocks[number], self._seen[number]
        pace = self._write(number, how)[0] / steps.write_s(*seen.write[1:])
        found = simulate_engine(asked(block), engine_rules(block.model), steps.times(pace))
        within = (found.due_s >= block.window_s[0]) & (found.due_s < block.window_s[1])
        rows = within & np.isfinite(found.itl_s)
        if not rows.any():
            return _itl_s(block), block.summary.ttft_mean_s or 0.0
        return float(found.itl_s[rows].mean()), float(found.ttft_s[within].mean())

    def _telling(self, numbers: Sequence[int]) -> list[int]:
        """SHOWN of closed and of open loops that can be replayed, from the least to the most rows."""
        told: list[int] = []
        for closed in (True, False):
            able = [
                number for number in numbers if self._closed(number) == closed and _can_replay(self._blocks[number])
            ]
            able.sort(key=lambda number: self._seen[number].write[1])
            places = np.linspace(0, len(able) - 1, min(SHOWN, len(able))).round().astype(int)
            told += [able[place] for place in places]
        return told

    def _closed(self, number: int) -> bool:
        return self._blocks[number].users is not None

    def _write(self, number: int, how: Tuned) -> tuple[float, float, float]:
        seconds, rows, held = self._seen[number].write
        return seconds * how.factor(self._closed(number), rows), rows, held

    def _shape(self, numbers: Sequence[int], how: Tuned) -> Steps:
        seen = [self._seen[number] for number in numbers]
        writes = [self._write(number, how) for number in numbers]
        fixed_s, row_s, held_s = fit_steps(writes)
        steps = Steps(fixed_s, row_s, held_s, rows=fit_curve(writes, fixed_s, held_s))
        paces = np.array([write[0] / steps.write_s(*write[1:]) for write in writes])
        read_fixed_s, read_token_s = _reading(seen, paces, fixed_s)
        waits = [one.ttft_s - read_fixed_s - one.prompt * read_token_s for one in seen if one.ttft_s is not None]
        outside_s = max(0.0, float(np.median(waits))) if waits else 0.0
        return replace(
            steps,
            read_fixed_s=read_fixed_s,
            read_token_s=read_token_s,
            outside_s=outside_s,
            intake_s=how.intake * outside_s,
        )


@dataclass(frozen=True)
class _Seen:
    """Of one block: `write`, (seconds of a step that writes, rows, tokens held); `read`, (seconds, tokens) of a step
    that reads, None where they were not counted; seconds of the engine for each prompt of so many tokens; the time to
    the first token where nobody was in the way, else None."""

    write: tuple[float, float, float]
    read: tuple[float, float] | None
    read_s: float
    prompt: float
    ttft_s: float | None


def _seen(block: Measured) -> _Seen | None:
    """None of a block that lacks one of the figures."""
    found = block.summary
    figures = (found.itl_mean_s, found.engine_batch_mean, found.prompt_tokens_mean, found.output_tokens_mean)
    reading = found.prefill_fraction
    if reading is None or reading >= 1 or found.step_mean_s is None or None in figures or (figures[3] or 0) <= 1:
        return None
    itl_s, rows, prompt, output = (float(figure or 0) for figure in figures)
    # Whoever waits for a token waits for the step and for what is read of others' prompts, not for its own prompt: of
    # a round in which `rows` answers are written, and as many prompts read, that is all but one prompt. An engine that
    # is idle between requests counts no steps.
    step_s = itl_s * (1 - reading) / (1 - reading / max(rows, 1.0))
    decode_s = found.step_mean_s * (output - 1) / rows  # of the engine, for one answer; reading gives its first token
    alone = (found.engine_waiting_mean or 0) < QUIET_QUEUE and rows < ALMOST_ALONE
    read = found.prefill_step_mean_s, found.prefill_tokens_mean
    return _Seen(
        (step_s, rows, rows * (prompt + output / 2)),
        None if None in read else (float(read[0] or 0), float(read[1] or 0)),
        decode_s * reading / (1 - reading),
        prompt,
        found.ttft_p50_s if alone else None,
    )


def _reading(seen: Sequence[_Seen], paces: Floats, write_fixed_s: float) -> tuple[float, float]:
    """(fixed, a token) of the seconds that a step reads. Where steps that read were counted, and read more tokens in
    some blocks than in others, these tell, at the blocks' common pace. Else, where prompts of several lengths were read
    by themselves, these do. Where all are of one length, reading goes once through the weights as writing does, and the
    rest is of its tokens."""
    counted = np.array([(*one.read, pace) for one, pace in zip(seen, paces, strict=True) if one.read is not None])
    if len(counted) and counted[:, 1].max() > APART * counted[:, 1].min():
        return line(counted[:, 1], counted[:, 0] / counted[:, 2], np.ones(len(counted)))
    alone = [one for one in seen if one.ttft_s is not None] or list(seen)
    prompts, seconds = (np.array([getattr(one, name) for one in alone], float) for name in ("prompt", "read_s"))
    if len(set(prompts.round())) > 1:
        return line(prompts, seconds, np.ones_like(prompts))
    fixed_s = min(write_fixed_s, float(np.median(seconds)))
    return fixed_s, float(np.median((seconds - fixed_s) / prompts))


def asked(block: Measured) -> Asked:
    """What came in a block, for a replay."""
    tokens = [filled(counts) for counts in (block.prompt_tokens, block.output_tokens)]
    due_s = block.due_s
    if block.users is not None:
        tokens, due_s = [np.tile(counts, AGAIN) for counts in tokens], np.zeros(AGAIN * len(due_s))
    return Asked(due_s, tokens[0], tokens[1], block.users)


def filled(counts: Int64s) -> Int64s:
    """Token counts with those of requests that failed, which are not known, at the middle of the others'."""
    known = counts[counts > 0]
    return np.where(counts > 0, counts, int(np.median(known)) if len(known) else 1)


def _can_replay(block: Measured) -> bool:
    if not len(block.due_s) or not len(block.output_tokens) or block.window_s[1] <= block.window_s[0]:
        return False
    try:
        engine_rules(block.model)
    except InputError:
        return False
    return True


def _itl_s(block: Measured) -> float:
    return float(block.summary.itl_mean_s or 0.0)
