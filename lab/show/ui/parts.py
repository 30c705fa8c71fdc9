"""The part of a page that has several, each about an experiment of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import streamlit as st

from lab.errors import FolderError
from lab.run.folder import RunFolder


def chosen(parts: Mapping[str, str], key: str, default: str = "") -> str:
    """One of `parts` (id → what it is called): as chosen, else the experiment of the run in the link, else `default`,
    or without one the first. The choice stands in the link as `key`."""
    asked, default = st.query_params.get("run"), default or next(iter(parts))
    if asked:
        with suppress(FolderError, KeyError):  # who shows the run says so
            default = str(RunFolder.open(asked).document["experiment"]["id"])
    part = st.segmented_control(
        "Part",
        list(parts),
        default=default if default in parts else next(iter(parts)),
        required=True,
        key=key,
        bind="query-params",
        format_func=parts.__getitem__,
        label_visibility="collapsed",
        on_change=_leave_run,
    )
    return str(part)


def _leave_run() -> None:
    """Another part is about other runs."""
    st.query_params.pop("run", None)
    st.session_state.pop("seen_run", None)
