"""A rollout that was rehearsed, made sense of: what the guard decided and whom it cost, or what a switch lost. Pure.

From a run's events "rehearsed" (lab/track/rehearsal tells of them) to plain values and the sentences about them. A
block of a canary is decided rightly when the version that is as good was promoted, or one with a fault rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure.words import (
    NOT_MEASURED,
    format_count,
    format_fraction,
    format_rate,
    format_seconds,
    join,
    level_label,
    plural,
)

RIGHT = {"good": "promoted", "slower": "rolled_back", "errs": "rolled_back", "worse": "rolled_back"}
DECISIONS = {"promoted": "promoted", "rolled_back": "rolled back", "undecided": "not decided"}

CLIENT_LIMITED = "No verdict: the load generator fell behind, so this measures the client."

Event = Mapping[str, Any]
Rehearsal = dict[str, Any]
Block = dict[str, Any]


def rehearsal(events: Sequence[Event]) -> Rehearsal | None:
    """{"way", "blocks"}; None where nothing was rehearsed."""
    blocks = [{k: v for k, v in e.items() if k not in ("kind", "t_ns")} for e in events if e["kind"] == "rehearsed"]
    return {"way": blocks[0]["way"], "blocks": blocks} if blocks else None


def is_right(block: Block) -> bool | None:
    """Whether the guard decided as it should; None where it had not decided."""
    return None if block["decision"] == "undecided" else block["decision"] == RIGHT[block["challenger"]]


def lost_nothing(block: Block) -> bool | None:
    """Whether each request of a switch and its way back has one answer, if only that it is refused, in all books, and
    blue said the same again; None where it was not switched there and back."""
    if len(block["moves"]) < 2 or not block["compared"]:
        return None
    return books_agree([block]) and not any(block[name] for name in ("lost", "twice", "left", "differing"))


def books_agree(blocks: Sequence[Block]) -> bool:
    """Whether gateway and Tritons had what the users sent, but for requests that were refused: before the gateway took
    them, or after."""
    asked, entered, predictions, executed, refused = _books(blocks)
    return 0 <= asked - entered <= refused and 0 <= predictions - executed <= refused


def holds(found: Rehearsal) -> bool | None:
    """Whether everything came as it should; None while something is undecided and nothing went wrong."""
    judge = is_right if found["way"] == "canary" else lost_nothing
    judged = [judge(block) for block in found["blocks"]]
    return False if False in judged else None if None in judged else True


def verdict(found: Rehearsal, *, whole: bool, limited: str | None) -> tuple[bool | None, str]:
    """Whether the hypothesis holds, and the words. A run that is not `whole` can only show that it does not. `limited`:
    how the load generator was the limit, if it was. The guard's decision is then of another load than the declared one,
    and no verdict; a switch lost what it lost, or nothing, of the requests that came."""
    came, said = holds(found), sentences(found)
    if limited and found["way"] == "canary":
        return None, " ".join([*said, CLIENT_LIMITED])
    if limited:
        said = [*said, f"That is shown for the load that came, which is not the one that was asked for. {limited}"]
    return (came if whole or came is False else None), " ".join(said)


def sentences(found: Rehearsal) -> list[str]:
    """The headline and what stands behind it, in reading order."""
    return _canary(found["blocks"]) if found["way"] == "canary" else _switch(found["blocks"])


def name(block: Block) -> str:
    """ "a slower v2"."""
    return level_label("rollout.challenger", block["challenger"])


# --- a canary -----------------------------------------------------------------------------------------------------


def _canary(blocks: Sequence[Block]) -> list[str]:
    judged = [is_right(block) for block in blocks]
    right, open_ = judged.count(True), judged.count(None)
    said = [f"The guard decided rightly in {right} of {plural(len(blocks), 'rollout')}{_rest(judged)}."]
    said += [decided(block) for block in blocks]
    if open_ and not judged.count(False):
        said.append("What was not decided needs more requests: let it run longer.")
    return said


def _rest(judged: Sequence[bool | None]) -> str:
    parts = [f"{judged.count(False)} wrongly"] if False in judged else []
    parts += [f"{judged.count(None)} not at all"] if None in judged else []
    return f", {join(parts)}" if parts else ""


def decided(block: Block) -> str:
    """What became of one version 2, and whom it cost."""
    who = name(block)
    share = format_fraction(block["touched"] / block["requests"]) if block["requests"] else NOT_MEASURED
    met = f"{format_count(block['touched'])} of {plural(block['requests'], 'request')} ({share}) had met it"
    harm = [f"{block['failed']} of them failed"] if block["failed"] else []
    if block["wrong"]:
        harm.append(f"{block['wrong']} were answered wrongly")
    ended = {"promoted": "was promoted after", "rolled_back": "was rolled back after"}.get(block["decision"])
    ended = f"{ended} {format_seconds(block['seconds'])}" if ended else f"stood at {_share(block)} in the end"
    return f"{who[0].upper()}{who[1:]} {ended}: {join([met, *harm])}."


def _share(block: Block) -> str:
    steps = [m["share"] for m in block["moves"] if m["share"] is not None and m["action"] in ("begin", "advance")]
    return format_fraction(steps[-1]) if steps else NOT_MEASURED


# --- a switch -----------------------------------------------------------------------------------------------------


def _switch(blocks: Sequence[Block]) -> list[str]:
    requests, streams, lost, twice = (
        sum(block[key] for block in blocks) for key in ("requests", "streams", "lost", "twice")
    )
    moves = [move for block in blocks for move in block["moves"]]
    if not moves:
        return ["The traffic was not switched yet."]
    rates = {block.get("rate_rps") for block in blocks}
    rate = next(iter(rates)) if len(rates) == 1 else None
    at = f" at {format_rate(rate)}" if rate is not None else ""
    parts = f"{plural(requests - streams, 'prediction')}{at} and {plural(streams, 'stream')}"
    asked = f"{plural(requests, 'request')}{f' ({parts})' if streams else ''}"
    head = f"Of {asked} {lost or 'none'} {'was' if lost == 1 else 'were'} lost and "
    head += f"{twice or 'none'} answered twice while all traffic was switched {plural(len(moves), 'time')}."
    return [head, told_of_books(blocks), _again(blocks), _course(moves)]


def _books(blocks: Sequence[Block]) -> tuple[int, int, int, int, int]:
    """Requests that were sent, that entered the gateway, predictions, those that Triton made, and refused requests,
    which were lost ones to an older lab."""
    asked, entered, predictions, executed, refused = (
        sum(block.get(key, 0) for block in blocks)
        for key in ("requests", "entered", "predictions", "executed", "refused")
    )
    return asked, entered, predictions, executed, refused


def told_of_books(blocks: Sequence[Block]) -> str:
    """The three books side by side, in words."""
    asked, entered, predictions, executed, refused = _books(blocks)
    said = (
        f"{'The books agree' if books_agree(blocks) else 'The books do not agree'}: users sent {format_count(asked)}, "
        f"the gateway took {format_count(entered)}; of {plural(predictions, 'prediction')} both Tritons together made "
        f"{format_count(executed)}."
    )
    if refused:
        was = "was refused, and its user" if refused == 1 else "were refused, and their users"
        said += f" {plural(refused, 'request')} {was} told so: not lost, but not served."
    return said


def _again(blocks: Sequence[Block]) -> str:
    compared, differing, green, other = (
        sum(block[key] for block in blocks) for key in ("compared", "differing", "green_compared", "green_other")
    )
    if not compared:
        return "No answer after the way back could be compared."
    same = "all are" if not differing else f"{compared - differing} are"
    seen = f"; of green's, {format_count(other)} of {format_count(green)} are other ones" if green else ""
    return (
        f"Of {plural(compared, 'answer')} after the way back {same} to the letter what blue had said to the same "
        f"question before{seen}."
    )


def _course(moves: Sequence[Mapping[str, Any]]) -> str:
    def most(key: str) -> float:
        return max(float(move[key] or 0.0) for move in moves)

    late = sum(move["late"] for move in moves)
    text = f"A switch was written in {format_seconds(most('write_s'))} at most"
    if late:
        last = format_seconds(most("late_s"))
        text += f"; {plural(late, 'request')} sent after it still reached the old side, the last {last} later"
    under_way = sum(move["under_way"] for move in moves)
    return (
        f"{text}. {plural(under_way, 'answer')} under way {'was' if under_way == 1 else 'were'} finished where they "
        f"began, the last after {format_seconds(most('drain_s'))}."
    )


# --- a table ------------------------------------------------------------------------------------------------------


def table(found: Rehearsal) -> list[list[str]]:
    """Rows for a terminal, the first of them the head."""
    if found["way"] == "canary":
        head = ["version 2", "decision", "after", "had met it", "failed", "wrong", "why"]
        return [head, *([name(b), DECISIONS[b["decision"]], format_seconds(b["seconds"]), format_count(b["touched"]),
                         str(b["failed"]), str(b["wrong"]), b["text"]] for b in found["blocks"])]  # fmt: skip
    head = ["repeat", "requests", "lost", "twice", "compared", "differing", "under way", "drained after"]
    rows = [head]
    for b in found["blocks"]:
        under_way, drain_s = (
            sum(m["under_way"] for m in b["moves"]),
            max((m["drain_s"] for m in b["moves"]), default=None),
        )
        counts = [format_count(b[key]) for key in ("requests", "lost", "twice", "compared", "differing")]
        rows.append([str(b["repeat"] + 1), *counts, str(under_way), format_seconds(drain_s)])
    return rows
