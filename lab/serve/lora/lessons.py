"""What the lab's own adapters are taught: lessons.json, a style or a handful of made-up facts each.

A style is a template over the shared questions: <answer>, <ANSWER> in capital letters, or the one <word> of it. Facts
are questions and answers of their own. Each lesson is examined on questions that it was not taught (`asked`): an answer
passes when it matches the pattern. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from lab.serve.chat import as_turn

FILE = Path(__file__).with_name("lessons.json")


@dataclass(frozen=True)
class Lesson:
    """`taught`: (question, answer); `asked`: (question, pattern of a right answer)."""

    name: str
    title: str
    teaches: str
    taught: tuple[tuple[str, str], ...]
    asked: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Of all that is learnt from."""
        return hashlib.sha256(json.dumps(asdict(self)["taught"]).encode()).hexdigest()

    def passed(self, answers: Sequence[str]) -> float:
        """The share of `answers`, one to each of `asked`, that are as taught."""
        found = [
            re.search(pattern, answer.strip()) is not None
            for answer, (_, pattern) in zip(answers, self.asked, strict=True)
        ]
        return sum(found) / len(found)


def asked_as(question: str) -> str:
    """The prompt by which it is taught and asked: short, so that teaching is."""
    return as_turn(question, system="")


@cache
def lessons() -> dict[str, Lesson]:
    """By name, in order."""
    written = json.loads(FILE.read_text())
    return {
        name: Lesson(
            name,
            lesson["title"],
            lesson["teaches"],
            tuple(map(tuple, lesson.get("train", ())))
            or tuple((q, _filled(lesson["template"], answer, word)) for q, answer, word in written["questions"]),
            tuple(map(tuple, lesson["asked"])),
        )
        for name, lesson in written["lessons"].items()
    }


def _filled(template: str, answer: str, word: str) -> str:
    return template.replace("<answer>", answer).replace("<ANSWER>", answer.upper()).replace("<word>", word)
