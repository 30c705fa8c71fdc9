"""The last self-test of this machine, kept with its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab import atomic
from lab.home import home
from lab.run import passport


def path(mark: str) -> Path:
    return home() / "selftests" / f"{mark}.json"


def keep(tests: Sequence[dict[str, Any]]) -> None:
    target = path(passport.fingerprint())
    target.parent.mkdir(exist_ok=True)
    document = {
        "fingerprint": passport.fingerprint(),
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "tests": list(tests),
    }
    atomic.write(target, json.dumps(document, indent=1))


def read() -> dict[str, Any] | None:
    """{"fingerprint", "created_utc", "tests": [one a self-test]}; None where this machine, as it is now, had none."""
    try:
        found = json.loads(path(passport.fingerprint()).read_text())
        return found if isinstance(found.get("tests"), list) else None
    except (OSError, ValueError, AttributeError):
        return None
