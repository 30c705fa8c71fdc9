"""What an hour of a machine costs: price rows, read and checked.

A price is a fact with a source, a date and a certainty, never a constant: one hour of one H100 costs 2.40 to 12.29 USD,
and a list moved by 44 % within a year. So where a price is used these stand beside it, and one older than
`STALE_DAYS` carries a warning. A row that cannot be right is refused, in one line that names row, field and value.

Pure. What day it is comes from the caller; where the rows are kept is lab/run/prices.py's business.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from lab.errors import InputError
from lab.spec import nearest

STALE_DAYS = 90
FORMAT = "# serving lab prices, format 1"
"""First line of a file that the lab writes; a file without it is read all the same."""
FIELDS = (
    "provider",
    "region",
    "accelerator",
    "count",
    "commitment",
    "usd_per_hour",
    "source",
    "as_of",
    "certainty",
)
CURRENCY = "currency"
"""A column that an import may have; the lab computes in USD and converts nothing."""
CERTAINTIES = ("high", "medium", "low")
MOST_ROWS = 5_000
MOST_CHARACTERS = 300
COMMITMENT = re.compile(r"(on_demand|spot|reserved|capacity_block|[1-9]yr)(_[a-z0-9_]+)?")
DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")

Billing = Literal["hour", "second", "committed", "spot"]


@dataclass(frozen=True)
class Price:
    """One row. `count` accelerators come as one machine at `usd_per_hour`, and not in parts. `as_of` is a day, a month
    or a year, as the source gives it."""

    provider: str
    region: str
    accelerator: str
    count: int
    commitment: str
    usd_per_hour: float
    source: str
    as_of: str
    certainty: str

    @property
    def id(self) -> str:
        """ "aws-us-east-1-h100-80gb-x8-on-demand": the row's name in a link and on the command line."""
        words = (self.provider, self.region, self.accelerator, f"x{self.count}", self.commitment)
        return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")

    @property
    def billing(self) -> Billing:
        """What is paid: every hour whether used or not (committed), the hours that the machine is on (hour, spot: the
        latter may be taken away at any time), or the seconds that it is up (second: serverless)."""
        kind, _, rest = self.commitment.partition("_")
        if self.commitment.startswith("spot"):
            return "spot"
        if kind == "on":
            return "second" if rest.endswith("per_second") else "hour"
        return "committed"

    @property
    def first_day(self) -> date:
        """The earliest day that `as_of` may mean: "2026-03" may be as old as the first of March."""
        return _first_day(self.as_of)

    @property
    def names_a_day(self) -> bool:
        return self.first_day.isoformat() == self.as_of

    def age_days(self, today: date) -> int:
        return (today - self.first_day).days

    def is_stale(self, today: date) -> bool:
        return self.age_days(today) > STALE_DAYS


def read(text: str, *, today: date) -> tuple[Price, ...]:
    """The rows of a CSV file with the columns of FIELDS, in any order; lines that begin with # are left out.
    InputError for the first row that does not fit."""
    first = text.lstrip("\ufeff \r\n").partition("\n")[0].strip()
    if first.startswith("# serving lab prices") and first != FORMAT:
        raise InputError(f"prices: {first[2:]!r}: this lab reads {FORMAT[2:]!r}")
    lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip() and not line.startswith("#")]
    try:
        reader = csv.DictReader(io.StringIO("\n".join(lines)), strict=True)
        header = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        _check_header(header)
        rows = []
        for row in reader:
            rows.append(row)
            if len(rows) > MOST_ROWS:
                raise InputError(f"prices: more than {MOST_ROWS:,} rows; allowed: up to {MOST_ROWS:,}")
    except csv.Error as error:
        raise InputError(f"prices: not a CSV table: {error}") from None
    return checked(rows, today=today)


def checked(rows: Iterable[Mapping[str | None, object]], *, today: date) -> tuple[Price, ...]:
    """Prices from plain rows, as a file or the table of a page gives them. InputError for the first that does not
    fit, or that says the same machine again."""
    found: dict[str, tuple[int, Price]] = {}
    for number, row in enumerate(rows, start=1):
        price = _price(number, row, today)
        if price.id in found:
            raise InputError(
                f"prices row {number}: provider, region, accelerator, count and commitment are those of row "
                f"{found[price.id][0]} ({price.id}); allowed: each machine once"
            )
        found[price.id] = (number, price)
    return tuple(price for _, price in found.values())


def written(prices: Sequence[Price]) -> str:
    """The same rows as a file that `read` takes."""
    out = io.StringIO()
    out.write(FORMAT + "\n")
    table = csv.DictWriter(out, FIELDS, lineterminator="\n")
    table.writeheader()
    for price in prices:
        table.writerow({name: getattr(price, name) for name in FIELDS} | {"usd_per_hour": f"{price.usd_per_hour:.10g}"})
    return out.getvalue()


def find(prices: Sequence[Price], price_id: str) -> Price:
    """The row of that id; InputError with the nearest one when there is none."""
    for price in prices:
        if price.id == price_id:
            return price
    near = nearest(price_id, [price.id for price in prices])
    hint = near if near.startswith("; did") else "; `python -m lab prices` lists them"
    raise InputError(f"price {price_id!r}: there is none{hint}")


def _check_header(header: Sequence[str]) -> None:
    for name in header:
        if name not in (*FIELDS, CURRENCY):
            raise InputError(f"prices: column {name!r}: there is no such field{nearest(name, (*FIELDS, CURRENCY))}")
    lacking = [name for name in FIELDS if name not in header]
    if lacking:
        raise InputError(f"prices: column {lacking[0]!r} is missing; allowed: {', '.join(FIELDS)}")
    twice = next((name for n, name in enumerate(header) if name in header[:n]), None)
    if twice is not None:
        raise InputError(f"prices: column {twice!r} stands there twice; allowed: each once")


def _price(number: int, row: Mapping[str | None, object], today: date) -> Price:
    def refuse(field: str, value: object, allowed: str) -> InputError:
        return InputError(f"prices row {number}: {field} {_shown(value)}: allowed: {allowed}")

    if None in row:  # csv's place for cells beyond the header
        raise InputError(f"prices row {number}: holds more than the {len(FIELDS)} fields; quote a comma in a text")
    texts = {name: _text(row.get(name)) for name in (*FIELDS, CURRENCY)}
    for name in FIELDS:
        if not texts[name]:
            raise InputError(f"prices row {number}: {name} is missing")
        if len(texts[name]) > MOST_CHARACTERS or not texts[name].isprintable():
            raise refuse(name, texts[name], f"up to {MOST_CHARACTERS} printable characters in one line")
    if texts[CURRENCY] not in ("", "USD"):
        raise refuse(CURRENCY, texts[CURRENCY], "USD")
    usd = _number(texts["usd_per_hour"])
    if usd is None or not 0 < usd <= 1e6:
        raise refuse("usd_per_hour", texts["usd_per_hour"], "a plain number above 0, in USD")
    count = _number(texts["count"])
    if count is None or count != int(count) or not 1 <= count <= 1024:
        raise refuse("count", texts["count"], "a whole number from 1 to 1024")
    if not COMMITMENT.fullmatch(texts["commitment"]):
        raise refuse(
            "commitment", texts["commitment"], "on_demand, on_demand_per_second, spot, reserved, capacity_block, 1yr_…"
        )
    try:
        since = _first_day(texts["as_of"])
    except ValueError:
        raise refuse("as_of", texts["as_of"], "a date such as 2026-11-09, 2026-11 or 2026") from None
    if since > today:
        raise refuse("as_of", texts["as_of"], f"a date up to today, {today}")
    if texts["certainty"] not in CERTAINTIES:
        raise refuse("certainty", texts["certainty"], ", ".join(CERTAINTIES))
    return Price(
        provider=texts["provider"],
        region=texts["region"],
        accelerator=texts["accelerator"],
        count=int(count),
        commitment=texts["commitment"],
        usd_per_hour=usd,
        source=texts["source"],
        as_of=texts["as_of"],
        certainty=texts["certainty"],
    )


def _text(value: object) -> str:
    """A cell as text; a table of a page gives numbers, and None or NaN for an empty cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value).strip()


def _number(text: str) -> float | None:
    try:
        value = float(text) if re.fullmatch(r"[+-]?[0-9.eE+-]+", text) else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _first_day(as_of: str) -> date:
    match = DATE.fullmatch(as_of)
    if match is None:
        raise ValueError(as_of)
    return date(int(match[1]), int(match[2] or 1), int(match[3] or 1))


def _shown(value: object) -> str:
    text = str(value)
    return f'"{text if len(text) <= 40 else text[:39] + "…"}"'
