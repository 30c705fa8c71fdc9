"""Where each request's time went: the client's stamps joined with Triton's trace of the same requests.

Both clocks are CLOCK_MONOTONIC of one machine, so the stamps of a request are one line:

    due ─ client ─ sent ─ network ─ REQUEST_START ─ frontend ─ QUEUE_START ─ queue ─ COMPUTE_START ─ input ─
    COMPUTE_INPUT_END ─ compute ─ COMPUTE_OUTPUT_START ─ output ─ COMPUTE_END ─ … REQUEST_END ─ network ─ done

Requests whose computing began at one moment were one batch. Queue times are of each request, so their percentiles are
true ones; Triton's counters give a mean alone. A trace that lacks stamps, whose request the client does not know, or
whose stamps do not lie between the client's own (a number of an earlier block, say) is left out and counted, and so is
a file that breaks off; `gaps` says it in a sentence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import needed, percentile
from lab.measure.records import Int64s
from lab.measure.words import format_count, format_fraction, plural
from lab.measure.words import join as listed

STAMPS = (
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
)
PARTS = ("client", "network", "frontend", "queue", "input", "compute", "output")
"""Of a request's latency, in the order in which they come; `network` is both ways, and what no stamp covers."""
SHOWN = (0.5, 0.9, 0.95, 0.99)
ENOUGH = 0.95
"""Of the measured answers; with fewer traced, those that are may be of one kind."""


@dataclass(frozen=True)
class Read:
    """`stamps`: of each request number, ns in the order of STAMPS. `lacking`: how many traces lack which stamp;
    `broken`: files that break off."""

    stamps: Mapping[int, tuple[int, ...]]
    lacking: Mapping[str, int]
    broken: int


@dataclass(frozen=True)
class Joined:
    """n requests. `request` is the number in the block's schedule; `stamps` has shape (n, 7), ns, in the order of
    STAMPS. `unmatched` counts traces without a record, `strange` those whose stamps are not between the client's, and
    `of` the records that might have had one."""

    request: Int64s
    due_ns: Int64s
    sent_ns: Int64s
    done_ns: Int64s
    stamps: Int64s
    unmatched: int
    of: int
    strange: int = 0

    def __len__(self) -> int:
        return len(self.request)

    @property
    def latency_s(self) -> Floats:
        return np.asarray((self.done_ns - self.due_ns) / 1e9)

    @property
    def parts_s(self) -> dict[str, Floats]:
        """Seconds of each of PARTS; they add up to the latency."""
        at = {name: self.stamps[:, n] for n, name in enumerate(STAMPS)}
        there = at["REQUEST_START"] - self.sent_ns
        back = self.done_ns - at["COMPUTE_END"]
        found = {
            "client": self.sent_ns - self.due_ns,
            "network": there + back,
            "frontend": at["QUEUE_START"] - at["REQUEST_START"],
            "queue": at["COMPUTE_START"] - at["QUEUE_START"],
            "input": at["COMPUTE_INPUT_END"] - at["COMPUTE_START"],
            "compute": at["COMPUTE_OUTPUT_START"] - at["COMPUTE_INPUT_END"],
            "output": at["COMPUTE_END"] - at["COMPUTE_OUTPUT_START"],
        }
        return {name: np.asarray(value / 1e9) for name, value in found.items()}

    @property
    def batch(self) -> Int64s:
        """A number for each batch, in the order in which they began."""
        _, number = np.unique(self.stamps[:, 2], return_inverse=True)
        return np.asarray(number, dtype=np.int64)


def read_traces(texts: Iterable[str], model: str) -> Read:
    """The traces of `model` in the texts of trace files; those whose request has no number are somebody else's. Of a
    text that is cut the whole entries are read."""
    events: dict[int, dict[str, Any]] = {}
    broken = 0
    for text in texts:
        entries = list(_entries(text))
        broken += entries[-1:] == [None]
        for entry in entries:
            if isinstance(entry, dict) and "id" in entry:
                one = events.setdefault(entry["id"], {"stamps": {}})
                one.update({key: entry[key] for key in ("model_name", "request_id") if key in entry})
                one["stamps"].update({t["name"]: int(t["ns"]) for t in entry.get("timestamps", ())})
    found: dict[int, tuple[int, ...]] = {}
    lacking: Counter[str] = Counter()
    for one in events.values():
        number, stamps = str(one.get("request_id", "")), one["stamps"]
        if one.get("model_name") != model or not number.isdecimal():
            continue
        missing = [name for name in STAMPS if name not in stamps]
        lacking.update(missing)
        if not missing:
            found[int(number)] = tuple(stamps[name] for name in STAMPS)
    return Read(found, dict(lacking), broken)


def _entries(text: str) -> Iterator[Any]:
    """The entries of a JSON list; a last one that is None says that the list breaks off."""
    try:
        written = json.loads(text)
        yield from written if isinstance(written, list) else ()
        return
    except ValueError:
        pass
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            entry, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        yield entry
    yield None


def join(records: Mapping[int, tuple[int, int, int]], traces: Mapping[int, tuple[int, ...]]) -> Joined:
    """`records`: {request number: (due_ns, sent_ns, done_ns)} of successes of one block."""
    known = set(records) & set(traces)
    # Up to COMPUTE_START: an answer may be here before the server takes its last stamps.
    both = sorted(n for n in known if records[n][1] <= traces[n][0] and traces[n][2] <= records[n][2])
    client = np.array([records[n] for n in both], np.int64).reshape(-1, 3)
    stamps = np.array([traces[n] for n in both], np.int64).reshape(-1, len(STAMPS))
    return Joined(
        request=np.array(both, np.int64),
        due_ns=client[:, 0],
        sent_ns=client[:, 1],
        done_ns=client[:, 2],
        stamps=stamps,
        unmatched=len(set(traces) - set(records)),
        of=len(records),
        strange=len(known) - len(both),
    )


def gaps(joined: Joined, read: Read) -> str:
    """Why fewer than ENOUGH of the answers are traced, as far as it is known; "" when enough are."""
    if not joined.of or len(joined) >= ENOUGH * joined.of:
        return ""
    why = [f"{plural(count, 'trace')} without {name}" for name, count in read.lacking.items()]
    why += [f"{plural(joined.strange, 'trace')} whose stamps are not the request's"] if joined.strange else []
    breaks = "breaks" if read.broken == 1 else "break"
    why += [f"{plural(read.broken, 'file')} that {breaks} off"] if read.broken else []
    told = f": {listed(why)}" if why else ", and Triton wrote nothing of the others"
    share = format_fraction(len(joined) / joined.of)
    return (
        f"{format_count(len(joined))} of {format_count(joined.of)} measured answers ({share}) are traced{told}. The "
        "parts of latency are of those alone."
    )


def percentiles(joined: Joined) -> dict[str, dict[str, float | None]]:
    """Seconds by part and of the whole: mean and SHOWN, None below the samples that a percentile needs."""
    found = {}
    for name, values in {**joined.parts_s, "latency": joined.latency_s}.items():
        row: dict[str, float | None] = {"mean": float(values.mean()) if len(values) else None}
        for p in SHOWN:
            row[f"p{100 * p:g}"] = percentile(values, p) if len(values) >= needed(p) else None
        found[name] = row
    return found


@dataclass(frozen=True)
class Slow:
    """One request beside those that shared its batch. Times in seconds from its own `due`. `mates`: requests of its
    batch; `ahead`: batches that computed while it waited, each (from_s, to_s, size)."""

    request: int
    latency_s: float
    parts_s: Mapping[str, float]
    mates: tuple[int, ...]
    ahead: tuple[tuple[float, float, int], ...]

    @property
    def waited_for(self) -> str:
        """In words, the longest part."""
        longest = max(self.parts_s, key=lambda name: self.parts_s[name])
        words = {
            "client": "the client was late to send it",
            "network": "it was on its way, or its answer was",
            "frontend": "Triton took it in slowly",
            "queue": _waited(len(self.ahead)),
            "input": "its batch was put together",
            "compute": f"its batch of {len(self.mates) + 1} computed",
            "output": "its answer was written",
        }
        return words[longest]


def _waited(batches: int) -> str:
    if not batches:
        return "it waited for company"
    return "one batch computed before it" if batches == 1 else f"{batches} batches computed before it"


def slowest(joined: Joined, count: int = 5) -> list[Slow]:
    """The requests with the longest latencies, longest first."""
    order = np.argsort(-joined.latency_s)[:count]
    return [of_request(joined, int(joined.request[row])) for row in order]


def of_request(joined: Joined, request: int) -> Slow:
    """One request by its number; ValueError when it was not traced."""
    rows = np.flatnonzero(joined.request == request)
    if not len(rows):
        raise ValueError(f"request {request} was not traced")
    row = int(rows[0])
    batch, parts = joined.batch, joined.parts_s
    queue_start, compute_start = joined.stamps[row, 1], joined.stamps[row, 2]
    ahead = []
    for number in np.unique(batch[(joined.stamps[:, 5] > queue_start) & (joined.stamps[:, 2] < compute_start)]):
        members = batch == number
        begin, end = joined.stamps[members, 2].min(), joined.stamps[members, 5].max()
        due = joined.due_ns[row]
        ahead.append((float(begin - due) / 1e9, float(end - due) / 1e9, int(members.sum())))
    mates = tuple(int(n) for n in joined.request[(batch == batch[row]) & (joined.request != request)])
    return Slow(
        request,
        float(joined.latency_s[row]),
        {name: float(parts[name][row]) for name in PARTS},
        mates,
        tuple(sorted(ahead)),
    )
