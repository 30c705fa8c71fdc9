"""One measured setting against another, in numbers and in one sentence.

The sentence gives the figure that the objective asks for first, as a ratio with its interval and beside the smallest
difference that could have been told. "No detectable difference" is an answer, and where something forbids a verdict
that is said in its place. Whoever failed more is never called faster (the comparison of times is then withheld and
the share that failed is in the sentence).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.measure import noise as passport
from lab.measure import power
from lab.measure.compare import Effect, compare
from lab.measure.phrases import latency_phrase, ratio_phrase
from lab.measure.sides import Side, doubts, identical
from lab.measure.words import format_fraction, format_metric, metric_label, objective_label

TIMES = ("latency_p50_s", "latency_p99_s")
TOKEN_TIMES = ("ttft_p50_s", "itl_mean_s")


@dataclass(frozen=True)
class Versus:
    """b against a. `effects` by metric, the first being the one that decides; `forbids` and `read_with` are
    sides.doubts; `text` is the headline; `noise_floors`: by metric, what two equal settings may differ
    by on this machine, where its passport says so."""

    a: str
    b: str
    effects: dict[str, Effect]
    forbids: tuple[str, ...]
    read_with: tuple[str, ...]
    identical: bool
    text: str
    noise_floors: dict[str, float] = field(default_factory=dict)


def metrics(a: Side, b: Side) -> tuple[str, ...]:
    """What is compared: what was served in time, all that was served, two times, and the share that failed. Sides that
    were asked for different rates serve different rates, so there the share served in time decides."""
    writes = all(s.get("output_tokens_per_s") is not None for side in (a, b) for s in side.summaries)
    every = "output_tokens_per_s" if writes else "throughput_rps"
    first = "goodput_rps" if asked_alike(a, b) else "slo_attainment_fraction"
    return (first, every, *(TOKEN_TIMES if writes else TIMES), "error_fraction")


def asked_alike(a: Side, b: Side) -> bool:
    """Whether both met the same arrivals, or both closed loops as many users."""
    return a.workload.get("arrival") == b.workload.get("arrival")


def versus(a: Side, b: Side, label_a: str, label_b: str) -> Versus:
    """b against a; the objective is a's."""
    forbids, read_with = doubts(a, b, (label_a, label_b))
    same = identical(a, b)
    effects = {}
    if (a.run_id, a.cell) != (b.run_id, b.cell) and a.blocks and b.blocks:
        effects = {metric: compare(a.blocks, b.blocks, metric, a.slo) for metric in metrics(a, b)}
    repeats = min(len(a.blocks), len(b.blocks))
    noise = a.noise if a.noise is not None and b.noise == a.noise else None
    floors = {} if noise is None else {name: floor for name in effects if (floor := noise.floor(name, repeats))}
    text = _headline(a, label_a, label_b, effects, forbids, same, power.measured_s(a.blocks, b.blocks))
    if effects and not forbids and noise is not None:
        mind = passport.told(next(iter(effects.values())), noise, repeats)
        text = f"{text} {mind}".rstrip()
    return Versus(label_a, label_b, effects, tuple(forbids), tuple(read_with), same, text, floors)


def floor_fraction(effect: Effect) -> float | None:
    """The smallest relative difference that this comparison could have told from none: the half-width of the
    interval. None where there is no ratio."""
    if not effect.ratio or effect.ci_high is None:
        return None
    return effect.ci_high / effect.ratio - 1


def _headline(
    a: Side,
    label_a: str,
    label_b: str,
    effects: dict[str, Effect],
    forbids: Sequence[str],
    same: bool,
    measured_s: float,
) -> str:
    if not effects:
        return forbids[0] if forbids else "There is nothing to compare."
    if forbids:
        return f"No verdict on {label_b}: {forbids[0][0].lower()}{forbids[0][1:]}"
    main = next(iter(effects.values()))
    words = [_main(main, label_a, label_b, objective_label(a.slo), measured_s)]
    if main.metric == "slo_attainment_fraction":
        words.insert(0, "They were asked differently, so the share served in time is compared, not how much was.")
    if same:
        words.insert(0, "Both are the same in every setting, so a difference between them is noise.")
    if failed := _failed(effects["error_fraction"]):
        words.append(failed)
    times = [effect for name, effect in effects.items() if name.endswith("_s") and "per_s" not in name]
    known = [effect for effect in times if effect.verdict != "not comparable"]
    if known:
        words.append(f"It {latency_phrase(known)}.")
    withheld = [effect for effect in times if effect.verdict == "not comparable"]
    if withheld:
        words.append(f"{metric_label(withheld[0].metric)} is not compared: {withheld[0].reason}.")
    return " ".join(words)


def _main(effect: Effect, label_a: str, label_b: str, objective: str, measured_s: float) -> str:
    """The first sentence."""
    of = f"{metric_label(effect.metric)} within {objective}"
    figures = f"{format_metric(effect.metric, effect.b)} against {format_metric(effect.metric, effect.a)}"
    if effect.verdict == "not comparable":
        return f"{label_b} and {label_a} cannot be compared on {of}: {effect.reason}."
    floor = floor_fraction(effect)
    if effect.verdict == "no detectable difference":
        could = power.told(effect, measured_s)
        told = f"; {could}" if could else ""
        return f"No detectable difference between {label_b} and {label_a} in {of}: {figures}{told}."
    if effect.ratio is None or floor is None:
        more = "more" if effect.verdict == "higher" else "less"
        return f"{label_b} has {more} {of} than {label_a}: {figures}."
    return f"{label_b} has {ratio_phrase(effect)} the {of} of {label_a}: {figures}."


def _failed(effect: Effect) -> str:
    """What failed on either side, where it did; a server that refuses is fast and serves nobody."""
    if not effect.a and not effect.b:
        return ""
    return f"{format_fraction(effect.b)} of its requests failed, against {format_fraction(effect.a)}."
