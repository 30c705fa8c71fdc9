"""What a summary doubts of its own block: a client that could not send, counts that differ, a block cut short."""

import pytest

from lab.measure.question import QUESTIONS
from lab.measure.records import Window
from lab.measure.server import server_delta
from lab.measure.summary import summarize
from lab.spec import Slo
from tests.measure.rows import codes, even

MS = 1_000_000


def test_a_clean_run_has_no_problem(requests_of, window_of):
    summary = summarize(requests_of(even(1000, 5)), window=window_of(10_000), planned=1000, slo=Slo(latency_s=0.02))
    assert summary.problems == ()
    assert summary.steady is True


def test_a_client_that_cannot_send_is_named_and_forbids_a_verdict(requests_of, window_of):
    """T18: asked 100/s, sent 50/s."""
    rows = [(10 * i, 20 * i, 20 * i + 1, "ok") for i in range(1000)]
    summary = summarize(requests_of(rows), window=window_of(10_000), planned=1000, slo=None)
    problem = next(problem for problem in summary.problems if problem.code == "client_limited")
    assert problem.forbids_verdict
    assert "50.0 req/s of the 100 req/s" in problem.text


def test_a_request_sent_just_after_the_windows_end_is_not_missing(requests_of, window_of):
    """Due at 999.5 ms, sent at 1000.5 ms."""
    rows = [*even(100, 5), (999.5, 1000.5, 1005, "ok")]
    summary = summarize(requests_of(rows), window=window_of(1000), planned=101, slo=Slo(latency_s=0.1))
    assert summary.sent_rps < 0.995 * summary.offered_rps
    assert "client_limited" not in codes(summary)


def test_late_sends_in_the_tail_alone_are_named_without_forbidding(requests_of, window_of):
    rows = [(10 * i, 10 * i + (15 if i % 50 == 0 else 0), 10 * i + 20, "ok") for i in range(1000)]
    summary = summarize(requests_of(rows), window=window_of(10_000), planned=1000, slo=None)
    problem = next(problem for problem in summary.problems if problem.code == "client_limited")
    assert not problem.forbids_verdict


def test_requests_never_sent_are_dropped(requests_of, window_of):
    rows = [*even(90, 5), *[(900 + 10 * i, None, 990, "cancelled") for i in range(10)]]
    summary = summarize(requests_of(rows), window=window_of(1000), planned=100, slo=None)
    assert (summary.planned, summary.sent, summary.dropped) == (100, 90, 10)
    assert summary.cancelled == 0
    assert {"dropped", "client_limited"} <= codes(summary)


def test_where_nothing_succeeded_no_lower_rate_is_advised(requests_of, window_of):
    rows = [(0, 0, 5, "error"), *[(10 * i, None, 6, "cancelled") for i in range(1, 10)]]
    found = codes(summarize(requests_of(rows), window=window_of(1000), planned=10, slo=None))
    assert "no_success" in found and "dropped" not in found


def test_a_run_that_was_stopped_is_cut_short(requests_of, window_of):
    rows = [*even(50, 5), (500, 500, 510, "cancelled")]
    summary = summarize(requests_of(rows), window=window_of(510), planned=100, slo=None)
    problem = next(problem for problem in summary.problems if problem.code == "cut_short")
    assert problem.forbids_verdict
    assert problem.text == "Cut short: 1 request under way was given up, 49 never begun."
    assert summary.cancelled == 1 and summary.error_fraction == 0  # whoever stops it fails it, not the server
    assert "too_few_samples" in codes(summary)


@pytest.mark.parametrize("waited", [0, 3])
def test_what_a_stop_left_unsent_is_no_reason_to_ask_for_less(waited, requests_of, window_of):
    """Stopped at 510 ms with four due and not yet sent; what had waited for its whole timeout is another matter."""
    late = [(10.0 * i, None, 500, "timeout") for i in range(waited)]
    rows = [*even(50, 5), *late, *[(505, None, 510, "cancelled")] * 4, (500, 500, 510, "cancelled")]
    found = summarize(requests_of(rows), window=window_of(510), planned=100, slo=None).problems
    assert "cut_short" in {problem.code for problem in found}
    dropped = [problem.text for problem in found if problem.code == "dropped"]
    assert dropped == (["3 planned requests were never sent."] if waited else [])


def test_users_who_wait_for_their_answers_leave_no_backlog(requests_of, window_of):
    """Latency rises from third to third: more arrives than is served, unless nobody asks before he was answered."""
    rows = [row for third, ms in enumerate((5, 7, 9)) for row in even(30, ms, first_ms=300.0 * third)]
    made = {"window": window_of(900), "planned": None, "slo": None}
    said = {
        closed: next(
            p.text for p in summarize(requests_of(rows), closed_loop=closed, **made).problems if p.code == "unsteady"
        )
        for closed in (False, True)
    }
    assert said[False].startswith("The backlog grew: ")
    assert said[True].startswith("Not steady: ")


def test_a_block_that_was_stopped_before_an_answer_is_not_called_a_failure(requests_of, window_of):
    """Nothing is wrong with the server, so there is nothing to fix first."""
    summary = summarize(requests_of([(0, 0, 300, "cancelled")] * 2), window=window_of(300), planned=None, slo=None)
    (problem,) = [p for p in summary.problems if p.forbids_verdict]
    assert (problem.code, problem.text) == (
        "cut_short",
        "Cut short: 2 requests under way were given up. None had ended.",
    )
    assert "no_success" not in codes(summary)


def test_a_block_that_was_stopped_while_it_warmed_up_has_no_window_to_judge(requests_of):
    rows = [*even(20, 5), (200, 200, 210, "cancelled")]
    summary = summarize(requests_of(rows), window=Window(0, 500 * MS, 500 * MS), planned=None, slo=None)
    assert summary.ok == 20
    assert "Its warm-up was not over, so nothing of it counts." in summary.problems[0].text
    assert not {"too_few_samples", "no_success"} & codes(summary)


def test_another_client_on_the_same_model_is_noticed(requests_of, window_of, server_table):
    zero = {"success_count": 0}
    rows = even(100, 5)
    for counted, expected in ((100, False), (250, True), (20, True)):
        server = server_delta(server_table({-100: zero, 1100: {"success_count": counted}}), "digits", 0, 1000 * MS)
        summary = summarize(requests_of(rows), window=window_of(1000), planned=100, slo=None, server=server)
        assert ("server_count_mismatch" in codes(summary)) is expected


@pytest.mark.parametrize(("server_ms", "told"), [(4.9, False), (5.4, False), (5.6, True)])
def test_a_server_that_took_longer_than_the_client_waited_counted_other_requests(
    server_ms, told, requests_of, window_of, server_table
):
    """The client waited 5 ms for each of 100; a mean of 5.6 ms in the server is more than 1.1 times that."""
    zero = {"success_count": 0, "success_ns": 0}
    grown = {"success_count": 100, "success_ns": 100 * server_ms * MS}
    server = server_delta(server_table({-100: zero, 1100: grown}), "digits", 0, 1000 * MS)
    summary = summarize(requests_of(even(100, 5)), window=window_of(1000), planned=100, slo=None, server=server)
    (found,) = [p for p in summary.problems if p.code == "server_longer"] or (None,)
    assert (found is not None) is told
    if found is not None:
        assert "a request took 5.6 ms there, and the client waited 5.0 ms" in found.text
        assert found.remedy and not found.forbids_verdict and found.code in QUESTIONS


def test_a_request_that_the_client_gave_up_on_may_have_been_served(requests_of, window_of, server_table):
    rows = even(90, 5) + even(10, 50, first_ms=900, outcome="timeout")
    for counted in (90, 95, 100):
        server = server_delta(
            server_table({-100: {"success_count": 0}, 1100: {"success_count": counted}}), "digits", 0, 1000 * MS
        )
        summary = summarize(requests_of(rows), window=window_of(1000), planned=100, slo=None, server=server)
        assert "server_count_mismatch" not in codes(summary)


def test_a_request_given_up_before_the_first_scrape_may_be_served_after_it(requests_of, window_of, server_table):
    """Triton goes on with what waits in its queue when the client has long gone."""
    rows = [(500, 500, 5500, "timeout")] * 10 + even(90, 5, first_ms=6000)
    for counted, expected in ((100, False), (101, True)):
        table = server_table({5900: {"success_count": 0}, 7100: {"success_count": counted}})
        server = server_delta(table, "digits", 6000 * MS, 7000 * MS)
        summary = summarize(requests_of(rows), window=window_of(7000, 6000), planned=100, slo=None, server=server)
        assert ("server_count_mismatch" in codes(summary)) is expected


def test_a_refused_request_was_not_served(requests_of, window_of, server_table):
    """F1: Triton does not count a queue-full refusal, so counting it is somebody else's request."""
    rows = even(90, 5) + even(10, 1, first_ms=900, outcome="refused")
    server = server_delta(
        server_table({-100: {"success_count": 0}, 1100: {"success_count": 95}}), "digits", 0, 1000 * MS
    )
    summary = summarize(requests_of(rows), window=window_of(1000), planned=100, slo=None, server=server)
    assert "server_count_mismatch" in codes(summary)


@pytest.mark.parametrize(
    ("refused", "detail", "counts", "told"),
    [
        (10, "Exceeds maximum queue size", True, True),
        (10, None, True, True),
        (10, "127.0.0.1:8001: Connection refused", True, False),
        (10, "Exceeds maximum queue size", False, False),
        (0, None, True, False),
    ],
)
def test_that_the_server_counts_none_of_the_refused_is_told(
    refused, detail, counts, told, requests_of, window_of, server_table
):
    """P7: only where there are refused ones and counters that lack them; a server that is dead has no full queue."""
    rows = even(90, 5) + even(10, 1, first_ms=900, outcome="refused" if refused else "error")
    table = server_table({-100: {"success_count": 0}, 1100: {"success_count": 90}})
    server = server_delta(table, "digits", 0, 1000 * MS) if counts else None
    summary = summarize(requests_of(rows, detail), window=window_of(1000), planned=100, slo=None, server=server)
    (problem,) = [problem for problem in summary.problems if problem.code == "failures"]
    assert ("Triton itself counts 0 of the refused" in problem.text) is told


def test_a_reload_in_the_window_is_named(requests_of, window_of, server_table):
    table = server_table({0: {"success_count": 50}, 500: {"success_count": 5}, 1000: {"success_count": 50}})
    server = server_delta(table, "digits", 0, 1000 * MS)
    summary = summarize(requests_of(even(100, 5)), window=window_of(1000), planned=100, slo=None, server=server)
    assert "counters_reset" in codes(summary)
    assert "server_count_mismatch" not in codes(summary)
