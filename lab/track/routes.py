"""LAB_HOME/gateway/routes.json, the one place where routes stand, and the audit log of who changed them and why.

The file is replaced whole, so a reader sees the old routes or the new ones; whoever changes them (page, command line,
guard) does so under a lock, and a gateway reads them again within WATCH_S, at its start too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lab import atomic
from lab.errors import FolderError, InputError
from lab.home import home, locked
from lab.serve.process import born, is_same
from lab.spec import parse
from lab.track.routing import Route

WATCH_S = 0.05


class Routes:
    """The routes in `folder` (LAB_HOME/gateway unless given), as of the last `refresh`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home() / "gateway"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "routes.json"
        self.by_name: dict[str, Route] = {}
        self._seen: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> bool:
        """Read the file again if it was replaced; whether it was. FolderError when it cannot be understood."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return False
        self.by_name, self._seen = self._read(), seen
        return True

    def change(self, model: str, make: Callable[[Route | None], Route | None], **why: Any) -> Route | None:
        """Put `make(the route now)` in its place, or take it away for None, as one step that no other change comes
        between. `why` goes to the audit log beside the weights before and after. LabError of `make` changes nothing."""
        with locked(self.folder / "routes.lock"):
            routes = self._read()
            before = routes.get(model)
            after = make(before)
            if after == before:
                return after
            if after is None:
                routes.pop(model, None)
            elif after.model != model:
                raise InputError(f"route {after.model!r} in the place of {model!r}; allowed: the same name")
            else:
                routes[model] = after
            atomic.write(
                self.path, json.dumps({name: r.model_dump(mode="json") for name, r in routes.items()}, indent=1)
            )
            self._audit({"model": model, "before": _weights(before), "after": _weights(after), **why})
        self.refresh()
        return after

    def note(self, model: str, **what: Any) -> None:
        """A line of the audit log about a decision that moved nothing."""
        with locked(self.folder / "routes.lock"):
            self._audit({"model": model, **what})

    def audit(self, model: str | None = None) -> list[dict[str, Any]]:
        """What was decided, oldest first; a line cut short by a crash is left out."""
        try:
            lines = (self.folder / "audit.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [entry for entry in found if model is None or entry.get("model") == model]

    # --- who serves them ----------------------------------------------------------------------------------------

    def served_at(self, url: str | None) -> None:
        """This process is the gateway that follows them, at `url`; None: no more, and another may be already."""
        note = self.folder / "gateway.json"
        if url is None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                if json.loads(note.read_text())["pid"] == os.getpid():
                    note.unlink()
            return
        atomic.write(note, json.dumps({"pid": os.getpid(), "started": born(os.getpid()), "url": url}))

    def gateway(self) -> str | None:
        """The URL of the gateway that follows them; None when none runs."""
        try:
            told = json.loads((self.folder / "gateway.json").read_text())
            alive = is_same(int(told["pid"]), float(told["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return str(told["url"]) if alive else None

    # --- inside -------------------------------------------------------------------------------------------------

    def _audit(self, entry: Mapping[str, Any]) -> None:
        with (self.folder / "audit.jsonl").open("a") as file:
            file.write(json.dumps({"utc": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}) + "\n")

    def _read(self) -> dict[str, Route]:
        try:
            written = json.loads(self.path.read_text())
            return {name: parse(Route, route) for name, route in written.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, InputError) as error:
            raise FolderError(f"{self.path}: {error}; mend it, or remove it to begin without routes") from None


def _weights(route: Route | None) -> dict[str, float] | None:
    return None if route is None else {version.version: version.weight for version in route.versions}


def place(routes: Routes, model: str) -> Path:
    """Where the evidence of a route's rollout is written."""
    return routes.folder / "watch" / f"{quote(model, safe='')}.json"


def last_look(routes: Routes, model: str) -> dict[str, Any] | None:
    """What the guard wrote at its last look ("begun", "step", "t_s", "touched", "verdict"); None before the first."""
    try:
        found = json.loads(place(routes, model).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
