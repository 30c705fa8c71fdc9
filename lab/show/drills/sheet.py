"""The cheat sheet: every formula with the user's own numbers in it, by deck, as Markdown to take along."""

from __future__ import annotations

from collections.abc import Sequence

from lab.show.drills.drill import DECKS, Posed


def sheet(posed: Sequence[Posed]) -> str:
    """One line a drill; of a recorded run it says so."""
    lines = ["# My numbers", ""]
    for deck, title in DECKS.items():
        own = [p for p in posed if p.drill.deck == deck]
        if not own:
            continue
        lines += [f"## {title}", ""]
        for p in own:
            recorded = f" (recorded: {p.source.recorded})" if p.source.recorded else ""
            concept = p.drill.concept
            lines.append(f"- **{concept[0].upper()}{concept[1:]}**: {p.formula}. From {p.source.run_id}{recorded}.")
        lines.append("")
    return "\n".join(lines)
