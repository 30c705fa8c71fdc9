"""The parts of "Try it": the prompt and its settings, the answer as it comes, and the figures that tools make of it."""

from __future__ import annotations

import html
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from lab.errors import LabError
from lab.measure.definitions import FIGURES, WHY, rescore
from lab.measure.formats import format_label, is_baseline
from lab.measure.words import format_metric, level_label, plural
from lab.run import conversation, floors
from lab.run.told import machine_of
from lab.show.answer import Answer
from lab.show.charts.answer import MOST_ROWS, timeline
from lab.show.ui import chart, chore, formats, reads
from lab.show.ui.cards import Card, cards
from lab.spec import ModelSpec
from lab.watch import probe

REDRAW_S = 0.05
DOWNLOAD = ":material/download:"
LONGEST_PROMPT = 4_000
PROMPT = "Why is the sky blue? Answer in three sentences."
LABELS = {
    "ttft_mean_s": "To the first token",
    "itl_mean_s": "Between tokens, mean",
    "itl_p50_s": "Between tokens, median",
    "tokens_per_s": "Tokens a second",
}


@dataclass(frozen=True)
class Asked:
    """What the form asks for."""

    prompt: str
    model: ModelSpec
    max_tokens: int
    temperature: float

    @property
    def label(self) -> str:
        chunk = self.model.stream_interval
        words = level_label("model.kv_cache", self.model.kv_cache)
        words = words if is_baseline(self.model) else f"{format_label(self.model)}, {words}"
        return words if chunk == 1 else f"{words}, {chunk} in a chunk"


def ask() -> Asked | None:
    """The form; what was asked for when its button was pressed just now, else None."""
    # Without max_chars: the browser would drop a longer paste and say nothing.
    prompt = st.text_area("Prompt", PROMPT, key="t_prompt", height=110)
    left, right = st.columns(2, gap="medium", vertical_alignment="bottom")
    kv_cache = left.toggle(
        "KV cache", value=True, key="t_cache", bind="query-params", help="Reloads the model when it changes"
    )
    scheduler = right.selectbox(
        "Scheduler",
        ["one", "static", "continuous"],
        index=2,
        key="t_scheduler",
        bind="query-params",
        help="Matters once others ask too",
    )
    left, right = st.columns(2, gap="medium")
    max_tokens = left.select_slider(
        "Longest answer, tokens", [16, 32, 64, 128, 256], value=64, key="t_tokens", bind="query-params"
    )
    chunk = right.select_slider("Tokens in a chunk", [1, 2, 4, 8], key="t_chunk", bind="query-params")
    temperature = st.slider(
        "Temperature", 0.0, 1.5, 0.0, 0.1, "%.1f", key="t_heat", bind="query-params", help="0: always the likeliest"
    )
    model = formats.choose(
        ModelSpec(name="llm", kv_cache=kv_cache, scheduler=scheduler, stream_interval=chunk),
        st.container(),
        key="t_format",
        bind="query-params",
    )
    reason = _cannot_be_asked(prompt, model)
    lacking = conversation.lacking(model)
    if reason is not None:
        st.caption(f":material/info: {reason}")
    elif lacking is not None:
        reason = lacking[1]
        st.markdown(f":material/info: {reason}")
        if lacking[0] == "server":
            chore.offer("serve", "Start Triton", ["serve"], icon=":material/dns:", primary=True, with_owner=True)
        elif lacking[0] == "weights":
            label = f"Fetch the weights of {model.family}"
            chore.offer(f"fetch-{model.family}", label, ["fetch", model.family], icon=DOWNLOAD, primary=True)
    pressed = st.button(
        "Write",
        type="primary",
        icon=":material/edit:",
        key="write",
        disabled=reason is not None,
        width="stretch",
    )
    return Asked(prompt, model, max_tokens, temperature) if pressed else None


def _cannot_be_asked(prompt: str, model: ModelSpec) -> str | None:
    """Why; None when it can be. How many tokens fit beside the answer, the engine says itself."""
    if not prompt.strip():
        return "There is no prompt yet. Write one above, then press Tab."
    if len(prompt) > LONGEST_PROMPT:
        return (
            f"The prompt has {len(prompt):,} characters; allowed: {LONGEST_PROMPT:,}. Shorten it: prompt and answer "
            f"have {model.max_request_tokens:,} tokens together."
        )
    return None


def write(asked: Asked) -> None:
    """The answer, visible as it comes; kept among the session's last from its first piece on, however it ends.

    A click anywhere starts the next script at once and ends this one only at its next call of Streamlit. So what came
    is in the session before it is on the page, in a list that is changed in place."""
    button, slot = st.empty(), st.empty()
    tried: list[Answer] = st.session_state.setdefault("tried", [])
    try:
        with st.spinner("The model gets ready"):
            grpc_url = conversation.prepare(asked.model)
        button.button("Stop", icon=":material/stop:", key="stop_writing")  # a click ends this run of the script
        # Closed at once when a click ends this script, so that the server stops too.
        with closing(_growing(asked, grpc_url, tried)) as texts:
            for text in texts:
                slot.html(_answer_box(text, going=True))
    except LabError as error:
        st.error(str(error), icon=":material/error:")
    button.empty()
    slot.empty()


def _growing(asked: Asked, grpc_url: str, tried: list[Answer]) -> Generator[str, None, None]:
    """The text so far, at most every REDRAW_S; the answer so far stands first in `tried`, until a later script has
    read it there."""
    answer, drawn_s = Answer(asked.label, 0, (), asked.model), 0.0
    yield ""
    for piece in conversation.say(
        asked.prompt,
        grpc_url=grpc_url,
        model=asked.model.name,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
    ):
        if answer.pieces and tried[0] is not answer:
            return
        grown = replace(answer, sent_ns=piece.sent_ns, pieces=(*answer.pieces, piece))
        tried[0 : 1 if answer.pieces else 0] = [grown]
        del tried[MOST_ROWS:]
        answer = grown
        if time.monotonic() - drawn_s >= REDRAW_S:
            yield answer.text
            drawn_s = time.monotonic()


def last_answer() -> Answer | None:
    """The newest answer, as a value of this script's own: one that is being ended adds no more to it."""
    tried: list[Answer] = st.session_state.get("tried", [])
    if tried:
        tried[0] = replace(tried[0])
    return tried[0] if tried else None


def read(answer: Answer) -> None:
    """The finished answer's text and how it ended."""
    st.html(_answer_box(answer.text, going=False))
    ended = {"stop": "It ended by itself", "length": "It reached the longest allowed"}
    why = ended.get(answer.finish_reason or "", "It was stopped")
    prompt = "" if answer.prompt_tokens is None else f" after a prompt of {answer.prompt_tokens}"
    st.caption(f"{why}: {plural(answer.tokens, 'token')}{prompt}, {answer.label}.")


def figures(answer: Answer) -> None:
    """The same answer as each tool would score it."""
    if not answer.chunks:
        return
    drawn = timeline(st.session_state["tried"])
    st.markdown(f"#### {drawn.alt}")
    tool = st.segmented_control(
        "As scored by", list(WHY), default="lab", required=True, key="t_tool", bind="query-params"
    )
    requests, window = answer.records()
    scores = {name: rescore(requests, window, name) for name in WHY}
    score = scores[tool or "lab"]
    cards(
        [
            Card(label, format_metric(field, score[field]), why=f"{tool} prints no such figure")
            for field, label in LABELS.items()
        ]
    )
    st.caption(WHY[tool or "lab"])
    if floor := _floor(answer, scores["lab"]["itl_mean_s"]):
        st.caption(floor)
    chart.show(drawn, key="timeline")
    table = st.expander("All six tools on this answer", key="t_all", on_change="rerun", icon=":material/table:")
    if table.open:
        rows = {name: [format_metric(f, found[f]) for f in FIGURES] for name, found in scores.items()}
        table.dataframe(pd.DataFrame(rows, index=list(FIGURES)).T, alt="Every figure of this answer by each tool")


def _floor(answer: Answer, itl_s: float | None) -> str:
    """What a token of it takes at least on this machine, and how close it came; why that is not known."""
    if answer.model is None or itl_s is None:
        return ""
    if not answer.model.kv_cache:
        return "Without a cache each token reads the whole text anew: there is no step to hold against a floor."
    config, found = reads.model_config(answer.model), probe.kept()
    if config is None or found is None:
        return "What a token takes at least here is not known yet: the first run of a language model measures that."
    machine = machine_of(found)
    return floors.of_answer(answer.model, config, machine, answer.prompt_tokens or 0, answer.tokens, itl_s) or ""


def _answer_box(text: str, *, going: bool) -> str:
    caret = "<span class='lab-caret'></span>" if going else ""
    return f"<div class='lab-answer'>{html.escape(text)}{caret}</div>"
