"""The self-test's own judgement: an honest meter passes, one that is off is found, whatever the server adds."""

from dataclasses import replace

import numpy as np
import pytest

from lab.measure.records import CANCELLED, OK, Requests, Window
from lab.measure.summary import Summary, summarize
from lab.run import second_opinion
from lab.run.selftest import agreement, conservation, known_latency, known_shape

SECOND = 1_000_000_000

CONSTANT_S = np.full(200, 0.010)
SHAPE_S = np.tile([0.010] * 19 + [0.100], 20)  # mean 14.5 ms


@pytest.mark.parametrize("added_s", [0.0, 0.0017])
def test_what_the_server_adds_to_every_request_is_no_error_of_the_meter(added_s):
    outcome = known_shape(SHAPE_S + added_s, CONSTANT_S + added_s)
    assert outcome.passed
    assert outcome.truth == pytest.approx(0.0145 + added_s)
    assert f"{1e3 * added_s:.1f} ms that the server adds" in outcome.text


@pytest.mark.parametrize(
    "off",
    [
        pytest.param(lambda s: 1.06 * s, id="stretched by 6 %"),
        pytest.param(lambda s: s + 0.0025, id="2.5 ms that the constant service did not have"),
        pytest.param(lambda s: np.minimum(s, 0.09), id="a tail that is cut off"),
        pytest.param(lambda s: np.append(s, np.full(40, 0.02)), id="requests of another length among them"),
    ],
)
def test_a_meter_that_is_off_is_found(off):
    assert not known_shape(off(SHAPE_S) + 0.0017, CONSTANT_S + 0.0017).passed


def test_a_draw_with_more_long_sleeps_than_expected_has_their_mean_as_its_truth():
    drawn = np.tile([0.010] * 9 + [0.100], 40)
    assert known_shape(drawn, CONSTANT_S).truth == pytest.approx(0.019)


def test_one_stall_beside_the_constant_service_moves_no_baseline():
    stalled = np.append(CONSTANT_S, 3.0)
    assert stalled.mean() > 0.024
    outcome = known_shape(SHAPE_S, stalled)
    assert outcome.passed and outcome.truth == pytest.approx(0.0145)


def summary(service_s, outcomes=None, planned=None) -> Summary:
    n = len(service_s)
    due = np.arange(n) * 20_000_000
    outcome = np.full(n, OK, np.uint8) if outcomes is None else np.asarray(outcomes, np.uint8)
    requests = Requests(due, due, due + (np.asarray(service_s) * SECOND).astype(np.int64), outcome)
    return summarize(requests, window=Window(0, 0, n * 20_000_000), planned=n if planned is None else planned, slo=None)


def test_a_known_latency_is_judged_at_its_tail_too():
    short, whole = np.full(200, 0.0115), np.full(600, 0.1045)
    assert known_latency({0.01: short, 0.1: whole}).passed
    late = whole.copy()
    late[::20] = 0.107  # 5 % of them
    outcome = known_latency({0.01: short, 0.1: late})
    assert not outcome.passed and "107.0 ms at p99" in outcome.text
    stalled = whole.copy()
    stalled[100:107] = 0.156  # one stall: just above a hundredth, which no interval of 600 rules out
    assert known_latency({0.01: short, 0.1: stalled}).passed
    assert not known_latency({0.01: short, 0.1: whole[:400]}).passed  # too few for a p99
    assert not known_latency({0.01: short + 0.001, 0.1: whole}).passed
    assert not known_latency({0.01: short, 0.1: whole - 0.010}).passed


def test_the_servers_count_is_held_against_the_clients():
    whole = summary(np.full(600, 0.01))
    assert conservation([(whole, 600)]).passed
    for counted in (599, 601):
        outcome = conservation([(whole, 600), (whole, counted)])
        assert not outcome.passed and "1 off the client's" in outcome.text
    assert not conservation([(summary(np.full(600, 0.01), planned=601), 601)]).passed


def test_what_the_client_gave_up_on_explains_as_large_a_gap_and_no_larger():
    two_given_up = summary(np.full(600, 0.01), [CANCELLED] * 2 + [OK] * 598)
    assert all(conservation([(two_given_up, counted)]).passed for counted in (598, 599, 600))
    assert not conservation([(two_given_up, 597)]).passed
    assert not conservation([(two_given_up, 601)]).passed


@pytest.mark.parametrize(("counted", "same"), [(2.0, True), (2.001, False), (8 / 3, False), (None, False)])
def test_the_mean_batch_is_what_the_model_echoed(counted, same):
    # Four executions of 1, 2, 2 and 3: eight answers. Their mean is 2 an execution, 18/8 an answer.
    figures = replace(summary(np.full(600, 0.0115)), server_mean_s=0.0110)
    outcome = agreement(figures, [3, 1, 2, 2, 3, 2, 3, 2], counted)
    assert outcome.passed is same
    assert "2.000 by what the model echoed" in outcome.text


def test_a_client_faster_than_its_server_is_found():
    figures = replace(summary(np.full(600, 0.0115)), server_mean_s=0.0120)
    assert not agreement(figures, [1, 1], 1.0).passed


def clients(*took_s: float, other: tuple[float, ...] = (0.020,), n: int = 500):
    """(the lab's, another's) of so many answers, which take these times in turn."""
    mine, theirs = (np.resize(np.array(each), n) for each in (took_s, other))
    return second_opinion.Asked(mine, float(mine.sum())), second_opinion.Asked(theirs, float(theirs.sum()))


@pytest.mark.parametrize(("took_s", "passed"), [(0.0205, True), (0.0195, True), (0.0215, False), (0.0185, False)])
def test_a_second_opinion_that_is_five_percent_off_in_the_middle_fails(took_s, passed):
    found = second_opinion.second_opinion({"grpc": [clients(0.020)], "http": [clients(took_s, n=60)]})
    assert (found.id, found.passed) == ("S12", passed)
    assert "http: throughput" in found.text and found.text.count("p99") == 1  # 60 answers have none


def test_tails_that_are_apart_for_certain_fail_and_one_stall_does_not():
    plain = np.full(1000, 0.020)
    one, many = plain.copy(), plain.copy()
    one[:11], many[:40] = 0.060, 0.026  # the former holds in 11 of 1,000, where 4 to 16 are above a p99
    side = lambda took_s: second_opinion.Asked(took_s, float(len(took_s)))  # noqa: E731  the same throughput
    assert second_opinion.second_opinion({"grpc": [(side(one), side(plain))]}).passed
    found = second_opinion.second_opinion({"grpc": [(side(many), side(plain))]})
    assert not found.passed and "p99 +30.0 %" in found.text


def test_a_client_without_an_answer_is_no_agreement():
    nobody = second_opinion.Asked(np.zeros(0), 1.0)
    assert not second_opinion.second_opinion({"grpc": [(clients(0.020)[0], nobody)]}).passed


def test_one_turn_that_a_stall_met_does_not_decide_about_throughput():
    fair, stalled = clients(0.020, n=100), clients(0.020, n=100)
    stalled = stalled[0], second_opinion.Asked(stalled[1].took_s, 2 * stalled[1].seconds)
    found = second_opinion.second_opinion({"grpc": [fair, stalled, fair]})
    assert found.passed and "throughput +0.0 %" in found.text
    assert not second_opinion.second_opinion({"grpc": [fair, stalled, stalled]}).passed
