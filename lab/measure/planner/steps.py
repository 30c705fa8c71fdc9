"""What a step of a language model's engine takes, and the same found from measured blocks.

write_fixed_s + what its rows add + tokens held × write_held_s         to write
read_fixed_s + tokens × read_token_s                                   to read, when there is something to read

Rows add write_row_s each, or where blocks with three and more numbers of them were measured, what these show: the
second row of a step costs more than the eighth, since kernels work on blocks of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.errors import InputError


@dataclass(frozen=True)
class Steps:
    """Seconds of a step, see above. `rows`: (rows, seconds that they add) where that was measured, ascending.
    `outside_s`: what an answer's first token needs besides, on its way there and back; `intake_s`: what of it a request
    that comes while others are answered takes from these, where the engine's cores are all there are; `spread`: samples
    of mean 1 that each step is multiplied with."""

    write_fixed_s: float
    write_row_s: float = 0.0
    write_held_s: float = 0.0
    read_fixed_s: float = 0.0
    read_token_s: float = 0.0
    outside_s: float = 0.0
    intake_s: float = 0.0
    spread: tuple[float, ...] = (1.0,)
    rows: tuple[tuple[float, float], ...] = ()

    def added_s(self, rows: float) -> float:
        """What so many rows add to the fixed part of a step that writes; beyond what was measured write_row_s each."""
        if not self.rows:
            return rows * self.write_row_s
        (least, first_s), (most, last_s) = self.rows[0], self.rows[-1]
        if rows < least:
            return max(0.0, first_s - (least - rows) * self.write_row_s)
        if rows > most:
            return last_s + (rows - most) * self.write_row_s
        known, seconds = zip(*self.rows, strict=True)
        return float(np.interp(rows, known, seconds))

    def write_s(self, rows: float, held: float) -> float:
        """A step that writes a token for each of `rows` answers that hold so many tokens together."""
        return self.write_fixed_s + self.added_s(rows) + held * self.write_held_s

    def capacity_rps(self, slots: int, prompt_tokens: float, output_tokens: float) -> float:
        """Answers a second with every place taken: a step writes a token for each, and each prompt is read by itself,
        which gives the first token."""
        step_s = self.write_s(slots, slots * (prompt_tokens + output_tokens / 2))
        return 1 / ((output_tokens - 1) * step_s / slots + self.read_fixed_s + prompt_tokens * self.read_token_s)

    def times(self, factor: float) -> Steps:
        """The same engine when every step takes so many times as long; what happens outside stays."""
        return self.scaled(factor, factor, factor, factor)

    def scaled(self, fixed: float = 1.0, row: float = 1.0, held: float = 1.0, read: float = 1.0) -> Steps:
        """The same engine when these parts of a step take so many times as long."""
        return replace(
            self,
            write_fixed_s=self.write_fixed_s * fixed,
            write_row_s=self.write_row_s * row,
            rows=tuple((rows, seconds * row) for rows, seconds in self.rows),
            write_held_s=self.write_held_s * held,
            read_fixed_s=self.read_fixed_s * fixed,
            read_token_s=self.read_token_s * read,
        )


SAME_ROWS = 1.15
"""Means of rows that are no further apart than this factor are of one kind of block."""
HELD_APART = 1.3
"""Tokens that an answer holds, from which factor on between blocks they say what holding takes."""
KINDS = 3
"""Kinds of blocks from which on rows have a curve; two make a line."""


def fit_curve(
    seen: Sequence[tuple[float, float, float]], fixed_s: float, held_s: float
) -> tuple[tuple[float, float], ...]:
    """Steps.rows from the same blocks as for `fit_steps` and two of its parts: for each kind of block the mean of what
    its rows add, never less than fewer rows do. () of fewer than KINDS kinds."""
    means = kinds([(rows, seconds - fixed_s - held * held_s) for seconds, rows, held in seen])
    if len(means) < KINDS:
        return ()
    added_s = np.maximum.accumulate([max(0.0, added) for _, added in means])
    return tuple((rows, float(added)) for (rows, _), added in zip(means, added_s, strict=True))


def kinds(seen: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of blocks' (rows, value) the means of each kind, from the fewest rows on."""
    found: list[list[tuple[float, float]]] = []
    for rows, value in sorted(seen):
        if not found or rows > SAME_ROWS * found[-1][0][0]:
            found.append([])
        found[-1].append((rows, value))
    return [
        (float(np.mean([rows for rows, _ in kind])), float(np.mean([value for _, value in kind]))) for kind in found
    ]


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
    each = held / rows  # where every answer holds as much, what it holds is of its row
    distinct = [True, len(set(rows)) > 1, len(set(rows)) > 1 and each.max() > HELD_APART * each.min()]
    found = np.zeros(3)
    found[distinct], _ = nnls(columns[:, distinct] / seconds[:, None], np.ones_like(seconds))
    return float(found[0]), float(found[1]), float(found[2] / 100)
