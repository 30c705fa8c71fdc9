"""The section "Ten fine-tunes on one device" of the page Multi-model memory, and the choice of a section."""

from __future__ import annotations

import json

import pandas as pd
import streamlit as st

from lab.measure import lora as figures
from lab.serve.lora.lessons import lessons
from lab.show.charts import lora as charts
from lab.show.charts.figure import Chart
from lab.show.ui import parts
from lab.show.ui.topic import Link, Seen, Topic
from lab.spec import Experiment

PARTS = {"multi_model": "Many models", "lora": "Ten fine-tunes"}
MIB = 2**20


def part() -> str:
    return parts.chosen(PARTS, "m_part")


def form(experiment: Experiment) -> list[str]:
    """Which fine-tunes; what each is taught stands below."""
    known = lessons()
    names = st.pills(
        "Fine-tunes",
        list(known),
        selection_mode="multi",
        default=list(known),
        key="m_tunes",
        bind="query-params",
        format_func=lambda name: known[name].title,
    ) or list(known)
    with st.expander("What each is taught", key="m_taught"):
        for name in names:
            st.markdown(f"- **{known[name].title}**: {known[name].teaches}, from {len(known[name].taught)} examples")
    if list(names) == list(known):
        return []
    levels = [{"adapters": []}, {"adapters": names}, {"adapters": names, "merge_adapters": True}]
    return [f"model={json.dumps(levels)}"]


def happened(seen: Seen) -> list[Chart]:
    found = seen.document["lora"]
    return [] if found is None else [charts.memory(found), charts.taught(found)]


def cause(seen: Seen) -> str:
    found = seen.document["lora"]
    return "" if found is None else figures.loading(found)


def why(seen: Seen) -> list[Chart]:
    return []


def answers(seen: Seen) -> None:
    """What base, adapter and copy answer, side by side, by fine-tune."""
    found = seen.document["lora"]
    if found is None or not found["lessons"]:
        return
    by_name = {lesson["name"]: lesson for lesson in found["lessons"]}
    st.subheader("Answers side by side")
    name = st.segmented_control(
        "Fine-tune",
        list(by_name),
        default=next(iter(by_name)),
        required=True,
        key="m_lesson",
        bind="query-params",
        format_func=lambda one: by_name[one]["title"],
    )
    lesson = by_name[str(name)]
    size = next((one["bytes"] for one in found["adapters"] if one["name"] == name), None)
    held = "" if size is None else f", {size / MIB:.1f} MiB"
    st.caption(f"It {lesson['teaches']}{held}. None of these questions was taught.")
    columns = {"Question": lesson["questions"]}
    for who, label in (("base", "The base"), ("adapter", "With the adapter"), ("copy", "Its full copy")):
        if who in lesson["answers"]:
            columns[label] = lesson["answers"][who]
    st.table(pd.DataFrame(columns).set_index("Question"))  # whose texts break where they are long


def _next(model: str) -> list[Link]:
    return [
        Link("pages/memory.py", "Many models instead: where does swapping ruin it?", ":material/view_cozy:"),
        Link("pages/quantization.py", "Make the base itself smaller", ":material/compress:"),
    ]


TOPIC = Topic(
    experiment="lora",
    page="pages/memory.py",
    prefix="l",
    title="Ten fine-tunes on one device",
    bet=(
        "Eight users name one of ten fine-tunes each. As adapters of one base: how many tokens a second will they get, "
        "compared to the base alone?"
    ),
    counted="Tokens",
    form=form,
    depths="quick: about two minutes, four fine-tunes, rough. whole: about six, ten of them (and two to teach, once).",
    figures={
        "output_tokens_per_s": "Tokens a second",
        "memory_peak_bytes": "Peak host memory (PSS)",
        "ttft_p50_s": "TTFT p50",
        "itl_mean_s": "Mean ITL",
    },
    happened=happened,
    cause=cause,
    why=why,
    beside=answers,
    compared=("output_tokens_per_s", "memory_peak_bytes", "ttft_p50_s", "itl_mean_s"),
    next=_next,
)
