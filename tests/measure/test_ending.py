"""How a run ended, in words, from how far it came."""

import pytest

from lab.measure.ending import Course, ending


def course(planned=20, whole=7, begun=False, lasted_s=2.5, asked_s=2.5, answered=900):
    return Course(planned, whole, begun, lasted_s, asked_s, answered)


@pytest.mark.parametrize(
    ("state", "message", "far", "words"),
    [
        ("done", "", course(whole=20), ""),
        ("running", "", course(), ""),
        ("cancelled", "stopped by the user", course(), "Stopped by hand after 7 of 20 blocks."),
        (
            "cancelled",
            "stopped by the user",
            course(begun=True),
            "Stopped by hand after 7 of 20 blocks; the one that had begun is not compared.",
        ),
        (
            "cancelled",
            "stopped by the user before anything was measured",
            course(whole=0, answered=0),
            "Stopped by hand before anything was measured.",
        ),
        (
            "cancelled",
            "stopped by the user",
            course(planned=1, whole=0, begun=True, lasted_s=41.26, asked_s=3600.0, answered=1204),
            "Stopped by hand after 41.3 s of 1 h. Until then 1,204 requests were answered.",
        ),
        (
            "failed",
            "the server died: signal 9.",
            course(planned=1, whole=0, begun=True, lasted_s=3.0, asked_s=10.0, answered=0),
            "Failed after 3 s of 10 s: the server died: signal 9. Until then no request was answered.",
        ),
        ("failed", "no Triton", course(whole=0), "Failed before anything was measured: no Triton."),
        ("interrupted", "its process 7 is gone", course(), "Broke off after 7 of 20 blocks: its process 7 is gone."),
        (  # killed between two blocks: the last word is of one that is whole
            "interrupted",
            "its process 7 is gone, while block 7 of 20",
            course(),
            "Broke off after 7 of 20 blocks: its process 7 is gone.",
        ),
        (
            "interrupted",
            "its process 7 is gone, while block 8 of 20",
            course(begun=True),
            "Broke off after 7 of 20 blocks: its process 7 is gone, while block 8 of 20; the one that had begun is not "
            "compared.",
        ),
    ],
)
def test_the_end_is_told_by_how_far_the_run_came(state, message, far, words):
    assert ending(state, message, far) == words
