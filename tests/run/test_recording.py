"""What a recorded run says of itself, where it is shown on another machine."""

from typing import Any

from lab.run import cassette, results
from lab.run.folder import RunFolder
from lab.run.recording import told

RECORDED = {"machine": "2 cores of X", "created_utc": "2026-11-30T10:00:00", "commit": "abc1234"}


def kept() -> dict[str, Any]:
    return {
        "cells": [{"floor": "at this machine's 20 GB/s"}, {"floor": None}],
        "problems": [
            {
                "code": "floor",
                "text": "This machine can do more.",
                "remedy": "Probe this machine anew.",
                "blocks": None,
            },
            {"code": "unsteady", "text": "It moved.", "remedy": "", "blocks": 2},
        ],
    }


def test_doubts_and_remedies_are_of_the_recorded_machine() -> None:
    document = told(kept(), RECORDED)
    first, floor, moved = document["problems"]
    assert first["code"] == "recorded" and "on 2 cores of X, 2026-11-30" in first["text"]
    assert floor["text"] == "The recorded machine can do more."
    assert floor["remedy"] == "For a new recording: Probe the recorded machine anew."
    assert (moved["text"], moved["remedy"], moved["blocks"]) == ("It moved.", "", 2)
    assert [cell["floor"] for cell in document["cells"]] == ["at the recorded machine's 20 GB/s", None]


def test_no_recording_of_the_labs_own_advises_about_this_machine(lab_home: object) -> None:
    for manifest in cassette.shipped().values():
        document = results.document(RunFolder.open(manifest.run))
        said = [problem["text"] + problem["remedy"] for problem in document["problems"]]
        said += [cell.get("floor") or "" for cell in document["cells"]]
        assert not any("his machine" in text for text in said), said
