"""How a run ended that is not done, in one or two sentences: after how much of it, why, and what that leaves. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab.measure.words import format_setting_s, plural

STOPPED = "stopped by the user"
LAST_BLOCK = re.compile(r", while block \d+ of \d+$")


@dataclass(frozen=True)
class Course:
    """How far a run came. `whole` of its `planned` blocks were measured to their end; `begun`: one more had begun.
    `lasted_s` is how long the load of the latest block went on, of `asked_s`; `answered` counts the run's successes."""

    planned: int
    whole: int
    begun: bool
    lasted_s: float
    asked_s: float
    answered: int


def ending(state: str, message: str, course: Course) -> str:
    """ "Stopped by hand after 7 of 20 blocks; the one that had begun is not compared."; "" for a run that goes on or
    is done. `message` is what the runner wrote down as its last word."""
    verb = {"cancelled": "Stopped by hand", "failed": "Failed", "interrupted": "Broke off"}.get(state)
    if verb is None:
        return ""
    told = message.strip().rstrip(".")
    if not course.begun:  # what it was last heard of at is one of the blocks that are whole
        told = LAST_BLOCK.sub("", told)
    why = f": {told}" if told and not told.startswith(STOPPED) else ""
    if not course.whole and not course.begun:
        return f"{verb} before anything was measured{why}."
    if course.planned == 1:
        far = f"after {format_setting_s(round(course.lasted_s, 1))} of {format_setting_s(round(course.asked_s, 1))}"
        answered = plural(course.answered, "request") if course.answered else "no request"
        was = "was" if course.answered <= 1 else "were"
        return f"{verb} {far}{why}. Until then {answered} {was} answered."
    left = "; the one that had begun is not compared" if course.begun else ""
    return f"{verb} after {course.whole} of {plural(course.planned, 'block')}{why}{left}."
