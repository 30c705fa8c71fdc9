"""Registered versions on the page Rollout: what there is, which is champion and challenger, deploying one.

MLflow is asked in a process of its own and only when somebody wants to see it: it takes seconds to import, and may wait
a minute for its database. An alias moves after a confirmation that shows the guard's word, if there is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

ROOT = Path(__file__).parents[3]
LIMIT_S = 90.0
DEPLOY_LIMIT_S = 300.0
CHAMPION, CHALLENGER = "champion", "challenger"

Version = dict[str, Any]
"""As `lab registry list --json` gives it."""


def section(model: str | None, word: str | None) -> None:
    """`model`: the served name that the page is about; `word`: what the guard said last of it."""
    place = st.expander("Registered versions", icon=":material/inventory_2:", key="o_registry", on_change="rerun")
    with place:
        if not place.open:
            return
        with st.spinner("MLflow is asked"):
            found = registered()
        _told()
        if isinstance(found, str):
            st.warning(found, icon=":material/sync_problem:")
            st.button("Ask again", key="o_ask_again", icon=":material/refresh:", on_click=registered.clear)
            return
        if not found:
            name = model or "NAME"
            st.caption(
                "Nothing is registered yet. A version is a folder, a run's files, a Hugging Face id or an S3 place:"
            )
            st.code(f"python -m lab registry register {name} --model FAMILY --source FOLDER", language=None)
            return
        _table(found)
        _moves(found, model, word)


def _table(found: list[Version]) -> None:
    rows = [
        {
            "name": one["name"],
            "version": one["version"],
            "aliases": ", ".join(one["aliases"]),
            "precision": one["spec"]["precision"],
            "MiB": round(one["held"]["size_bytes"] / 2**20, 1),
            "quality": ", ".join(f"{name} {value:g}" for name, value in one["quality"].items()),
            "run": one["run"],
            "source": one["source"],
        }
        for one in found
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Registered versions with aliases and quality")


def _moves(found: list[Version], model: str | None, word: str | None) -> None:
    """Which version the buttons are about, and what they do with it."""
    labels = {f"{one['name']} {one['version']}": one for one in found}
    likely = next((n for n, one in enumerate(found) if one["name"] == model), 0)
    left, *buttons = st.columns([2, 1, 1, 1], vertical_alignment="bottom")
    one = labels[str(left.selectbox("Version", list(labels), index=likely, key="o_registered"))]
    for place, alias, icon in zip(buttons, (CHAMPION, CHALLENGER), ("trophy", "sports_martial_arts"), strict=False):
        if place.button(
            f"Make it {alias}", key=f"o_alias_{alias}", icon=f":material/{icon}:", width="stretch",
            disabled=alias in one["aliases"],
        ):  # fmt: skip
            _confirm(one, alias, holder(found, one["name"], alias), word if one["name"] == model else None)
    if buttons[-1].button("Deploy", key="o_deploy", icon=":material/rocket_launch:", width="stretch"):
        with st.spinner(f"Loading and warming {one['name']} {one['version']} beside the others"):
            _do(["deploy", one["name"], one["version"]], DEPLOY_LIMIT_S)
        st.rerun()
    st.caption(
        "An alias is a name in the registry and moves no traffic. A deployed version is loaded and gets none either, "
        "until a canary or a switch gives it some."
    )


def holder(found: list[Version], name: str, alias: str) -> str | None:
    """The version of `name` that has the alias now."""
    return next((one["version"] for one in found if one["name"] == name and alias in one["aliases"]), None)


@st.dialog("Move an alias")
def _confirm(one: Version, alias: str, now: str | None, word: str | None) -> None:
    st.markdown(
        f"**{alias}** of {one['name']} goes from {f'version {now}' if now else 'nobody'} to version {one['version']}."
    )
    quality = ", ".join(f"{name} {value:g}" for name, value in one["quality"].items())
    st.markdown(f"Its quality: {quality}." if quality else "No quality was registered with it.")
    st.markdown(word or "No rollout has compared the two yet.")
    words = ["alias", one["name"], alias, one["version"]]
    if alias == CHAMPION:
        words = ["promote", one["name"], one["version"], *(["--instead-of", now] if now else [])]
    if st.button(
        "Move it", key="o_move_alias", type="primary", icon=":material/check:", on_click=_do, args=(words, LIMIT_S)
    ):
        st.rerun()


def _do(words: list[str], limit_s: float) -> None:
    """`lab registry` with these words; what it says is told above the table after the rerun."""
    said, failed = _lab(words, limit_s)
    st.session_state["o_registry_said"] = (said or "Done.", failed)
    registered.clear()


def _told() -> None:
    said, failed = st.session_state.pop("o_registry_said", ("", False))
    if said and failed:
        st.error(said, icon=":material/error:")
    elif said:
        st.success(said, icon=":material/check:")


@st.cache_data(ttl=20.0, show_spinner=False)
def registered() -> list[Version] | str:
    """All versions, or why they cannot be had, in one line."""
    said, failed = _lab(["list", "--json"], LIMIT_S)
    if failed:
        return said
    versions: list[Version] = json.loads(said)["versions"]
    return versions


def _lab(words: list[str], limit_s: float) -> tuple[str, bool]:
    """(what it printed, or its last word where it failed; whether it failed)."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lab", "registry", *words], cwd=ROOT, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return "MLflow did not answer in time; try again.", True
    last = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
    if done.returncode:
        return last or "It ended without a word.", True
    return done.stdout.strip() or (last if words[0] == "deploy" else ""), False
