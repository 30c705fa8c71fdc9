"""The price catalogue: the rows that come with the lab, and the user's own in their place.

lab/run/prices.csv      facts with source and date, as of the lab's release
LAB_HOME/prices.csv     the whole catalogue as the user edited or imported it; deleting it brings the lab's back
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from lab import atomic
from lab.errors import FolderError, InputError, reason
from lab.home import home, place
from lab.measure import cost, prices
from lab.measure.prices import Price

SHIPPED = Path(__file__).parent / "prices.csv"
MOST_BYTES = 2 << 20
NONE = "prices: no rows; allowed: one or more"


def today() -> date:
    return datetime.now(UTC).date()


def own() -> Path:
    """Where the user's catalogue is, if there is one."""
    return place() / "prices.csv"


def catalogue() -> tuple[Price, ...]:
    """The prices in force. InputError when the user's file does not fit, naming it."""
    path = own() if own().is_file() else SHIPPED
    try:
        found = prices.read(_text(path.read_bytes()), today=today())
        if not found:
            raise InputError(NONE)
        return found
    except InputError as error:
        if path == SHIPPED:
            raise
        raise InputError(f"{path}: {error}; mend the file, or delete it for the lab's own prices") from None
    except OSError as error:
        raise FolderError(f"{path}: cannot be read: {error.strerror}") from None


def replace(rows: Iterable[Mapping[str | None, object]]) -> tuple[Price, ...]:
    """Make these rows the catalogue. InputError, and nothing changed, when one does not fit."""
    return _keep(prices.checked(rows, today=today()))


def take_in(data: bytes) -> tuple[Price, ...]:
    """Make the rows of a CSV file the catalogue; the same errors."""
    return _keep(prices.read(_text(data), today=today()))


def forget() -> None:
    """Back to the lab's own prices."""
    own().unlink(missing_ok=True)


def find(price_id: str) -> Price:
    """The price of that id; InputError with the nearest one when there is none."""
    return prices.find(catalogue(), price_id)


def nearest(environment: Mapping[str, Any], device: str) -> Price:
    """The price of the machine that was measured (`environment` of a run's document; `device`: where its model was), or
    of the nearest thing to it."""
    return min(catalogue(), key=lambda price: _distance(price, environment, device))


def _distance(price: Price, environment: Mapping[str, Any], device: str) -> tuple[bool, bool, bool]:
    """Smaller is nearer: this machine's own row, then one that fits, then one of the same kind."""
    is_cpu = price.accelerator.upper().startswith("CPU-") and "VCPU" in price.accelerator.upper()
    fits = cost.fit(price, environment, device).measured
    return price.accelerator != cost.THIS_MACHINE, not fits, is_cpu != (device == "cpu")


def _keep(found: tuple[Price, ...]) -> tuple[Price, ...]:
    if not found:
        raise InputError(NONE)
    path = home() / own().name
    try:
        atomic.write(path, prices.written(found))
    except OSError as error:
        raise FolderError(f"{path}: cannot be written: {reason(error)}") from None
    return found


def _text(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise InputError(f"prices: {len(data):,} bytes; allowed: up to {MOST_BYTES:,}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("prices: not a text file in UTF-8") from None
