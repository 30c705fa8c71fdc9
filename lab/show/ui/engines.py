"""The second part of the page Your server: language model engines beside each other, the form and what came of it."""

from __future__ import annotations

import shlex
from typing import Any

import pandas as pd
import streamlit as st

from lab.measure.quality import Answer, first_difference
from lab.measure.words import format_metric, metric_label
from lab.run.beside import FIGURES, pieces
from lab.run.engines import Engine
from lab.run.folder import RunFolder
from lab.run.lock import who_measures
from lab.show.charts import engines as charts
from lab.show.ui import chart, reads, runs
from lab.show.ui.cards import Card, cards
from lab.show.ui.formats import marked
from lab.show.ui.words import why_ended

EXPERIMENT = "engines"
EXAMPLE = "openai+http://127.0.0.1:8100=SmolLM2-135M-Instruct"


def in_link() -> bool:
    """Whether the page's link holds such a run."""
    run_id = st.query_params.get("run", "")
    return any(line.run_id == run_id and line.experiment == EXPERIMENT for line in reads.run_lines())


def show() -> None:
    """The run in the link, and the form for another."""
    folder = runs.chosen(lambda line: line.experiment == EXPERIMENT)
    if folder is not None and folder.document["experiment"]["id"] == EXPERIMENT:
        result(folder)
    ask()


def result(folder: RunFolder) -> None:
    """What a run found, or how far it is."""
    status = folder.status()
    if status.active:
        st.info(f"{status.phase}. The figures are here when it is over.", icon=":material/hourglass_top:")
        runs.link(folder.run_id, EXPERIMENT, "Watch it", active=True)
        return
    document = reads.document(folder)
    if status.state != "done":
        st.warning(why_ended(status, document), icon=":material/incomplete_circle:")
    found = document.get("engines")
    if not found or not any(row["blocks"] for row in found["rows"]):
        return
    st.markdown(f"#### {found['text'].partition('. ')[0].rstrip('.')}.")
    st.markdown(found["text"].partition(". ")[2])
    cards([_card(row) for row in found["rows"]])
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(charts.speed(found["rows"]), key="e_speed")
    with right:
        chart.show(charts.begins(found["rows"]), key="e_begins")
    _table(found)
    _words(found)


def _card(row: dict[str, Any]) -> Card:
    figures, agreed = row["figures"], row["agreement"]
    counted = figures["output_tokens_per_s"] is not None
    metric = "output_tokens_per_s" if counted else "throughput_rps"
    same = "" if agreed is None else f", {agreed['equal']} of {agreed['of']} in the same words"
    beside = f"TTFT {format_metric('ttft_p50_s', figures['ttft_p50_s'])}{same}"
    return Card(row["name"], format_metric(metric, figures[metric]), beside, row["error"])


def _table(found: dict[str, Any]) -> None:
    table: dict[str, list[str]] = {"engine": [row["name"] for row in found["rows"]]}
    for name in FIGURES:
        table[metric_label(name)] = [format_metric(name, row["figures"][name]) for row in found["rows"]]
    table["same words"] = [
        "n/a" if row["agreement"] is None else f"{row['agreement']['equal']} of {row['agreement']['of']}"
        for row in found["rows"]
    ]
    table["what went wrong"] = [row["error"] or "" for row in found["rows"]]
    st.dataframe(
        pd.DataFrame(table), hide_index=True, alt="The engines beside each other, with how far their words agree"
    )


def _words(found: dict[str, Any]) -> None:
    """One engine's answers beside the first one's, what differs marked."""
    said = [row for row in found["rows"] if row["texts"]]
    if len(said) < 2:
        return
    st.markdown("##### The same prompt, answered by both")
    names = {row["name"]: row for row in said}
    first, others = said[0], list(names)[1:]
    left, right = st.columns(2, gap="large")
    other = names[left.selectbox("Engine", others, key="e_other", bind="query-params")]
    labels = [" ".join(text.split()) for text in found["questions"]]
    place = right.selectbox(
        "Prompt", range(len(labels)), format_func=lambda n: labels[n], key="e_prompt", bind="query-params"
    )
    a, b = pieces(first["texts"][place]), pieces(other["texts"][place])
    theirs, ours = marked(Answer(labels[place], tuple(b), tuple(a), first_difference(b, a)))
    for column, row, text in ((left, first, ours), (right, other, theirs)):
        column.markdown(f"**{row['name']}**")
        column.html(f"<div class='lab-answer'>{text}</div>")
    st.caption("What is marked stands on one side only. Other words are no proof of worse ones.")


def ask() -> None:
    """Which engines, and the load; the button starts a run of its own."""
    st.subheader("Ask several engines the same")
    with st.container(border=True):
        text = st.text_area(
            "Engines, one a line: URL=MODEL",
            key="e_engines",
            placeholder=EXAMPLE,
            help="openai+http:// for vLLM and its like (with /v1/chat/completions behind it as a chat), "
            "torchserve+http:// for TorchServe, grpc:// or http:// for a language model in a Triton.",
        )
        users, seconds, prompt, answer, own = st.columns(5, vertical_alignment="bottom")
        load = {
            "--concurrency": users.number_input("In flight", 1, 512, 4, key="e_users"),
            "--duration": seconds.number_input("Seconds a turn", 2, 3600, 20, key="e_seconds"),
            "--prompt-tokens": prompt.number_input("Tokens of a prompt", 1, 4096, 32, key="e_prompt_tokens"),
            "--output-tokens": answer.number_input("Tokens of an answer", 1, 4096, 64, key="e_output_tokens"),
        }
        with_own = own.toggle("The lab's own too", value=True, key="e_own")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for line in lines:
            Engine.read(line)
        arguments = [word for line in lines for word in ("--engine", line)]
        arguments += [word for option, value in load.items() for word in (option, str(value))]
        arguments += [] if with_own else ["--no-own"]
        holder, enough = who_measures(), len(lines) + with_own > 1
        go = st.button(
            "Measure", type="primary", key="e_go", icon=":material/play_arrow:", disabled=not enough or bool(holder)
        )
        if holder is not None:
            st.caption(f"{holder} measures now; one run measures at a time.")
        elif not enough:
            st.caption("Name one engine more: alone, an engine is no comparison.")
    with st.expander("The same in a terminal", icon=":material/terminal:", type="compact"):
        st.code(f"python -m lab engines {shlex.join(arguments)}", language=None, wrap_lines=True)
    if go:
        runs.start_command(EXPERIMENT, arguments, page="pages/live.py", then="your_server")
