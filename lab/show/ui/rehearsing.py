"""The parts of the page Rollout where a rollout is rehearsed: a canary with its guard, or a switch and the way back."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from lab.measure import rehearsal
from lab.measure.words import NOT_MEASURED, format_count, format_fraction, format_seconds
from lab.run.folder import RunFolder
from lab.run.text import doubt
from lab.show.charts import rollout as charts
from lab.show.charts import shares
from lab.show.charts.figure import Chart
from lab.show.ui import chart, guide, parts, reads, recording, runs
from lab.show.ui.cards import Card, cards
from lab.show.ui.comparison import HOLDS
from lab.show.ui.words import told, why_ended
from lab.spec import Experiment

PAGE = "pages/rollout.py"
LIVE = "live"
PARTS = {LIVE: "Your traffic", "canary": "Canary, rehearsed", "blue_green": "Blue/green, rehearsed"}
DEPTHS = {
    "canary": "quick: up to two minutes, large steps and wide tolerances. whole: about six minutes.",
    "blue_green": "quick: there and back once, half a minute. whole: three times.",
}
WHY = {
    "canary": (
        "A fault shows only in traffic, and a canary limits who meets it: at a share of 1 % a bad version is met by "
        "one request in a hundred until it is noticed. The price is time: the rarer the fault and the smaller the "
        "share, the more requests it takes to tell it from chance. Champion and challenger are compared over the same "
        "window and by lot, so that a busy minute or a slow machine weighs on both alike."
    ),
    "blue_green": (
        "Both environments stand warm, so a switch is one change of where new requests go: nobody waits for a start, "
        "and the way back is as quick. What is under way ends where it began. The price is a second environment, and "
        "that everybody meets the new version at once."
    ),
}
SIDES = {"1": "version 1", "2": "version 2", "blue": "blue", "green": "green"}
MOVES = {"begin": "begins", "advance": "next step", "promote": "promoted", "roll_back": "rolled back"}


def part(*, routed: bool) -> str:
    """Where nothing is routed yet, how a rollout goes is shown first."""
    return parts.chosen(PARTS, "o_part", LIVE if routed else "canary")


def show(experiment_id: str) -> None:
    """Question, button, and what the run in the link found."""
    experiment = reads.declared(experiment_id)
    st.subheader(experiment.title)
    st.markdown(f"{experiment.question} *The hypothesis:* {experiment.hypothesis}")
    folder = runs.chosen(lambda line: line.experiment == experiment_id)
    with st.container(border=True):
        _form(experiment)
    if folder is None and runs.named():
        return
    if folder is None:
        st.info("What happened will stand here.", icon=":material/info:")
    elif folder.document["experiment"]["id"] != experiment_id:
        st.info("This run answers another question; its own page shows it.", icon=":material/info:")
        runs.link(folder.run_id, folder.document["experiment"]["id"], "To its page")
    elif folder.status().active:
        _waiting(folder)
    else:
        _happened(folder)
        st.subheader("Why")
        st.markdown(WHY[experiment_id])
        st.markdown("**Try next**")
        other = "blue_green" if experiment_id == "canary" else "canary"
        st.page_link(PAGE, label=PARTS[other], icon=":material/alt_route:", query_params={"o_part": PARTS[other]})
        drills = {"d_deck": "Change"}
        st.page_link("pages/drills.py", label="Drills on change", icon=":material/school:", query_params=drills)


def _form(experiment: Experiment) -> None:
    settings = []
    path = next((path for path in experiment.factors if path.endswith("challenger")), None)
    if path and not guide.hides("settings"):
        names = list(experiment.factors[path])
        chosen = st.pills(
            "Version 2", names, selection_mode="multi", default=names, key="o_challengers", bind="query-params",
            format_func=lambda name: rehearsal.name({"challenger": name}),
        ) or names  # fmt: skip
        settings = [] if list(chosen) == names else [f"{path}={list(chosen)}".replace("'", '"')]
    left, right = st.columns([1, 2], vertical_alignment="bottom")
    depth = left.segmented_control(
        "Depth", ["quick", "whole"], default="quick", required=True, key="o_depth", bind="query-params",
        help=DEPTHS[experiment.id],
    )  # fmt: skip
    going = reads.active_runs()
    if going:
        st.caption(f"{going[0].what} is measuring; a second run would disturb it.")
    if right.button(
        "Rehearse it", type="primary", icon=":material/play_arrow:", key="o_rehearse", disabled=bool(going),
        width="stretch",
    ):  # fmt: skip
        runs.start(experiment.id, settings, quick=depth != "whole", page=PAGE)


def _waiting(folder: RunFolder) -> None:
    @st.fragment(key="o_waiting")
    def look() -> None:
        with told():
            if not folder.status().active:
                reads.run_lines.clear()
                st.rerun()
            found = rehearsal.rehearsal(folder.events())
            with st.container(border=True):
                recording.progress(folder, reads.run_lines.clear, each_block=True, key="o_progress")
                st.page_link(
                    "pages/live.py", label="Watch it", icon=":material/monitoring:", query_params={"run": folder.run_id}
                )
            if found is not None:
                _blocks(found)

    look()


def _happened(folder: RunFolder) -> None:
    document = reads.document(folder)
    status = folder.status()
    if status.state != "done":
        st.warning(why_ended(status, document), icon=":material/incomplete_circle:")
    found = document.get("rehearsal")
    if found is None:
        st.info("Nothing was rehearsed to its end.", icon=":material/info:")
        return
    if not guide.hides("verdicts"):
        headline, *rest = rehearsal.sentences(found)
        st.markdown(HOLDS[document["verdict"]["holds"]].format(where=""))
        st.markdown(f"#### {headline}")
        st.markdown("\n".join(f"- {sentence}" for sentence in rest))
        if why := document["verdict"]["text"].removeprefix(" ".join([headline, *rest])).strip():
            st.markdown(f":orange-badge[:material/report: No verdict] {why}")
    _blocks(found)
    doubts = document["problems"]
    if doubts:
        with st.expander(f"What makes these figures doubtful ({len(doubts)})", icon=":material/report:"):
            for problem in doubts:
                st.markdown(f"- {doubt(problem)}{f' *{remedy}*' if (remedy := problem['remedy']) else ''}")


def _blocks(found: rehearsal.Rehearsal) -> None:
    """One block at a time, and all of them in a table."""
    blocks = found["blocks"]
    labels = [_label(found, block) for block in blocks]
    chosen = st.segmented_control("Rehearsal", labels, default=labels[0], required=True, key="o_block")
    block = blocks[labels.index(chosen)] if chosen in labels else blocks[0]
    (_canary if found["way"] == "canary" else _switch)(block)
    head, *rows = rehearsal.table(found)
    st.markdown("##### All of them")
    st.dataframe(pd.DataFrame(rows, columns=head), hide_index=True, alt="Every rehearsal of this run")


def _label(found: rehearsal.Rehearsal, block: rehearsal.Block) -> str:
    several = sum(other["challenger"] == block["challenger"] for other in found["blocks"]) > 1
    name = rehearsal.name(block) if found["way"] == "canary" else "there and back"
    return f"{name}, {block['repeat'] + 1}" if several else name


def _canary(block: rehearsal.Block) -> None:
    share = block["touched"] / block["requests"] if block["requests"] else None
    cards(
        [
            Card("Decision", rehearsal.DECISIONS[block["decision"]], f"after {format_seconds(block['seconds'])}"),
            Card("Requests that met it", format_count(block["touched"]), f"{format_fraction(share)} of all"),
            Card("Failed", format_count(block["failed"]), f"{block['champion_failed']} of version 1's"),
            Card("Answered wrongly", format_count(block["wrong"]), f"{block['champion_wrong']} of version 1's"),
        ]
    )
    if block["text"] and not guide.hides("verdicts"):
        st.markdown(f"**The guard's word:** {block['text']}")
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(charts.comparisons(block["comparisons"]), "o_re_compared")
    with right:
        moves = [(move["t_s"], _move(move)) for move in block["moves"] if move["action"] in MOVES]
        chart.show(_shares("Traffic by version", block, ("1", "2"), moves), "o_re_traffic")


def _move(move: dict[str, Any]) -> str:
    share = "" if move["share"] is None or move["share"] in (0, 1) else f" ({100 * move['share']:g} %)"
    return f"{MOVES[move['action']]}{share}"


def _switch(block: rehearsal.Block) -> None:
    moves = block["moves"]
    late = sum(move["late"] for move in moves)
    late_s = max((move["late_s"] for move in moves), default=None)
    drain_s = max((move["drain_s"] for move in moves), default=None)
    refused = f", {format_count(block['refused'])} refused" if block.get("refused") else ""
    cards(
        [
            Card("Lost", format_count(block["lost"]), f"of {format_count(block['requests'])} requests{refused}"),
            Card("Answered twice", format_count(block["twice"]), "by the users' book"),
            Card("Unlike before, after the way back", format_count(block["differing"]), f"of {block['compared']}"),
            Card("Finished where they began after", format_seconds(drain_s), f"{late} still sent to the old side"),
        ]
    )
    labelled = [(move["t_s"], f"to {move['to']}") for move in moves]
    chart.show(_shares("Traffic by environment", block, ("blue", "green"), labelled), "o_re_traffic")
    rows = [
        {
            "switch": f"to {move['to']}",
            "written in": format_seconds(move["write_s"]),
            "under way": move["under_way"],
            "drained after": format_seconds(move["drain_s"]),
            "still to the old side": move["late"],
            "the last of them after": format_seconds(move["late_s"]) if move["late"] else NOT_MEASURED,
            "slowest answer, second before": format_seconds(move["slowest_before_s"]),
            "second after": format_seconds(move["slowest_after_s"]),
        }
        for move in moves
    ]
    st.markdown("##### The switches")
    st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Each switch: how quick it was and what it cost")
    if late:
        st.caption(
            f"The gateway looks at its routes 20 times a second; the last of these came {format_seconds(late_s)} later."
        )


def _shares(title: str, block: rehearsal.Block, sides: tuple[str, str], moves: list[tuple[float, str]]) -> Chart:
    return shares.by_version(title, block["traffic"], {side: SIDES[side] for side in sides}, moves)
