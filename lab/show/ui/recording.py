"""What the browser keeps up to date by itself: the live page's moment, how far a run is, and the lab's state.

All ask the dashboard (lab/show/feed.py) and cause a rerun of the page only where there is something new to build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from lab.run.folder import RunFolder
from lab.show import feed
from lab.show.theme import ROLES
from lab.show.ui.chart import script

HERE = Path(__file__).parent

_RECORDER = st.components.v2.component(
    "lab_recorder",
    html=(HERE / "recorder.html").read_text(),
    css=(HERE / "recorder.css").read_text(),
    js=script("ink", "scales", "panels", "recorder"),
    isolate_styles=False,  # the fonts and the style of the page around it
)
_WATCH = st.components.v2.component(
    "lab_watch",
    html=(
        "<div class='lab-watch' hidden><span class='lab-badge'></span> <span></span>\n"
        "<progress class='lab-progress' max='1' aria-label='How much of the run is done'></progress></div>"
    ),
    js=script("watch"),
    isolate_styles=False,
)


def recorder(
    moment: Mapping[str, Any], run_id: str, *, asks: Mapping[str, str], paused: bool, changed: Callable[[], None]
) -> None:
    """Show `moment` (lab.show.moment), and while the run goes on what follows it; `asks` is the view that is asked for
    (lab.show.feed.live). `changed` is called before the page is rerun because the run ended, or what is in force was
    changed elsewhere."""
    url = f"{feed.LIVE}/{run_id}?{urlencode(asks)}" if moment["active"] else None
    data = {"moment": moment, "url": url, "paused": paused, "palettes": ROLES}
    _RECORDER(data=data, key="recorder", on_changed_change=changed)


def watch(token: str, changed: Callable[[], None], *, key: str) -> None:
    """Have what stands around it rerun once the lab's state is no longer `token` (lab.show.feed.token); `changed` is
    called before that."""
    _WATCH(data={"token": token, "url": feed.STATE}, key=key, on_changed_change=changed)


def progress(folder: RunFolder, changed: Callable[[], None], *, each_block: bool, key: str) -> None:
    """How far a run is, with a rerun when it ends, and with `each_block` when another block of it begins."""
    url = f"{feed.PROGRESS}/{folder.run_id}?{urlencode({'blocks': int(each_block)})}"
    _WATCH(data={**feed.progress_of(folder, each_block=each_block), "url": url}, key=key, on_changed_change=changed)
