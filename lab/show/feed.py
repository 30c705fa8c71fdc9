"""What open pages ask for while they stand: the figures of a run, how far it is, and whether the
lab's state has changed.

A page of Streamlit that redraws itself reruns its script, sends every element again and lets the browser rebuild them,
which took 5 to 15 % of a core beside what is measured; a browser that asks for a few numbers and puts them in place
takes a tenth of it. So pages that tick ask here, in JSON, and are rerun only when there is something new to build.

Owns nothing: it reads run folders, and keeps its place in those that somebody watches.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.errors import FolderError, LabError
from lab.home import home
from lab.measure.prices import Price
from lab.run import prices
from lab.run.folder import RUN_ID, RunFolder
from lab.run.live import Live, LiveView
from lab.run.status import FINAL
from lab.serve import record
from lab.show.moment import draw, moment
from lab.show.states import STATES

LIVE, PROGRESS, STATE = "lab/live", "lab/progress", "lab/state"
"""Where pages ask, relative to the dashboard's address."""
FRESH_S = 0.4
"""Two browsers that ask within this time see the same look, which is then read once."""
FORGET_S = 60.0
"""A run that nobody has looked at for so long is no longer followed."""


@dataclass
class _Followed:
    live: Live
    lock: threading.Lock = field(default_factory=threading.Lock)
    view: LiveView | None = None
    looked_s: float = 0.0


class Feed:
    """The runs that pages look at, each followed once for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}

    def look(self, folder: RunFolder, within_s: float = 0.0) -> LiveView:
        """The run as it stands now, or as somebody saw it at most `within_s` ago; reads only what was added since."""
        with self._lock:
            now_s = time.monotonic()
            old = [path for path, one in self._followed.items() if now_s - one.looked_s > FORGET_S]
            for path in old:
                del self._followed[path]
            one = self._followed.setdefault(str(folder.path), _Followed(Live(folder), looked_s=now_s))
        with one.lock:
            if one.view is None or time.monotonic() - one.looked_s >= within_s:
                one.view = one.live.update()
                one.looked_s = time.monotonic()
            return one.view


FEED = Feed()


def live(request: Request) -> Response:
    """A run's moment. Query: `w` seconds shown (absent: all), `log`, `price` (absent: no cost). A run that cannot be
    read is one line, as on a page."""
    try:
        folder = RunFolder.open(request.path_params["run_id"])
        window = request.query_params.get("w", "")
        view = FEED.look(folder, FRESH_S)
        drawn = draw(
            folder,
            view,
            window_s=int(window) if window.isdecimal() else None,
            log=request.query_params.get("log") != "0",
        )
        return JSONResponse(moment(folder, view, drawn, price=_price(request.query_params.get("price", ""))))
    except LabError as error:
        return JSONResponse({"error": str(error)}, status_code=404)


def progress(request: Request) -> Response:
    """How far a run is. Query: `blocks`, 1 for another token with each block."""
    try:
        folder = RunFolder.open(request.path_params["run_id"])
        return JSONResponse(progress_of(folder, each_block=request.query_params.get("blocks") == "1"))
    except LabError as error:
        return JSONResponse({"error": str(error)}, status_code=404)


def progress_of(folder: RunFolder, *, each_block: bool) -> dict[str, Any]:
    """State, phase and fraction, and a token that is another once the run is over, or with `each_block` once another
    block of it has begun."""
    status = folder.status()
    blocks = sum(event["kind"] == "block_start" for event in folder.events()) if each_block else 0
    state = STATES.get(status.state, (status.state, "gray"))[:2]
    token = json.dumps([status.active, blocks])
    phase = status.phase if status.phase != state[0] else ""  # said once
    return {"token": token, "state": state, "phase": phase, "progress": status.progress}


def state(_: Request) -> Response:
    return JSONResponse({"token": token()})


def routes() -> list[Route]:
    """For the application that serves the pages (asgi.py)."""
    return [
        Route(f"/{LIVE}/{{run_id}}", live),
        Route(f"/{PROGRESS}/{{run_id}}", progress),
        Route(f"/{STATE}", state),
    ]


def token() -> str:
    """The same text while no run begins, ends or gets its turn, and the server lives or does not, as before."""
    runs = [(run_id, state == "queued") for run_id, state in going()]
    return json.dumps([runs, record.read() is not None])


_ENDED: dict[str, int] = {}
"""Status files that say an end, by path, and when they were written: they need not be read again."""


def going() -> list[tuple[str, str]]:
    """(run id, state) of every run that goes on."""
    found = []
    try:
        names = [entry.name for entry in os.scandir(home() / "runs") if RUN_ID.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    for name in sorted(names):
        path = home() / "runs" / name / "status.json"
        try:
            written_ns = path.stat().st_mtime_ns
            if _ENDED.get(str(path)) == written_ns:
                continue
            status = RunFolder.open(name).status()
        except (FolderError, OSError):
            continue  # a damaged run does not go on
        if status.active:
            found.append((name, status.state))
        elif status.state in FINAL:
            _ENDED[str(path)] = written_ns
    return found


def _price(price_id: str) -> Price | None:
    path = prices.own() if prices.own().is_file() else prices.SHIPPED
    return _catalogue(str(path), path.stat().st_mtime_ns).get(price_id)


@lru_cache(maxsize=2)
def _catalogue(path: str, written_ns: int) -> dict[str, Price]:
    return {price.id: price for price in prices.catalogue()}
