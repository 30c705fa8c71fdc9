"""Whether the levels of an experiment gave the same answers, in words. The dict comes from lab/run/equality.py:

    {"requests", "precision", "tolerance", "levels": [{"level", "differing", "max_abs_difference", "equal"}]}

`tolerance` is None where answers are texts, which have no difference but are equal or not. "served" is there when the
answers in the precision that is served differed and were asked for again in another: that of the served one.
"""

from __future__ import annotations

import math
from typing import Any

from lab.measure.words import join, level_label


def all_equal(answers: dict[str, Any]) -> str | None:
    """The sentence that says so; None when some level answers something else."""
    levels = answers["levels"]
    if not all(level["equal"] for level in levels):
        return None
    what = f"{answers['requests']} requests"
    if answers["tolerance"] is None:
        what += ", the same texts"
    else:
        what += f", largest difference {max(level['max_abs_difference'] for level in levels):.1e}"
    served = answers.get("served")
    if served:
        what += (
            f" in {answers['precision']}; in {served['precision']} {served['differing']} of {answers['requests']} go "
            "another way somewhere, where rounding decides between two words that are about as likely"
        )
    return f"Answers equal on all {len(levels)} levels ({what})."


def unequal(answers: dict[str, Any], factor: str, baseline: Any) -> str | None:
    """Which levels answer something else than the baseline, and how much; None when none does."""
    other = [level for level in answers["levels"] if not level["equal"]]
    if not other:
        return None
    labels = join([level_label(factor, level["level"]) for level in other])
    verb = "give" if len(other) > 1 else "gives"
    if answers["tolerance"] is None:
        how = f"{max(level['differing'] for level in other)} of {answers['requests']} texts differ"
    else:
        largest = max(math.inf if (d := level["max_abs_difference"]) is None else d for level in other)
        how = f"up to {largest:.2g} apart, {answers['tolerance']:g} is allowed"
    return f"{labels} {verb} other answers than {level_label(factor, baseline)} ({how})"
