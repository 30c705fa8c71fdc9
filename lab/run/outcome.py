"""What one self-test found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """`measured` and `truth` are in the unit that `text` names; `tolerance` is in words. `passed` is None where this
    machine lacks what the test needs, and `text` says what."""

    id: str
    passed: bool | None
    measured: float | None
    truth: float | None
    tolerance: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        word = {True: "pass", False: "FAIL", None: "n/a "}[self.passed]
        return f"{word}  {self.id:<4} {self.text} (tolerance {self.tolerance})"
