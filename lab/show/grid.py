"""The cells of a finished comparison, laid out as levels of the judged factor × loads.

A page asks it "the summaries of batching off at 80 % load"; it knows the words for both. A load is one level of each
other factor; where an experiment has no other there is one load. Reads the document of lab.run.results and nothing
else.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lab.measure.words import join, level_label

ALONE = "this load"
AS_GOOD = 0.95
"""A level that reaches this share of the best is as good."""


@dataclass(frozen=True)
class Grid:
    """`levels` and `loads` hold the words for each level and load in the order of the experiment; a level's words are
    unique. `baseline` is one of the levels. `factors` holds the other factors: path to the words of each level and
    the level itself."""

    levels: tuple[str, ...]
    loads: tuple[str, ...]
    factors: dict[str, dict[str, Any]]
    baseline: str
    _cells: dict[tuple[str, str], list[dict[str, Any]]]
    _loads_raw: dict[str, Any]
    _levels_raw: dict[str, Any]
    _effects: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, document: dict[str, Any], factor: str | None, baseline: Any = None) -> Grid:
        """From a run's document; `factor` is the judged factor's path, `baseline` its level to compare with."""
        cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
        levels: dict[str, Any] = {}
        loads: dict[str, Any] = {}
        paths: dict[str, dict[str, Any]] = {}
        for cell in document["cells"]:
            if cell.get("role", "cell") != "cell":
                continue
            factors = cell["factors"]
            raw = factors.get(factor) if factor else None
            name = short_label(factor, raw)
            others = {path: value for path, value in factors.items() if path != factor}
            load = load_name(others)
            levels.setdefault(name, raw)
            loads.setdefault(load, others)
            for path, value in others.items():
                paths.setdefault(path, {}).setdefault(level_label(path, value), value)
            cells.setdefault((name, load), []).append(cell)
        base = short_label(factor, baseline)
        names = tuple(levels)
        base = base if base in names else (names[0] if names else base)
        effects = tuple(document.get("verdict", {}).get("effects", ()))
        return cls(names, tuple(loads), paths, base, cells, loads, levels, effects)

    def at(self, level: str, load: str) -> list[dict[str, Any]]:
        """The summaries of each repeat; empty when the run did not get there."""
        return [cell["summary"] for cell in self.cells_at(level, load)]

    def cells_at(self, level: str, load: str) -> list[dict[str, Any]]:
        """The document's cells of each repeat, of which the summary is a part."""
        return self._cells.get((level, load), [])

    def figure(self, level: str, load: str, field: str, beside: str | None = None) -> float | None:
        """What a card or a mark shows of a cell: where the verdict compared `field` there, the figure that it judged,
        pooled over repeats; else the middle of the repeats. Of the baseline it is the one held against `beside`, or
        against the first level that it could be compared with."""
        is_baseline = level == self.baseline
        against = (level,) if not is_baseline else self.others() if beside in (None, level) else (beside,)
        for other in against:
            effect = self._found(self._effects, str(other), load, field)
            value = None if effect is None else effect.get("a" if is_baseline else "b")
            if effect is not None and effect.get("verdict") != "not comparable" and value is not None:
                return float(value)
        return middle(self.at(level, load), field)

    def levels_at(self, load: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        for level in self.levels:
            if summaries := self.at(level, load):
                yield level, summaries

    def raw(self, level: str) -> Any:
        """The level itself behind its words."""
        return self._levels_raw.get(level)

    def others(self) -> tuple[str, ...]:
        """The levels that are compared with the baseline."""
        return tuple(level for level in self.levels if level != self.baseline)

    def few(self, told: str | None = None, most: int = 4) -> tuple[str, ...]:
        """At most so many levels to be drawn, in their order: the baseline, the one that is `told` of, the last of the
        others."""
        others = self.others()
        first = [level for level in others if level == told]
        room = most - 1 - len(first)
        kept = {self.baseline, *first, *([level for level in others if level != told][-room:] if room > 0 else ())}
        return tuple(level for level in (self.baseline, *others) if level in kept)

    def left_out(self, shown: Iterable[str], words: str = "in the data, not drawn") -> tuple[str, ...]:
        """The note of a chart that draws these levels alone, whose table has the others too unless `words` say
        otherwise; none where it draws all."""
        drawn = set(shown)
        others = [level for level in self.levels if level not in drawn]
        return (f"{words}: {join(others)}",) if others else ()

    def highest(self, loads: Iterable[str]) -> str:
        """The one of `loads` that asks for most (the highest rate, the longest texts), in whatever order they were
        declared."""
        return max(reversed(list(loads)), key=lambda load: [_size(v) for v in self._loads_raw.get(load, {}).values()])

    def words_of(self, load: str) -> dict[str, str]:
        """{path of each other factor: the words of its level} at `load`."""
        return {path: level_label(path, value) for path, value in self._loads_raw.get(load, {}).items()}

    def load_of(self, words: dict[str, str]) -> str:
        """The load of these words, one a factor: the other way round."""
        return ", ".join(words[path] for path in self.factors) or ALONE

    def along(self, path: str, load: str) -> list[tuple[str, str]]:
        """(the level's words, the load) for every level of one factor, all others as they are at `load`."""
        fixed = self.words_of(load)
        loads = [(words, self.load_of({**fixed, path: words})) for words in self.factors.get(path, ())]
        return [(words, other) for words, other in loads if other in self.loads]

    def comparable(self, document: dict[str, Any], metric: str) -> dict[str, tuple[str, ...]]:
        """{load: the levels whose `metric` the verdict could compare there}, loads without any left out."""
        found = {}
        for load in self.loads:
            effects = {level: self.effect(document, level, load, metric) for level in self.others()}
            if levels := tuple(level for level, e in effects.items() if e and e["verdict"] != "not comparable"):
                found[load] = levels
        return found

    def headline(self, document: dict[str, Any], judge: dict[str, Any]) -> tuple[str, str]:
        """(level, load) of the comparison that the verdict begins with. Where it begins with none, or an older lab did
        not say: at the highest load where something may be said, the first level that is as good as the best."""
        told = document["verdict"].get("headline")
        for load in self.loads if told else ():
            for level in self.others():
                same = _key(self._levels_raw[level]) == _key(told["level"])
                if same and _key(self._loads_raw[load]) == _key(told["at"]):
                    return level, load
        fit = self.comparable(document, judge["primary"])
        load = self.highest(fit or self.loads)
        levels = fit.get(load) or self.others() or self.levels
        up = judge["expect"] == "higher"
        sizes = [self._ratio(document, level, load, judge["primary"], up=up) for level in levels]
        return next(level for level, size in zip(levels, sizes, strict=True) if size >= AS_GOOD * max(sizes)), load

    def _ratio(self, document: dict[str, Any], level: str, load: str, metric: str, *, up: bool) -> float:
        """How many times better than the baseline; 0 where that is not known."""
        found = self.effect(document, level, load, metric)
        if found is None or found["verdict"] == "not comparable":
            return 0.0
        ratio = found["ratio"]
        if ratio is None:  # from nothing to something
            return math.inf if found["verdict"] == ("higher" if up else "lower") else 0.0
        return float(ratio if up else 1 / ratio if ratio else math.inf)

    def effect(self, document: dict[str, Any], level: str, load: str, metric: str) -> dict[str, Any] | None:
        """What the verdict says of `metric` at this level and load against the baseline."""
        return self._found(document["verdict"].get("effects", ()), level, load, metric)

    def _found(self, effects: Iterable[dict[str, Any]], level: str, load: str, metric: str) -> dict[str, Any] | None:
        for effect in effects:
            same = _key(effect["level"]) == _key(self._levels_raw.get(level))
            if same and effect["metric"] == metric and _key(effect["at"]) == _key(self._loads_raw.get(load)):
                return effect
        return None


def forbidding(summaries: list[dict[str, Any]]) -> list[str]:
    """What forbids a verdict on these repeats, each text once."""
    found = [p["text"] for s in summaries for p in s.get("problems", ()) if p["forbids_verdict"]]
    return list(dict.fromkeys(found))


def short_label(path: str | None, level: Any) -> str:
    """A level's words without what every treated level shares: "2 ms delay" for "batching on, 2 ms delay"."""
    return "as it is" if path is None else level_label(path, level).removeprefix("batching on, ")


def load_name(others: dict[str, Any]) -> str:
    """The levels of all other factors: "80 % of saturation"; ALONE when there is no other factor."""
    return ", ".join(level_label(path, level) for path, level in others.items()) or ALONE


def brief(words: str) -> str:
    """A level's words where its factor is named beside them: "80 %", "256 tokens"."""
    return words.removesuffix(" of saturation").removeprefix("answers of ").removeprefix("prompts of ")


def middle(summaries: list[dict[str, Any]], field: str) -> float | None:
    """The median of `field` over the repeats, of two their mean; None when no repeat has it."""
    values = [s[field] for s in summaries if s.get(field) is not None]
    return float(statistics.median(values)) if values else None


def mean(summaries: list[dict[str, Any]], field: str) -> float | None:
    """Over the repeats, of what is a part of a whole: medians of parts need not add up."""
    values = [s[field] for s in summaries if s.get(field) is not None]
    return float(statistics.fmean(values)) if values else None


def why_missing(summaries: list[dict[str, Any]], field: str) -> str | None:
    """The first reason a repeat gives for not having `field`."""
    return next((s["notes"][field] for s in summaries if field in s.get("notes", {})), None)


def _size(level: Any) -> float:
    """How much a level asks for: its number, or the upper end of its range."""
    largest = level[-1] if isinstance(level, list | tuple) and level else level
    return float(largest) if isinstance(largest, int | float) else 0.0


def _key(value: Any) -> str:
    """Equality of plain values whatever their container types: None-valued and left-out fields are the same."""
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if v not in (None, [], ())}
    return json.dumps(value, sort_keys=True, default=list)
