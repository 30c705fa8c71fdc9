"""The cheat sheet: every formula with the user's own numbers in it, by deck, as Markdown to take along."""

from __future__ import annotations

from collections.abc import Sequence

from lab.show.drills.drill import DECKS, Posed


def sheet(posed: Sequence[Posed]) -> str:
    """One line a drill, then the runs that the numbers are from; of a recorded one it says so."""
    lines = ["# My numbers", "", "Figures are rounded to be read; results are computed from what was measured.", ""]
    runs: dict[str, str] = {}
    for deck, title in DECKS.items():
        own = [p for p in posed if p.drill.deck == deck]
        if not own:
            continue
        lines += [f"## {title}", ""]
        for p in own:
            source, concept = p.source, p.drill.concept
            runs[source.run_id] = f", recorded on {source.recorded}" if source.recorded else ""
            lines.append(f"- **{concept[0].upper()}{concept[1:]}**: {p.formula} (run {source.run_id[-4:]})")
        lines.append("")
    lines += ["## Where they are from", ""]
    lines += [f"- {run_id[-4:]}: {run_id}{recorded}" for run_id, recorded in runs.items()]
    return "\n".join(lines)
