"""What the document of a recorded run says: the run's own figures, and of whose machine they are.

Its figures stand: they were made of all records, of which only a part may be here. What makes them doubtful is about
the machine that they are of, and so is what could be done about it: nobody is told to mend this one.
"""

from __future__ import annotations

from typing import Any


def told(kept: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """The kept document (lab/run/results.py) as it is shown here; `recorded` is run.json's (lab/run/cassette.py)."""
    text = (
        f"This was recorded, not run here: on {recorded['machine']}, {recorded['created_utc'][:10]}, with the lab at "
        f"commit {recorded['commit']}."
    )
    first = {"code": "recorded", "text": text, "remedy": "Run it here for figures of your own.", "blocks": None}
    cells = [{**cell, "floor": _there(cell["floor"])} if cell.get("floor") else cell for cell in kept["cells"]]
    return {**kept, "cells": cells, "problems": [first, *map(_doubt, kept["problems"])]}


def _doubt(problem: dict[str, Any]) -> dict[str, Any]:
    remedy = f"For a new recording: {_there(problem['remedy'])}" if problem["remedy"] else ""
    return {**problem, "text": _there(problem["text"]), "remedy": remedy}


def _there(text: str) -> str:
    return text.replace("this machine", "the recorded machine").replace("This machine", "The recorded machine")
