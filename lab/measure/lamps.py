"""Cross-checks of one block: two ways to count the same thing must agree, and a lamp says whether they do.

A lamp that is off names the instruments that disagree. Pure arithmetic on a summary's own figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.measure.words import format_count, format_ratio, join

State = Literal["on", "off", "unknown"]
LITTLE = 0.05
LEAST_SUCCESSES = 100
"""Fewer make Little's ratio a matter of chance."""
OUTCOMES = ("ok", "refused", "timeout", "cancelled", "truncated", "error")
LABELS = {"little": "Little's law", "conservation": "no request lost", "server": "client and server count alike"}


@dataclass(frozen=True)
class Lamp:
    """`state`: "on" where the two agree, "off" where they do not, "unknown" where one of them is missing."""

    code: Literal["little", "conservation", "server"]
    state: State
    text: str


def lamps(summary: Mapping[str, Any]) -> tuple[Lamp, ...]:
    """Of a summary as a dict, as a run's document holds it."""
    return _little(summary), _conservation(summary), _server(summary)


def _little(s: Mapping[str, Any]) -> Lamp:
    """L = λW: the mean number in the system is the rate times the mean latency, in a steady state."""
    ratio = s.get("little_ratio")
    if ratio is None or s["ok"] < LEAST_SUCCESSES:
        return Lamp("little", "unknown", "too few requests for Little's law")
    if s.get("steady") is False:
        return Lamp("little", "unknown", "not steady, so Little's law need not hold")
    if (s.get("latency_mean_s") or 0.0) > LITTLE * (s.get("window_s") or 0.0):
        return Lamp("little", "unknown", "answers too long for the window: those that reach over its ends decide")
    agree = abs(ratio - 1) <= LITTLE
    text = f"requests in flight are {format_ratio(ratio)} of rate times latency"
    return Lamp("little", "on" if agree else "off", text)


def _conservation(s: Mapping[str, Any]) -> Lamp:
    """planned = sent + dropped; sent = ended in some way."""
    ended = sum(s[outcome] or 0 for outcome in OUTCOMES)
    lost = s["sent"] - ended
    if s["planned"] is not None and s["dropped"] is not None:
        lost += s["planned"] - s["sent"] - s["dropped"]
    text = f"{format_count(s['sent'])} sent in the whole block, warm-up included, {format_count(ended)} ended"
    return Lamp("conservation", "on" if lost == 0 else "off", text)


def _server(s: Mapping[str, Any]) -> Lamp:
    """Whether Triton counted as many successes as the client may have had (problems.server_count_mismatch)."""
    counted = s.get("server_success_delta")
    if counted is None:
        return Lamp("server", "unknown", "the server tells no counts")
    wrong = next((p for p in s.get("problems", ()) if p["code"] == "server_count_mismatch"), None)
    if wrong is not None:
        return Lamp("server", "off", wrong["text"])
    rate, window_s = s.get("throughput_rps"), s.get("window_s")
    own = (
        ""
        if rate is None or window_s is None
        else f", the client {format_count(round(rate * window_s))} that ended then"
    )
    return Lamp("server", "on", f"in the measured window the server counted {format_count(counted)} successes{own}")


def told(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line for all blocks of a run; "" for none."""
    found = [lamp for summary in summaries for lamp in lamps(summary)]
    off = [lamp for lamp in found if lamp.state == "off"]
    if off:
        return f"Checks that fail: {join([f'{LABELS[lamp.code]} ({lamp.text})' for lamp in off[:3]])}."
    agree = [code for code in LABELS if any(lamp.code == code and lamp.state == "on" for lamp in found)]
    return f"Checks that hold: {join([LABELS[code] for code in agree])}." if agree else ""
