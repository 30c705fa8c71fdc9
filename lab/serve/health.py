"""Whether each model of a server serves, and if not, why.

Triton's repository index is the source, with two additions. Why a load failed stands only in the log when the
configuration could not be read. And a model whose process died stays READY in the index while every call to it fails
after a second: where the server runs on this machine, its model processes are counted.

Cannot see a dead model process of a server elsewhere; there the failing calls themselves must tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lab.serve.process import last_lines

BROKEN = "processes live; load it again"


@dataclass(frozen=True)
class ModelState:
    """`reason` says why a model is not ready; None when it is."""

    name: str
    ready: bool
    reason: str | None


def judge(entry: dict[str, Any], processes: int | None, instances: int, log: Path | None) -> ModelState:
    """The state of one model from its newest entry in the repository index ({"name", "state", "reason"}).

    `processes`: how many of its processes live, None where that is not known; `instances`: how many there should be.
    """
    name = entry["name"]
    state = entry.get("state", "")
    if state == "READY":
        if processes is not None and processes < instances:
            return ModelState(name, False, f"{processes} of its {instances} {BROKEN}")
        return ModelState(name, True, None)
    told = entry.get("reason", "")
    if state == "UNAVAILABLE" and told == "unloaded":
        return ModelState(name, False, "unloaded")
    if state in ("LOADING", "UNLOADING"):
        return ModelState(name, False, state.lower())
    why = one_line(told) or (log and why_in_log(name, log)) or "not loaded"
    return ModelState(name, False, why)


def why_in_log(name: str, log: Path) -> str | None:
    """What Triton's log says of the model's last failed load, in one line; None when it last loaded or never failed."""
    quoted = re.escape(f"'{name}'")
    for line in reversed(last_lines(log, 400)):
        if re.search(rf"successfully (un)?loaded {quoted}|Started GRPCInferenceService", line):
            return None  # what stands before is history, or another server's: a log is continued
        found = re.search(rf'"((?:failed to load|Poll failed for model directory|Invalid argument).*{quoted}.*)"', line)
        if found and re.match(r"[EW]\d{4} ", line):
            return one_line(found[1])
    return None


def one_line(text: str) -> str:
    """The first line of a Triton message without its wrapping: traceback and "failed to load … Internal: " go."""
    first = re.split(r"\\n|\n", text.strip(), maxsplit=1)[0].strip()
    return re.sub(r"^failed to load '[^']+' version \d+: ", "", first)


def live_processes(server_pid: int) -> dict[str, int]:
    """How many processes of each model live."""
    return {name: len(found) for name, found in processes(server_pid).items()}


def processes(server_pid: int) -> dict[str, list[psutil.Process]]:
    """Living processes by model name, oldest first: children of the server that run
    <repository>/<name>/<version>/model.py."""
    found: dict[str, list[tuple[float, psutil.Process]]] = {}
    try:
        children = psutil.Process(server_pid).children()
    except psutil.Error:
        return {}
    for child in children:
        try:
            words, born = child.cmdline(), child.create_time()  # empty for a zombie
        except psutil.Error:
            continue
        name = next((Path(word).parent.parent.name for word in words if word.endswith("/model.py")), None)
        if name is not None:
            found.setdefault(name, []).append((born, child))
    return {name: [child for _, child in sorted(own, key=lambda pair: pair[0])] for name, own in found.items()}
