"""All drills in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from lab.show.drills import change, levers, measures, models, patterns, serving, starts
from lab.show.drills.drill import Drill, Posed, pose
from lab.show.drills.source import Source

DRILLS: tuple[Drill, ...] = (
    *measures.DRILLS,
    *serving.DRILLS,
    *starts.DRILLS,
    *patterns.DRILLS,
    *levers.DRILLS,
    *models.DRILLS,
    *change.DRILLS,
)


def posed(sources: Sequence[Source], deck: str | None = None) -> list[Posed]:
    """The drills of a deck, or of all, that these runs can ask; own runs before recorded ones."""
    ordered = sorted(sources, key=lambda source: source.recorded is not None)
    asked = (pose(drill, ordered) for drill in DRILLS if deck is None or drill.deck == deck)
    return [found for found in asked if found is not None]
