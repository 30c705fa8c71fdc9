"""The quality of a format: what is known of it, and how to find out; lab/measure/quality.py says what it means.

What an evaluation saw, item by item, is kept in LAB_HOME/quality under a hash of all that decides it: the weights, the
code that computes with them, precision, cache and device, the texts and questions, and the version of this file. So a
format is evaluated once, and figures are judged anew from what was seen. The evaluation runs in a process of its own
(lab/run/evaluation.py); whoever calls `evaluate` while others measure holds the lock (lab/run/lock.py).
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lab import atomic, home
from lab.errors import InputError, RunError
from lab.measure.formats import BASELINES, format_label, is_baseline
from lab.measure.quality import WERE_4_BIT, Answer, Quality, Sensitivity, first_difference, judge
from lab.run import exam
from lab.serve import job, quantized, repository, weights
from lab.serve.quantize import prose
from lab.spec import PRECISIONS, QUANTIZERS, ModelSpec, parse, plain, set_path

FAMILIES = ("llm", "embedder", "digits")
EVALUATION_VERSION = 1
"""Of what is asked and how; another one evaluates everything anew."""


def baseline_of(spec: ModelSpec) -> ModelSpec | None:
    """What the quality of `spec` is compared with: the same weights, unquantized. None when these were never here,
    because somebody else quantized them."""
    if quantized.scheme(spec) is not None:
        return None
    plain = ModelSpec(name=spec.name, family=spec.family, weights=spec.weights, device=spec.device, seed=spec.seed)
    return set_path(plain, "precision", BASELINES.get(spec.family, "fp32"))


def known(spec: ModelSpec) -> Quality | None:
    """What was evaluated before; None when it was not, or its weights are not here. Reads two small files."""
    if spec.family not in FAMILIES:
        return None
    baseline = baseline_of(spec)
    mine, theirs = _read(spec), None if baseline is None else _read(baseline)
    if mine is None or (baseline is not None and theirs is None):
        return None
    return _quality(spec, mine, theirs)


def evaluate(spec: ModelSpec, progress: home.Progress | None = None) -> Quality:
    """What `known` gives, evaluated now where it is missing: up to a minute of all processors. InputError for a family
    without quality, RunError when it does not work."""
    check(spec)
    baseline = baseline_of(spec)
    theirs = None if baseline is None else _seen(baseline, None, progress)
    mine = theirs if is_baseline(spec) and theirs else _seen(spec, baseline, progress)
    return _quality(spec, mine, theirs)


def check(spec: ModelSpec) -> None:
    """InputError for what cannot be evaluated, as far as that shows without fetching or computing."""
    if spec.family not in FAMILIES:
        raise InputError(f"quality of family {spec.family}: it has none; allowed: {', '.join(FAMILIES)}")
    weights.check(spec)


def known_blocks(spec: ModelSpec) -> tuple[Sensitivity, ...] | None:
    """What each block costs alone, where that was evaluated before."""
    place = _blocks_place(spec) if quantized.is_quantized(spec) else None
    found = None if place is None else _read_file(place)
    return None if found is None else tuple(Sensitivity(**block) for block in found["blocks"])


def check_blocks(spec: ModelSpec) -> None:
    """InputError for a format of which no block can be quantized alone."""
    if not quantized.is_quantized(spec) or baseline_of(spec) is None:
        raise InputError(
            f"blocks of {format_label(spec)}: nothing was quantized here; allowed: int8, int8_weight, int4"
        )


def evaluate_blocks(spec: ModelSpec, progress: home.Progress | None = None) -> tuple[Sensitivity, ...]:
    """What `known_blocks` gives, evaluated now where it is missing: a minute of all processors. InputError as
    `check_blocks`."""
    check_blocks(spec)
    weights.prepare(spec, progress)
    place = _blocks_place(spec)
    assert place is not None  # noqa: S101  the weights are there
    with home.locked(place.with_suffix(".lock"), _waits(spec)):
        if _read_file(place) is None:
            _write_file(place, {"blocks": _run(spec, baseline_of(spec), progress, blocks=True)})
    return known_blocks(spec) or ()


def formats(spec: ModelSpec) -> list[ModelSpec]:
    """Every format of the spec's family on its device, the baseline first; a checkpoint has its own only."""
    baseline = baseline_of(spec)
    if baseline is None:
        return [spec]
    precisions = [p for p in PRECISIONS[spec.family] if not (p == "fp16" and spec.device == "cpu")]
    levels: list[dict[str, Any]] = [{"precision": precision} for precision in precisions]
    if spec.family == "llm":
        levels = [
            {"precision": precision, "quantizer": quantizer, "group_size": spec.group_size}
            for precision in precisions
            for quantizer in QUANTIZERS.get(precision, ("rtn",))
        ]
        levels.append({"kv_cache_precision": "int8"})
    found = [parse(ModelSpec, {**plain(baseline), **level}) for level in levels]
    return [baseline, *(other for other in found if not is_baseline(other))]


# --- what was seen -----------------------------------------------------------------------------------------------


def _seen(spec: ModelSpec, baseline: ModelSpec | None, progress: home.Progress | None) -> dict[str, Any]:
    weights.prepare(spec, progress)
    place = _place(spec)
    assert place is not None  # noqa: S101  the weights are there
    with home.locked(place.with_suffix(".lock"), _waits(spec)):
        found = _read(spec)  # by whoever held the lock, perhaps
        if found is None:
            began = time.perf_counter()
            found = {"seen": _run(spec, baseline, progress), "evaluated_s": round(time.perf_counter() - began, 1)}
            _write_file(place, found)
    return found


def _waits(spec: ModelSpec) -> Callable[[], None]:
    return lambda: print(f"{format_label(spec)} is being evaluated already; waiting", file=sys.stderr, flush=True)


def _read(spec: ModelSpec) -> dict[str, Any] | None:
    place = _place(spec)
    return None if place is None else _read_file(place)


def _read_file(place: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(place.read_text())
    except (OSError, ValueError):  # a damaged one is evaluated anew
        return None
    return found


def _write_file(place: Path, document: dict[str, Any]) -> None:
    atomic.write(place, json.dumps(document) + "\n")


def _blocks_place(spec: ModelSpec) -> Path | None:
    """Weights alone decide it, and the texts."""
    place = weights.folder(spec) if weights.is_ready(spec) else None
    if place is None:
        return None
    name = f"blocks-{place.name}-{prose.judged_digest()[:8]}-{EVALUATION_VERSION}.json"
    return home.home() / "quality" / name


def _place(spec: ModelSpec) -> Path | None:
    """Where what was seen belongs; None while there are no weights, whose contents decide the name."""
    if not weights.is_ready(spec):
        return None
    place = weights.folder(spec)
    assert place is not None  # noqa: S101  FAMILIES have weights
    decides = {
        "version": EVALUATION_VERSION,
        "weights": place.name if quantized.is_quantized(spec) else quantized.contents(place),
        "code": _code(spec.family),
        "texts": prose.judged_digest(),
        "questions": hashlib.sha256(repr((exam.CLOZE, exam.FACTS, exam.PROMPTS)).encode()).hexdigest(),
        "precision": spec.precision,
        "kv_cache_precision": spec.kv_cache_precision if spec.kv_cache_precision != spec.precision else None,
        "kv_cache": spec.kv_cache,
        "device": spec.device,
    }
    name = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:20]
    return home.home() / "quality" / f"{spec.family}-{name}.json"


@cache
def _code(family: str) -> str:
    """SHA-256 of the code that computes with the weights: another kernel may round otherwise."""
    first = "decoder" if family == "llm" else family
    files = [repository.MODELS / f"{name}.py" for name in sorted({first, *repository.imported(first)})]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _run(spec: ModelSpec, baseline: ModelSpec | None, progress: home.Progress | None, *, blocks: bool = False) -> Any:
    wanted = {
        "spec": spec.model_dump(mode="json"),
        "baseline": baseline and baseline.model_dump(mode="json"),
        "blocks": blocks,
    }
    try:
        return job.do("lab.run.evaluation", wanted, progress or home.steps)
    except job.Failed as error:
        raise RunError(f"the quality of {format_label(spec)} could not be evaluated: {error}") from None


# --- what it means -----------------------------------------------------------------------------------------------


def _quality(spec: ModelSpec, mine: dict[str, Any], theirs: dict[str, Any] | None) -> Quality:
    baseline = baseline_of(spec)
    same = is_baseline(spec)
    compared = None if same or theirs is None else theirs["seen"]
    return Quality(
        format=format_label(spec),
        baseline="" if baseline is None else format_label(baseline),
        is_baseline=same,
        measures=judge(mine["seen"], compared),
        answers=() if compared is None else _answers(mine["seen"], compared),
        notes=_notes(spec),
        evaluated_s=mine["evaluated_s"],
    )


def _answers(seen: dict[str, Any], before: dict[str, Any]) -> tuple[Answer, ...]:
    if "answers" not in seen:
        return ()
    return tuple(
        Answer(prompt, tuple(pieces), tuple(base_pieces), first_difference(ids, base_ids))
        for prompt, pieces, base_pieces, ids, base_ids in zip(
            exam.PROMPTS, seen["pieces"], before["pieces"], seen["answers"], before["answers"], strict=True
        )
    )


def _notes(spec: ModelSpec) -> tuple[str, ...]:
    found = []
    given = quantized.scheme(spec) if quantized.is_quantized(spec) else None
    if given is not None:
        found.append(f"The weights came as {given}; without the unquantized ones there is no baseline and no loss.")
    if spec.precision == "int4":
        found.append("Embedding and head are 8 bit, all other matrices 4 bit.")
        if spec.weights is None:
            found.append(WERE_4_BIT)
    document = quantized.document(spec) if quantized.is_quantized(spec) else None
    if document and document["warning"]:
        found.append(f"Warning: {document['warning']}.")
    return tuple(found)
