"""Rows of requests, and what is found in a summary of them, that several files of tests share."""


def codes(summary):
    return {problem.code for problem in summary.problems}


def even(count, latency_ms, gap_ms=10.0, outcome="ok", first_ms=0.0):
    """Requests at even gaps, all with one latency."""
    return [
        (first_ms + i * gap_ms, first_ms + i * gap_ms, first_ms + i * gap_ms + latency_ms, outcome)
        for i in range(count)
    ]
