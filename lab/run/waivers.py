"""Waivers of a sceptic's questions, kept with the run: who waived which, when, and why.

`waivers.jsonl` in the run's folder only grows, by the page Design review and by `lab review`: a waiver that was taken
back is a line too. Of each question the newest line counts. Pages, reports and the terminal read the same file, so what
was waived on one is waived on all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from lab.errors import InputError
from lab.measure.redteam import Question
from lab.run import control
from lab.run.folder import RunFolder
from lab.spec import nearest

FILE = "waivers.jsonl"
LONGEST = 500
"""Characters of a name or a reason."""


@dataclass(frozen=True)
class Waiver:
    """`why` is empty where `who` took a waiver back."""

    code: str
    who: str
    why: str
    utc: str

    def __str__(self) -> str:
        return f"{self.who}, {self.utc[:10]}: {self.why}"


def waive(run_id: str, questions: Sequence[Question], code: str, who: str, why: str) -> Waiver:
    """Keep a waiver of one of the run's `questions`. InputError where it is not open, or name or reason are missing."""
    state = {question.code: question.status for question in questions}
    if code not in state:
        raise InputError(f"waiver {code!r}: this run raises no such question{nearest(code, state)}")
    if state[code] == "answered":
        raise InputError(f"waiver {code!r}: the run answers this question itself; allowed: one that is open")
    who, why = " ".join(who.split()), " ".join(why.split())
    for name, text in (("name", who), ("reason", why)):
        if not 0 < len(text) <= LONGEST:
            said = f"has no {name}" if not text else f"has a {name} of {len(text):,} characters"
            raise InputError(f"waiver {code!r} {said}; allowed: a name and a reason, up to {LONGEST} characters each")
    return _keep(run_id, code, who, why)


def take_back(run_id: str, code: str, who: str) -> Waiver:
    """Keep that a waiver holds no more. InputError where there is none."""
    waived = kept(RunFolder.open(run_id))
    if code not in waived:
        raise InputError(f"waiver {code!r}: nobody waived that question of this run{nearest(code, waived)}")
    return _keep(run_id, code, " ".join(who.split())[:LONGEST] or waived[code].who, "")


def kept(folder: RunFolder) -> dict[str, Waiver]:
    """The waivers that hold, by question. A line that is none is passed over."""
    try:
        lines = (folder.path / FILE).read_text().splitlines()
    except OSError:
        return {}
    newest: dict[str, Waiver] = {}
    for line in lines:
        try:
            found = Waiver(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if all(isinstance(text, str) for text in asdict(found).values()):
            newest[found.code] = found
    return {code: waiver for code, waiver in newest.items() if waiver.why}


def told(folder: RunFolder, questions: Sequence[Question]) -> dict[str, str]:
    """{code: who, when and why} of the waivers of these questions, as redteam.waive takes them."""
    codes = {question.code for question in questions}
    return {code: str(waiver) for code, waiver in kept(folder).items() if code in codes}


def _keep(run_id: str, code: str, who: str, why: str) -> Waiver:
    waiver = Waiver(code, who, why, datetime.now(UTC).isoformat(timespec="seconds"))
    control.append(run_id, FILE, asdict(waiver))
    return waiver
