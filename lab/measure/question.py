"""A question that a sceptical reviewer would ask of a run, and those that the lab's own doubts about the run raise.

redteam.py has the others. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["answered", "open", "waived"]
TOLD_AS = {
    "closed_loop": "loop",
    "quick": "repeats",
    "too_few_samples": "samples",
    "no_success": "samples",
    "interrupted": "partial",
    "cut_short": "partial",
    "died": "partial",
}
"""Problems that raise the question of another code."""
QUESTIONS = {
    "near_ceiling": "Was it the server that was measured, or the load generator?",
    "dropped": "Was all sent that was planned?",
    "counters_reset": "Do the server's figures cover the whole window?",
    "server_longer": "Are the server's times those of the requests that were timed?",
    "tokens_uncounted": "Was every token counted?",
    "clock_step": "Do its times of day fit those of other machines?",
    "trace_gaps": "Was every request traced?",
    "floor": "Can this machine be as fast as that?",
    "not_measured": "Was anything left out?",
    "recorded": "Was it measured here?",
    "engine_note": "Is what ran what was asked for?",
}
"""Of problems that nothing above asks about."""


@dataclass(frozen=True)
class Question:
    """`answer` is the run's own figure, what would answer an open question, or the reason of a waiver."""

    code: str
    question: str
    answer: str
    status: Status


Asked = Iterator[Question]


def about_the_code(environment: Mapping[str, Any]) -> Asked:
    """Whether somebody else can take the same code and measure again."""
    told = environment.get("lab")
    lab = told if isinstance(told, Mapping) else {}
    commit, version = lab.get("commit"), lab.get("version")
    status: Status = "answered"
    if commit and lab.get("dirty") is not False:
        known = f" (hash {lab['changes']})" if lab.get("changes") else ""
        how = f"with files changed since{known}, which nobody else has: commit them"
        unknown = "and nobody knows whether its files were changed since"
        text, status = f"The lab's commit {str(commit)[:12]}, {how if lab.get('dirty') else unknown}.", "open"
    elif commit:
        text = f"The lab's commit {str(commit)[:12]}, as it was checked out."
    elif version:
        text = f"Version {version} of the lab's package."
    else:
        text, status = "The run does not say which version of the lab took it.", "open"
    yield Question("version", "Can the same code be run again?", text, status)


def about_the_rest(document: Mapping[str, Any], asked: set[str]) -> Asked:
    """Whatever else the lab found doubtful: no weakness that it knows of goes without a question."""
    for code in dict.fromkeys(found["code"] for found in document["problems"]):
        if TOLD_AS.get(code, code) not in asked:
            yield from problem(document, code, QUESTIONS.get(code, "Does this touch what is claimed?"), "")


def problem(document: Mapping[str, Any], code: str, question: str, otherwise: str, unchecked: str = "") -> Asked:
    """The document's own words where it has the problem, `otherwise` where not; `unchecked` says why nobody knows."""
    found = next((p for p in document["problems"] if p["code"] == code), None)
    if found is None:
        yield Question(code, question, unchecked or otherwise, "open" if unchecked else "answered")
        return
    where = f" ({found['blocks']} blocks, the first's words)" if found.get("blocks") else ""
    yield Question(code, question, f"{found['text'].rstrip('.')}{where}. {found['remedy']}".strip(), "open")
