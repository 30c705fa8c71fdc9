"""Two to six measured settings beside each other, whatever runs they come from: which fields differ, and what they are
called.

A comparison of runs is read wrongly when nobody sees what else differed. So the fields that differ come first, names
are made of them, and `doubts` says what a ratio between two runs cannot know: that they were not measured in turns,
that they met another load, that another machine took them. Pure; lab/run/sides.py reads them from disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.measure.noise import Noise
from lab.measure.quality import Quality
from lab.measure.segments import Block
from lab.measure.words import join, level_label, plural
from lab.spec import Slo

LETTERS = "ABCDEF"
MOST = len(LETTERS)
LABEL_LENGTH = 40
WHOLE = ("model.batching",)
"""Objects that have words of their own and are not taken apart."""
MACHINE = ("environment.cpu", "environment.cores", "environment.gpus")
SHORT_COMMIT = 12
MINOR = ("workload.duration_s", "workload.warmup_s", "workload.timeout_s", "slo.", "quick")
"""What tells sides apart only where nothing else does."""
NOT_SETTINGS = ("environment.load_average_before", "environment.niceness", "environment.memory_bytes")
"""Of the environment, what no two runs share."""


@dataclass(frozen=True)
class Side:
    """One cell of one run: what was served and asked, the records of its repeats, and their summaries as dicts.
    `name` is "RUN.CELL", or "RUN" for a run of one cell; `quality` what its format costs in quality, in a sentence, ""
    for one that costs nothing (the baseline) or has none; `evaluated` the figures behind it, None with `not_evaluated`
    as the reason; `noise` its machine's passport."""

    name: str
    run_id: str
    cell: int
    state: str
    quick: bool
    created_utc: str
    model: dict[str, Any]
    workload: dict[str, Any]
    slo: Slo
    environment: dict[str, Any]
    blocks: list[Block] = field(repr=False)
    summaries: list[dict[str, Any]] = field(repr=False)
    changed: bool = False
    quality: str = ""
    evaluated: Quality | None = field(default=None, repr=False)
    not_evaluated: str = ""
    noise: Noise | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """Every field that says what was measured, flat."""
        slo = self.slo.model_dump(mode="json")
        flat = _flat({"model": self.model, "workload": self.workload, "slo": slo, "environment": self.environment})
        left_out = {*NOT_SETTINGS, *_unused(self.model)}
        return {"quick": self.quick, **{path: value for path, value in flat.items() if path not in left_out}}


@dataclass(frozen=True)
class Difference:
    """One field and its value on every side, None where a side has no such field."""

    path: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        return len({_key(value) for value in self.values}) > 1

    @property
    def of_spec(self) -> bool:
        """Whether somebody set it, rather than the machine having it so."""
        return not self.path.startswith("environment.")


def differences(sides: Sequence[Side]) -> list[Difference]:
    """Every field, those that differ first: settings before what the machine brought along."""
    settings = [side.settings for side in sides]
    paths = dict.fromkeys(path for flat in settings for path in flat)
    found = [Difference(path, tuple(flat.get(path) for flat in settings)) for path in paths]
    groups = ("model", "workload", "slo", "quick", "environment")
    return sorted(found, key=lambda d: (not d.differs, groups.index(d.path.partition(".")[0])))


def labels(sides: Sequence[Side], length: int = LABEL_LENGTH) -> list[str]:
    """A name a side, "B: 2 ms delay, 100 req/s": its letter and what tells it from the others, in `length` letters:
    what somebody set, else the lab's own code; of a side without another its model."""
    every = [d for d in differences(sides) if d.differs and d.of_spec]
    differing = [d for d in every if not d.path.startswith(MINOR)] or every
    code = [_code_label(side) for side in sides]
    otherwise = code if len(set(code)) > 1 else ["the same"] * len(sides)
    if len(sides) == 1:
        otherwise = [str(sides[0].model.get("name", ""))]
    named = []
    for n, letter in zip(range(len(sides)), LETTERS, strict=False):
        words = join_short([_told(sides[n], d, n) for d in differing]) or otherwise[n]
        named.append(_cut(f"{letter}: {words.removeprefix('batching on, ')}", length))
    return named


def _told(side: Side, difference: Difference, n: int) -> str:
    """The side's value in words; "" for a field that says nothing in its precision."""
    if difference.path in _unused(side.model):
        return ""
    return value_label(difference.path, difference.values[n], difference.values)


def _unused(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of a model that say nothing in its precision: "rtn" where nothing is rounded or where it goes without
    saying, as in words.precision_label."""
    unsaid = model.get("quantizer") == "rtn" and model.get("precision") != "int4"
    return ("model.quantizer",) if unsaid else ()


def value_label(path: str, value: Any, among: Sequence[Any] = ()) -> str:
    """ "2 ms delay", "100 req/s": a field's value in words, told apart from those of the other sides; "" for a rate
    that a side has not."""
    name = path.rsplit(".", 1)[-1]
    if name in ("rate_rps", "saturation_fraction", "concurrency") and value is None:
        return ""
    if name == "kind":
        return {"closed": "closed loop", "poisson": "Poisson", "gamma": "Gamma"}.get(str(value), str(value))
    if path == "quick":
        return "quick" if value else "whole"
    if path.startswith("environment."):
        return str(value)
    return level_label(path, value, among)


def identical(a: Side, b: Side) -> bool:
    """Whether two sides are the same in every field, of which whoever compares them may say that a difference between
    their figures is noise: one machine, the same versions, and the same code as far as that is known."""
    return not any(d.differs for d in differences([a, b])) and not other_code(a, b)


def other_code(a: Side, b: Side) -> str:
    """What is known of the lab's own code where it was, or may have been, another one; "" where it was the same, or
    neither run says."""
    mine, theirs = (_code(side) for side in (a, b))
    commits = [str(code.get("commit") or code.get("version") or "") for code in (mine, theirs)]
    if not any(commits):
        return ""
    if commits[0] != commits[1]:
        first, second = (commit[:SHORT_COMMIT] or "unknown code" for commit in commits)
        return f"The lab itself was another one: {first} and {second}."
    if mine.get("changes") != theirs.get("changes"):
        one = not (mine.get("dirty") and theirs.get("dirty"))
        how = "uncommitted changes in one of them" if one else "different uncommitted changes"
        return f"The same commit of the lab, with {how}: other code may have been measured."
    if mine.get("dirty") and not mine.get("changes"):
        return "The same commit of the lab, both with uncommitted changes that were not kept: they may differ."
    return ""


def _code_label(side: Side) -> str:
    """ "aa82c74", "aa82c74 with changes 3f09ab"."""
    code = _code(side)
    known = str(code.get("commit") or "")[:7] or str(code.get("version") or "") or "unknown code"
    changes = str(code.get("changes") or "unknown")[:6]
    return f"{known} with changes {changes}" if code.get("dirty") else known


def _code(side: Side) -> Mapping[str, Any]:
    """environment.lab of its run (lab/run/environment.py)."""
    found = side.environment.get("lab")
    return found if isinstance(found, Mapping) else {}


def doubts(a: Side, b: Side, called: tuple[str, str] | None = None) -> tuple[list[str], list[str]]:
    """(what forbids a verdict on b against a, what else it must be read with); each a sentence, in which the sides are
    `called` so, or by their runs."""
    names = called or (a.name, b.name)
    if (a.run_id, a.cell) == (b.run_id, b.cell):
        return ["This is one measurement beside itself: there is nothing to compare."], []
    differing = [d for d in differences([a, b]) if d.differs]
    forbids = []
    machine = [d for d in differing if d.path.startswith(MACHINE)]
    if machine:
        shown = "; ".join(f"{d.path.rpartition('.')[2]} {d.values[0]} and {d.values[1]}" for d in machine[:2])
        forbids.append(f"They were measured on different machines ({shown}).")
    for side, name in zip((a, b), names, strict=True):
        texts = [p["text"] for s in side.summaries for p in s.get("problems", ()) if p["forbids_verdict"]]
        if not side.blocks:
            texts = ["it has no measured block"]
        forbids += [f"{name}: {text}" for text in dict.fromkeys(texts)]
    read_with = []
    asked = [d for d in differing if d.path.startswith("workload.")]
    if asked:
        fields = join([d.path.rpartition(".")[2].replace("_", " ") for d in asked[:3]])
        read_with.append(f"They were asked differently ({fields}): part of any difference is the load's.")
    if any(d.path.startswith("slo.") for d in differing):
        read_with.append("Their objectives differ: goodput counts what came within that of the first.")
    if code := other_code(a, b):
        read_with.append(code)
    versions = [
        d for d in differing if not d.of_spec and d not in machine and not d.path.startswith("environment.lab.")
    ]
    if versions:
        read_with.append(f"Versions or surroundings differ in {plural(len(versions), 'field')}; see the table.")
    if a.run_id != b.run_id:
        read_with.append(
            "They were not measured in turns: whatever changed on the machine between the two runs is in the ratio. "
            "An experiment with both as levels measures them side by side."
        )
    for side, name in zip((a, b), names, strict=True):
        if side.state != "done":
            read_with.append(f"{name} is {side.state}: only a part of it was measured.")
        if side.quality:
            read_with.append(f"{name} answers otherwise than its baseline: {side.quality}")
        if side.changed:
            read_with.append(f"Settings of {name} were changed while it ran; its figures mix them.")
    if a.quick or b.quick:
        read_with.append("A quick run is rough: one repeat of short blocks.")
    return forbids, read_with


def join_short(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if part)


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in value.items():
        path = f"{above}{name}"
        if isinstance(inner, Mapping) and path not in WHOLE:
            found |= _flat(inner, f"{path}.")
        else:
            found[path] = dict(inner) if isinstance(inner, Mapping) else inner
    return found


def _key(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if inner not in (None, [], ())}
    return json.dumps(value, sort_keys=True, default=str)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip(" ,") + "…"
