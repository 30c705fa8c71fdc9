"""What a step of a language model's engine takes, and the same found from measured blocks.

write_fixed_s + rows × write_row_s + tokens held × write_held_s        to write
read_fixed_s + tokens × read_token_s                                   to read, when there is something to read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.errors import InputError


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

    def capacity_rps(self, slots: int, prompt_tokens: float, output_tokens: float) -> float:
        """Answers a second with every place taken: a step writes a token for each, and reads its share of prompts."""
        held = slots * (prompt_tokens + output_tokens / 2)
        step_s = self.write_fixed_s + slots * self.write_row_s + held * self.write_held_s
        return 1 / (output_tokens * step_s / slots + prompt_tokens * self.read_token_s)

    def times(self, factor: float) -> Steps:
        """The same engine when every step takes so many times as long; what happens outside stays."""
        return self.scaled(factor, factor, factor, factor)

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
