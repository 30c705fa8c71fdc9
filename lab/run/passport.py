"""The machine's noise passport, kept with the machine's fingerprint (lab/run/equals.py takes it).

A passport holds for the machine, kernel and versions that it was taken with: another fingerprint finds none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab import atomic
from lab.home import home
from lab.measure.noise import Noise
from lab.run.environment import environment

MACHINE = ("cpu", "cores", "memory_bytes", "kernel", "python", "packages", "gpus")


def fingerprint(of: Mapping[str, Any] | None = None) -> str:
    """Twelve hex digits of what a passport holds for; `of` is a run's environment, this machine's unless given."""
    found = environment() if of is None else of
    settled = json.dumps({name: found.get(name) for name in MACHINE}, sort_keys=True)
    return hashlib.sha256(settled.encode()).hexdigest()[:12]


def path(mark: str) -> Path:
    return home() / "passports" / f"{mark}.json"


def read(of: Mapping[str, Any] | None = None) -> Noise | None:
    """The passport of the machine that a run's environment tells of (this one unless given); None where there is none,
    or where it can't be read."""
    try:
        return Noise.from_dict(json.loads(path(fingerprint(of)).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(found: Noise) -> None:
    target = path(found.fingerprint)
    target.parent.mkdir(exist_ok=True)
    atomic.write(target, json.dumps(found.to_dict(), indent=1))
