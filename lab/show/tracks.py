"""Tracks: which pages to visit in which order, and how long each may take. A track changes nothing else.

Pure: the plan is data; lab/show/ui/guide.py draws it, and keeps in the link which one is followed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Halt:
    """One stop of a track. `page` is the name of a file in pages/, `does` what to do there, `params` what its link
    carries."""

    page: str
    title: str
    minutes: int
    does: str
    params: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        return f"pages/{self.page}.py"


@dataclass(frozen=True)
class Track:
    key: str
    title: str
    about: str
    halts: tuple[Halt, ...]

    @property
    def minutes(self) -> int:
        return sum(halt.minutes for halt in self.halts)

    def without(self, hidden: Collection[str]) -> Track:
        """The same without the pages that are hidden."""
        return Track(self.key, self.title, self.about, tuple(h for h in self.halts if h.page not in hidden))

    def place(self, page: str, before: int | None = None) -> int | None:
        """The position of `page`; of a page that is visited twice the one at or after `before`. None when it is none of
        the track's."""
        places = [n for n, halt in enumerate(self.halts) if halt.page == page]
        later = [n for n in places if before is not None and n >= before]
        return next(iter(later or places), None)


TRACKS: Sequence[Track] = (
    Track(
        "workshop",
        "Workshop",
        "Five questions for a class: bet, run A against B, see why. With one machine for all, follow on recorded runs.",
        (
            Halt("start", "Start", 5, "See what is ready, and press the button: it runs while you read on."),
            Halt("batching", "Dynamic batching", 20, "Bet, run A against B, then find the load where waiting pays."),
            Halt("quantization", "Quantization", 20, "Bet on the fastest format, then read what it costs in quality."),
            Halt("kv_cache", "KV cache", 20, "Bet on the longest answer, then see flat against rising."),
            Halt("memory", "Multi-model memory", 15, "Find the cliff, and who slows whom."),
            Halt("compare", "Compare", 10, "Put your run beside a neighbour's: is one really better?"),
        ),
    ),
    Track(
        "interview",
        "Interview",
        "Half an hour before an interview: estimate from this machine's own runs, then explain one result aloud.",
        (
            Halt(
                "drills", "Warm up", 8, "Five drills on measures: estimate before you look.", (("d_deck", "Measures"),)
            ),
            Halt("batching", "One experiment", 10, "Explain the verdict aloud from “Why”, as to an interviewer."),
            Halt(
                "drills",
                "Follow up",
                8,
                "Five drills on levers: name the trade-off each time.",
                (("d_deck", "Levers"),),
            ),
            Halt("drills", "Cheat sheet", 4, "Take your own numbers along.", (("d_sheet", "true"),)),
        ),
    ),
    Track(
        "serving",
        "Serving patterns",
        "Three quarters of an hour: who should be served online, streamed or overnight, and with how many instances.",
        (
            Halt("patterns", "Online, streaming, batch", 15, "Bet on the batch job; then who keeps which promise?"),
            Halt(
                "patterns",
                "Autoscaling",
                15,
                "What do rules save, and who waits? Then try rules of your own on the same day.",
                (("p_part", "Autoscaling"),),
            ),
            Halt("cost", "Cost", 5, "What idle hours cost, and what a batch job in them would."),
            Halt("drills", "Drills", 10, "Five on serving: estimate before you look.", (("d_deck", "Serving"),)),
        ),
    ),
    Track(
        "review",
        "Design review",
        "An hour for a team: from stored runs to a decision, its evidence, its open questions and who waived them.",
        (
            Halt("runs", "Runs", 5, "Choose the runs that the decision stands on."),
            Halt("compare", "Compare", 15, "Is the candidate really better, and where is it not?"),
            Halt("cost", "Cost", 10, "What does an answer in time cost, at your price?"),
            Halt("plan", "Plan", 10, "How many replicas for your traffic, and what breaks first?"),
            Halt("cold_start", "Cold start & serverless", 5, "Would scale to zero pay here, and who would wait?"),
            Halt("review", "Review", 15, "Requirements, evidence, open questions, waivers by name; then export."),
        ),
    ),
    Track(
        "tuning",
        "Tuning",
        "An hour for one model: what limits it, which knob moves that, and whether the change is real.",
        (
            Halt("system", "System", 5, "Is the machine fit to measure on?"),
            Halt("batching", "Levels", 20, "Run the levels of one knob, whole, at three loads."),
            Halt("live", "Live run", 10, "Turn the knob under load and watch queue, batch and tail."),
            Halt("plan", "Plan", 10, "What would the next setting do? Then measure it."),
            Halt("compare", "Compare", 10, "New against old: ratio, interval, noise floor."),
            Halt("cost", "Cost", 5, "What the change saves."),
        ),
    ),
)
BY_KEY = {track.key: track for track in TRACKS}

HIDEABLE = ("answers", "verdicts", "settings")
"""What a link may hide beside pages: the answers of drills, what experiments found, and the fields of their forms, so
that a class runs what is declared."""


def hidden(text: str, pages: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """(what `?hide=` hides, the words in it that name nothing) from "answers,plan". Start is never hidden."""
    asked = [word.strip().lower() for word in text.split(",") if word.strip()]
    known = frozenset(word for word in asked if (word in HIDEABLE or word in pages) and word != "start")
    return known, tuple(dict.fromkeys(word for word in asked if word not in known))
