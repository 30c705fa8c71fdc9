"""The parts of the page Quantization: which formats to run, what each buys and costs, and answers side by side."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from lab.measure.formats import format_label, is_baseline, quality_phrase
from lab.measure.ledger import INTEGER
from lab.measure.quality import Answer
from lab.measure.reconcile import Row
from lab.measure.words import level_label, plural
from lab.show.charts import formats as charts
from lab.show.charts import memory, stacks
from lab.show.charts import quality as loss
from lab.show.charts.figure import Chart
from lab.show.formats import Shown, evaluated, shown
from lab.show.ui import chore, reads, runs
from lab.show.ui.topic import Seen
from lab.spec import PRECISIONS, Experiment, ModelSpec, set_paths


def form(experiment: Experiment) -> list[str]:
    """The formats to compare with the baseline, which always runs."""
    factor = experiment.judge.factor if experiment.judge else "model"
    labels = {level_label(factor, level): level for level in experiment.factors[factor]}
    baseline = level_label(factor, experiment.judge.baseline if experiment.judge else None)
    quick = [level_label(factor, level) for level in experiment.when_quick().factors[factor]]
    chosen = st.pills(
        f"Formats beside {baseline}",
        [label for label in labels if label != baseline],
        selection_mode="multi",
        default=[label for label in quick if label != baseline],
        key="q_formats",
        bind="query-params",
        help="int8: weights and activations in 8 bits. int4: weights in 4, activations in 8. int8 weights: weights "
        "only. RTN rounds to the nearest; GPTQ and AWQ look at texts first.",
    )
    levels = [level for label, level in labels.items() if label == baseline or label in chosen]
    return [f"{factor}={json.dumps(levels)}"]


def happened(seen: Seen) -> list[Chart]:
    found = _shown(seen)
    return [
        charts.price(found, seen.load),
        loss.losses(found),
        stacks.by_format(found, seen.load),
    ]


def cause(seen: Seen) -> str:
    """What limits the chosen format's step, and what that means beside the baseline's."""
    cells = seen.grid.cells_at(seen.level, seen.load)
    told = cells[0].get("floor") if cells else None
    beside = cells[0].get("beside") if cells else None
    why = " ".join(text for text in (told, beside) if text)
    return f"**{seen.level}, {seen.load}.** {why}" if why else ""


def why(seen: Seen) -> list[Chart]:
    return [charts.floors(_shown(seen), seen.load), ledger(seen), *_sensitivity(seen)]


def unmeasured(document: Mapping[str, Any]) -> list[Chart]:
    """What a run found of its formats' quality, when it ended before any of them was measured."""
    found = evaluated(document)
    return [loss.losses(found)] if any(f.quality for f in found) else []


def ledger(seen: Seen) -> Chart:
    """Of the first repeat at this level and load."""
    cells = seen.grid.cells_at(seen.level, seen.load)
    rows = cells[0].get("ledger") if cells else None
    if rows is None:
        return memory.ledger([], seen.level, "the run did not note what it would take")
    fields = ("name", "predicted_bytes", "measured_bytes", "how", "formula")
    told = [Row(**{field: row[field] for field in fields}) for row in rows]
    return memory.ledger(told, seen.level, peak_bytes=cells[0]["summary"].get("memory_peak_bytes"))


def answers(seen: Seen) -> None:
    """The baseline's answers and those of the chosen level side by side, and what belongs beside every figure."""
    _find_blocks(seen)
    chosen = next((f for f in _shown(seen) if f.level == seen.level), None)
    if chosen is None or chosen.quality is None:
        why_not = chosen.why_no_quality if chosen else "it was not measured at this load"
        st.caption(f"No answers to compare: quality of {seen.level} {why_not}.")
        return
    quality = chosen.quality
    if not quality.answers:
        return
    st.markdown("##### The same prompt, answered by both")
    prompts = [answer.prompt for answer in quality.answers]
    place = st.selectbox(
        "Prompt", range(len(prompts)), format_func=lambda n: _short(prompts[n]), key="q_prompt", bind="query-params"
    )
    answer = quality.answers[place or 0]
    left, right = st.columns(2, gap="large")
    ours, theirs = marked(answer)
    left.markdown(f"**{quality.baseline}**")
    left.html(f"<div class='lab-answer'>{theirs}</div>")
    right.markdown(f"**{quality.format}**")
    right.html(f"<div class='lab-answer'>{ours}</div>")
    st.caption(f"{_differs(answer)} What is marked stands on one side only.")


RELATED = {
    "precision": ("What does int8 buy a model without tokens? About a minute", ":material/image:"),
    "kv_precision": ("What does a KV cache in 8 bits save? About two minutes", ":material/memory:"),
}
"""Experiments on precision that have no page of their own, each with its question."""


def related() -> None:
    """A quick run of each, and what the newest one found."""
    st.subheader("More on precision")
    going = bool(reads.active_runs())
    for name, (question, icon) in RELATED.items():
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(question, icon=icon, key=f"q_{name}", disabled=going):
                runs.start(name, [], quick=True, page="pages/live.py")
            newest = next((line for line in reads.run_lines() if line.experiment == name), None)
            if newest is not None:
                runs.link(newest.run_id, name, "What the newest run of it found")


def marked(answer: Answer) -> tuple[str, str]:
    """(the format's answer, the baseline's) as HTML; tokens that the other one does not have there are marked."""
    ours, theirs = [], []
    matcher = SequenceMatcher(None, answer.pieces, answer.baseline_pieces, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        ours.append(_piece("".join(answer.pieces[a:b]), kind))
        theirs.append(_piece("".join(answer.baseline_pieces[c:d]), kind))
    return "".join(ours), "".join(theirs)


def _piece(text: str, kind: str) -> str:
    escaped = html.escape(text)
    return escaped if kind == "equal" or not text else f"<mark>{escaped}</mark>"


def _differs(answer: Answer) -> str:
    length = max(len(answer.pieces), len(answer.baseline_pieces))
    if answer.first_difference is None:
        return f"All {plural(length, 'token')} are the same."
    return f"The first of {plural(length, 'token')} that differs is number {answer.first_difference + 1}."


def _short(prompt: str, most: int = 90) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _shown(seen: Seen) -> list[Shown]:
    return shown(seen.document, seen.grid, seen.load)


def _sensitivity(seen: Seen) -> list[Chart]:
    """Of the chosen format, if it was quantized and its blocks were evaluated one by one."""
    spec = seen.spec
    found = reads.known_blocks(spec) if spec.family == "llm" and spec.precision in INTEGER else None
    return [loss.sensitivity(found, seen.level)] if found else []


def _find_blocks(seen: Seen) -> None:
    """What finds out which blocks hurt, where that was not evaluated."""
    spec = seen.spec
    if spec.family != "llm" or spec.precision not in INTEGER or reads.known_blocks(spec) or not reads.is_here(spec):
        return
    fields = ("precision", "quantizer", *(["group_size"] if spec.precision == "int4" else []))
    settings = [f"--set=model.{field}={getattr(spec, field)}" for field in fields]
    name = "-".join(["blocks", *(str(getattr(spec, field)) for field in fields)]).replace("_", "-")
    chore.offer(
        name,
        f"Find which blocks of the model {seen.level} hurts most",
        ["quality", *settings, "--blocks"],
        icon=":material/troubleshoot:",
        done=reads.known_blocks.clear,
    )


FORMATS: tuple[dict[str, str], ...] = (
    {"precision": "bf16"},
    {"precision": "fp32"},
    {"precision": "fp16"},
    {"precision": "int8"},
    {"precision": "int8", "quantizer": "smoothquant"},
    {"precision": "int8_weight"},
    {"precision": "int4"},
    {"precision": "int4", "quantizer": "gptq"},
    {"precision": "int4", "quantizer": "awq"},
    {"precision": "bf16", "kv_cache_precision": "int8"},
)
"""What Live run and Try it offer of a language model, those without a meaning for the one at hand left out."""


def offered(model: ModelSpec) -> dict[str, dict[str, Any]]:
    """The formats of any family, by their words, and all fields that decide each; one where there is no choice."""
    if model.family != "llm":
        return {level_label("model.precision", p): {"precision": p} for p in PRECISIONS[model.family]}
    found = [
        {"quantizer": "rtn", "kv_cache_precision": None, **fields}
        for fields in FORMATS
        if (fields["precision"] != "fp16" or model.device == "gpu")
        and (model.kv_cache or "kv_cache_precision" not in fields)
    ]
    return {format_label(_in(model, fields)): fields for fields in found}


def choose(
    model: ModelSpec,
    place: DeltaGenerator,
    *,
    key: str,
    send: Callable[[dict[str, Any]], None] | None = None,
    **more: Any,
) -> ModelSpec:
    """A choice among the formats that are on this machine, with the quality of the one chosen and what belongs beside
    it; the model in that format. `send` is given the change when the choice changes."""
    known = offered(model)
    one_file = model.family != "llm"  # from which each precision is made when it is loaded
    here = {label: fields for label, fields in known.items() if one_file or reads.is_here(_in(model, fields))}
    own = format_label(model)
    here.setdefault(own, {field: getattr(model, field) for field in ("precision", "quantizer", "kv_cache_precision")})

    def changed() -> None:
        if send is not None:
            send({"model": here[st.session_state[key]]})

    missing = [label for label in known if label not in here]
    label = place.selectbox(
        "Format",
        list(here),
        key=key,
        on_change=changed,
        persist_state=None if "bind" in more else "session",
        help=f"Not made yet: {', '.join(missing)}; the experiment on Quantization makes them." if missing else None,
        **more,
    )
    chosen = _in(model, here[label or own])
    if not is_baseline(chosen):
        found = reads.known_quality(chosen)
        said = f"{label}: {quality_phrase(found) if found else 'its quality was not evaluated yet'}."
        st.caption(" ".join([said, *(found.notes if found else ())]))
    return chosen


def _in(model: ModelSpec, fields: dict[str, Any]) -> ModelSpec:
    return set_paths(model, list(fields.items()))
