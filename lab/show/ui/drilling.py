"""The page Interview drills: which runs can be asked about, one drill at a time, its answer, and the cheat sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.measure.words import format_count, plural
from lab.run import cassette, prices, results
from lab.run.folder import RunFolder
from lab.show.drills.deck import DRILLS, posed
from lab.show.drills.drill import DECKS, Choice, Number, Points, Posed
from lab.show.drills.sheet import sheet
from lab.show.drills.source import Source
from lab.show.ui import chart, guide, pricing, reads
from lab.show.ui.words import plain, when

DECK, AT, SHEET = "d_deck", "d", "d_sheet"
DONE = "drills_done"
"""In the session: {drill: verdict}."""
WORDS = {
    "right": ":material/check: **Right.**",
    "right order": ":material/adjust: **The right order of magnitude.**",
    "wrong": ":material/close: **Not this time.**",
    "yours to judge": ":material/self_improvement: **Compare it with these points.**",
}
SCORED = {"right": "right", "right order": "of the right order", "wrong": "wrong"}
NEWEST = 40
"""So many of the newest runs are looked through for one of each experiment."""


def page() -> None:
    deck = _deck()
    found = _posed(deck)
    if not found:
        st.info("No run has figures for this deck yet. Run its experiment, or choose another deck.")
        return
    own = sum(one.source.recorded is None for one in found)
    origin = f"{own} of them ask about this machine's own runs" if own else "all of them ask about recorded runs"
    st.caption(f"{DECKS[deck] if deck else 'All decks'} · {plural(len(found), 'drill')}, {origin}.")
    if st.toggle("Cheat sheet", key=SHEET, bind="query-params", help="Every formula with your numbers, to take along"):
        _sheet(found)
        return
    place = _place(found)
    _progress(found, place)
    with st.container(border=True, key="drill"):
        _ask(found[place])
    _move(found, place)


def _deck() -> str | None:
    chosen = st.pills("Deck", list(DECKS), key=DECK, bind="query-params", format_func=str.capitalize)
    return str(chosen) if chosen else None


def _posed(deck: str | None) -> list[Posed]:
    return posed(sources(deck), deck)


def sources(deck: str | None) -> list[Source]:
    """Of each experiment that the deck asks about the newest finished run on this machine, and its recordings."""
    asked = {name for drill in DRILLS if deck is None or drill.deck == deck for name in drill.runs}
    newest: dict[str, str] = {}
    for line in reads.run_lines()[:NEWEST]:
        if line.state == "done" and not line.recorded and line.experiment in asked:
            newest.setdefault(line.experiment, line.run_id)
    found = [_source(run_id, None) for run_id in newest.values()]
    recorded = [m for m in cassette.shipped().values() if m.experiment in asked]
    found += [_source(m.run, f"{m.machine}, {when(m.created_utc)}") for m in recorded]
    return [source for source in found if source is not None]


def _source(run_id: str, recorded: str | None) -> Source | None:
    try:
        document, declared, events = _parts(run_id)
    except LabError:
        return None
    device = declared["model"].get("device", "cpu")
    price = pricing.chosen() or prices.nearest(document["environment"], device)
    factor = (declared.get("judge") or {}).get("factor")

    def latencies(load: str, levels: Sequence[str]) -> dict[str, Any]:
        return reads.from_records("latencies", run_id, factor, load, tuple(levels))

    return Source(run_id, document, declared, events, recorded, price, latencies)


@st.cache_data(max_entries=64, show_spinner=False)
def _parts(run_id: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    folder = RunFolder.open(run_id)
    kinds = ("loaded", "model_loaded", "limits")
    events = [event for event in folder.events() if event["kind"] in kinds]
    return results.document(folder), folder.document["experiment"], events


def _place(found: Sequence[Posed]) -> int:
    asked = st.query_params.get(AT)
    ids = [one.drill.id for one in found]
    if asked is not None and asked not in ids:
        if asked not in {drill.id for drill in DRILLS}:
            st.caption(f":material/info: There is no drill `{asked[:40]}`; this is the first one.")
        asked = None
    return ids.index(asked) if asked is not None else 0


def _progress(found: Sequence[Posed], place: int) -> None:
    done: Mapping[str, str] = st.session_state.get(DONE, {})
    counted = [done[one.drill.id] for one in found if one.drill.id in done]
    score = ", ".join(f"{counted.count(verdict)} {words}" for verdict, words in SCORED.items() if verdict in counted)
    st.progress(len(counted) / len(found), text=f"Drill {place + 1} of {len(found)}{f' · {score}' if score else ''}")


def _ask(one: Posed) -> None:
    drill, key = one.drill, f"d_{one.drill.id}"
    origin = f"recorded on {one.source.recorded}" if one.source.recorded else f"from your run {one.source.run_id}"
    st.markdown(f":blue-badge[{drill.concept}] :gray-badge[:material/science: {origin}]")
    st.markdown(f"#### {plain(one.ask)}")
    given = _given(one, key)
    if guide.hides("answers"):
        st.caption("Answers are hidden by this link (hide=answers).")
        return
    if st.button("Show the answer", key=f"{key}_check", type="primary", icon=":material/visibility:"):
        st.session_state.setdefault(DONE, {})[drill.id] = one.judge(given) if given is not None else "yours to judge"
        st.session_state[f"{key}_shown"] = True
        st.rerun()
    if st.session_state.get(f"{key}_shown"):
        _answer(one, given, key)


def _given(one: Posed, key: str) -> float | int | None:
    """What the user answers: a number in the unit that is asked for, the position of an option, None of free text."""
    answer = one.drill.answer
    if isinstance(answer, Number):
        value = st.number_input(
            f"Your estimate, {answer.unit}", min_value=0.0, value=None, key=f"{key}_number", placeholder="a number"
        )
        return None if value is None else float(value)
    if isinstance(answer, Choice):
        options = list(dict.fromkeys(one.options))
        chosen = st.radio("Your choice", options, index=None, key=f"{key}_choice")
        return None if chosen is None else one.options.index(chosen)
    st.text_area("Say it in a few words, as you would aloud", key=f"{key}_text", height=110)
    return None


def _answer(one: Posed, given: float | int | None, key: str) -> None:
    answer, truth = one.drill.answer, one.truth
    if given is not None:
        st.markdown(WORDS[one.judge(given)])
    if isinstance(answer, Number) and truth is not None:
        st.markdown(f"It is **{_number(float(truth))} {answer.unit}**.")
    elif isinstance(answer, Choice) and truth is not None:
        st.markdown(f"It is **{plain(one.options[int(truth)])}**")
    elif isinstance(answer, Points):
        for n, point in enumerate(one.points):
            st.checkbox(plain(point), key=f"{key}_point_{n}")
        st.caption("Tick what you said. An interviewer listens for three or more.")
    st.code(one.formula, language=None, wrap_lines=True)
    st.markdown(plain(one.why))
    st.caption(f"Source: {one.drill.source}. Then they ask: *{one.drill.then}*")
    if one.drill.chart is not None:
        st.session_state["recorded"] = "recorded" if one.source.recorded else None
        chart.show(one.drill.chart(one.source), key=f"{key}_chart")


def _move(found: Sequence[Posed], place: int) -> None:
    def go(step: int) -> None:
        st.query_params[AT] = found[(place + step) % len(found)].drill.id

    with st.container(horizontal=True):
        st.button("Back", key="d_back", icon=":material/arrow_back:", on_click=go, args=(-1,))
        st.button("Next", key="d_next", icon=":material/arrow_forward:", on_click=go, args=(1,))


def _sheet(found: Sequence[Posed]) -> None:
    if guide.hides("answers"):
        st.caption("Answers are hidden by this link (hide=answers).")
        return
    st.download_button(
        "Take it along",
        data=partial(sheet, found),
        file_name="my-numbers.md",
        mime="text/markdown",
        key="d_take",
        icon=":material/download:",
        on_click="ignore",
    )
    st.markdown(plain(sheet(found).removeprefix("# My numbers\n")))


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1000 or value == int(value):
        return format_count(value)
    return f"{value:.3g}"
