"""The words of one experiment: its loads, levels, objective and effects, as parts of a sentence.

Which of them to tell is decided in sentences.py; how a number or a level reads, in words.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from lab.measure.compare import Effect
from lab.measure.formats import QualityOf, price
from lab.measure.judgement import Comparison, Saturation, own_loads, saturated, saturated_alike
from lab.measure.phrases import a_delay, delay_us, ratio_and_interval
from lab.measure.words import (
    format_metric,
    format_rate,
    format_ratio,
    format_setting_s,
    join,
    level_label,
    metric_label,
    objective_label,
)
from lab.spec import ClosedLoop, Experiment, Judge, plain

BATCHING = "model.batching"
UNTELLING_RATIO = 20
"""A larger ratio says less than the two rates do."""
RATES = {
    "goodput_rps": ("serves", "requests"),
    "throughput_rps": ("serves", "requests"),
    "output_tokens_per_s": ("writes", "tokens a second"),
}
"""How a rate is told: what the server does, and of what it does more."""
SUBJECTS: dict[tuple[str, Any], str] = {
    ("model.kv_cache", True): "the model with the KV cache",
    ("model.kv_cache", False): "the model without the KV cache",
    ("model.scheduler", "one"): "one request at a time",
    ("model.scheduler", "static"): "static batching",
    ("model.scheduler", "continuous"): "continuous batching",
    ("model.kv_cache_precision", "bf16"): "the KV cache in bf16",
    ("model.kv_cache_precision", "int8"): "the KV cache in int8",
}
"""Levels that do something by themselves, in a sentence."""
NAMED_BY_THEMSELVES = ("model", "model.precision", "workload")
"""Factors whose levels are subjects as they read: "int8 writes 2.1× as many tokens"."""


@dataclass(frozen=True)
class Telling:
    experiment: Experiment
    judge: Judge
    saturation: Saturation
    quality: QualityOf | None = None

    def where(self, c: Comparison) -> str:
        """ "At 1,900 req/s (120 % of saturation)", "With 1 in flight, prompts of 16 tokens,", "Each under a load of its
        own,"."""
        if self.own_loads:
            return f"Each under {self.load(c)},"
        load = self.load(c)
        comma = "," if ", " in load or self.judge.factor == "model" else ""  # a model's name would run on
        return f"With {load}{comma}" if self.closed else f"At {load}"

    def load(self, c: Comparison) -> str:
        """ "1,900 req/s (120 % of saturation)", "8 in flight", "150 req/s (bf16)", "a load of its own": levels that set
        the arrivals have no rate in common."""
        labels = [level_label(path, level) for path, level in c.at.items()]
        if self.own_loads:
            return ", ".join(["a load of its own", *labels])
        if self.closed:
            if any("in flight" in label for label in labels):
                return ", ".join(labels)
            users = getattr(self.experiment.workload.arrival, "concurrency", 1)
            return ", ".join([f"{users} in flight", *labels])
        rest = [label for path, label in zip(c.at, labels, strict=True) if not path.endswith("rate_rps")]
        return f"{format_rate(c.offered_rps)}{f' ({join(rest)})' if rest else ''}"

    def at(self, levels: Mapping[str, Any]) -> str:
        """The levels of a load in words alone: "10 % of saturation", "8 in flight, prompts of 16 tokens"."""
        return ", ".join(level_label(path, level) for path, level in levels.items())

    def does(self, effect: Effect) -> str:
        """ "serves 2.6× as many requests within 20 ms (2.4 to 2.8×)", "writes 7.3× as many tokens a second as bf16"."""
        metric = effect.metric
        ratio, interval = ratio_and_interval(effect)
        if metric in RATES:
            verb, what = RATES[metric]
            slo = f" within {self.slo}" if metric == "goodput_rps" else ""
            if effect.ratio is None or effect.ratio > UNTELLING_RATIO:
                of_base = format_metric(metric, effect.a) if effect.a else "none"
                return f"{verb} {format_metric(metric, effect.b)}{slo} where {self.baseline} {verb} {of_base}"
            than = f" as {self._beside(self.judge.baseline)}" if self.judge.factor == "model" else ""
            return f"{verb} {ratio} as many {what}{slo}{than}{interval}"
        verb = {"higher": "raises", "lower": "lowers"}.get(effect.verdict, "moves")
        a, b = (format_metric(metric, value) for value in (effect.a, effect.b))
        return f"{verb} {metric_label(metric)} from {a} to {b}, {ratio}{interval}"

    def saturates(self, c: Comparison) -> str:
        """ "; it saturates at 4,100 req/s, the unbatched model at 1,600 req/s (2.6×, measured for 3 s each)"; "" where
        it was not measured, or with other requests than these."""
        found = saturated(self.saturation, self.judge.baseline, c.level)
        if found is None or not found.level or not saturated_alike(self.experiment, c):
            return ""
        base, level = (format_metric(found.field, value) for value in (found.base, found.level))
        how = f"{format_ratio(found.ratio)}, measured for {format_setting_s(round(found.window_s, 1))} each"
        return f"; it saturates at {level}, {self.baseline} at {base} ({how})"

    def price(self, c: Comparison) -> str:
        """ ", in 0.52× the peak memory (412 MiB against 793 MiB) and with no measurable loss of quality (…)": with
        what the speed of a level that answers differently is to be seen; "" where all levels answer alike."""
        if self.quality is None:
            return ""
        if self.judge.primary == "memory_peak_bytes":  # which was said just before
            return price(self.quality(c.level), None, None)
        effect = c.effects.get("memory_peak_bytes")
        if effect is not None and effect.verdict != "not comparable":
            memory, base = effect.b, effect.a
        else:  # of repeats the median, as a page's cards show it
            peaks = [[s.memory_peak_bytes for s in side.summaries if s.memory_peak_bytes] for side in (c.cell, c.base)]
            memory, base = (float(median(known)) if known else None for known in peaks)
        return price(self.quality(c.level), memory, base)

    def subject(self, level: Any) -> str:
        """ "batching with a 2 ms delay", "the model with the KV cache", "the server with 2 instances"."""
        if self.judge.factor == BATCHING and isinstance(level, dict):
            delay = delay_us(level)
            return f"batching with {a_delay(delay)}" if delay else "batching without a delay"
        if isinstance(level, str | bool) and (self.judge.factor, level) in SUBJECTS:
            return SUBJECTS[self.judge.factor, level]
        levels = self.experiment.factors.get(self.judge.factor, ())
        label = level_label(self.judge.factor, level, among=levels)
        if self.judge.factor == "model":
            return self._beside(level)
        return label if self.judge.factor in NAMED_BY_THEMSELVES else f"the server with {label}"

    def _beside(self, level: Any) -> str:
        """A level of the model without what all levels share: "trees" of "trees, batching on, no delay"."""
        levels = [plain(other) for other in self.experiment.factors.get("model", ())]
        own = plain(level)
        if not isinstance(own, dict) or not all(isinstance(other, dict) for other in levels):
            return level_label("model", own, among=levels)
        shared = {k for k, v in own.items() if len(levels) > 1 and all(k in o and o[k] == v for o in levels)}
        if len(shared) == len(own):  # another level adds to it
            shared = set()
        without = [{k: v for k, v in other.items() if k not in shared} for other in levels]
        return level_label("model", {k: v for k, v in own.items() if k not in shared}, among=without)

    @property
    def baseline(self) -> str:
        level = plain(self.judge.baseline)
        if self.judge.factor == BATCHING and level is None:
            return "the unbatched model"
        if isinstance(level, str | bool) and (self.judge.factor, level) in SUBJECTS:
            return SUBJECTS[self.judge.factor, level]
        return self._beside(level) if self.judge.factor == "model" else level_label(self.judge.factor, level)

    @property
    def slo(self) -> str:
        return objective_label(self.experiment.slo)

    @property
    def own_loads(self) -> bool:
        """Whether the judged factor is, or sets, how requests arrive."""
        return own_loads(self.experiment, self.judge.factor)

    @property
    def closed(self) -> bool:
        return isinstance(self.experiment.workload.arrival, ClosedLoop)
