"""Requirements against figures: a row says no more than was measured, and nothing is ready by an average."""

from typing import Any

import pytest

from lab.measure.prices import Price
from lab.measure.redteam import Question, questions, waive
from lab.measure.review import HOURS_A_MONTH, Requirements, Row, decide, rows
from lab.run import prices
from tests.measure.test_redteam import DECLARED, document

SUMMARY: dict[str, Any] = {
    "goodput_rps": 90.0, "offered_rps": 100.0, "throughput_rps": 100.0, "error_fraction": 0.0,
    "latency_p99_s": 0.020, "latency_p99_low_s": 0.018, "latency_p99_high_s": 0.025,
    "memory_peak_bytes": 250 * 2**20, "gpu_memory_peak_bytes": None, "notes": {},
}  # fmt: skip
QUALITY = {"measures": [{"name": "perplexity", "loss": 0.04, "loss_low": 0.03, "loss_high": 0.05, "n": 64}]}


def price() -> Price:
    return prices.catalogue()[0]


def one(asked: Requirements, **changes: Any) -> Row:
    (row,) = rows(asked, {**SUMMARY, **changes}, quality=QUALITY, price=price())
    return row


@pytest.mark.parametrize(
    ("limit_s", "status"),
    [(0.030, "met"), (0.025, "met"), (0.022, "cannot be told"), (0.019, "cannot be told"), (0.017, "not met")],
)
def test_a_limit_inside_the_interval_cannot_be_told(limit_s: float, status: str) -> None:
    """p99 is 20 ms, between 18 and 25 with 95 % confidence."""
    row = one(Requirements(latency_s=limit_s))
    assert row.status == status and row.used == pytest.approx(0.020 / limit_s)


def test_a_percentile_of_thirty_requests_is_no_evidence() -> None:
    """T24: the figure was withheld, and the reason is the evidence."""
    note = "needs 459 successes, has 30; largest seen 12.0 ms"
    row = one(Requirements(latency_s=1.0), latency_p99_s=None, notes={"latency_p99_s": note})
    assert (row.status, row.evidence, row.used) == ("not measured", note, None)


def test_a_server_that_refuses_half_at_once_is_not_the_faster_one() -> None:
    """T11: its survivors are quick; what it turned away stands in two rows."""
    asked = Requirements(rate_rps=100, latency_s=0.05, error_fraction=0.01)
    refusing = {**SUMMARY, "goodput_rps": 50.0, "error_fraction": 0.5, "latency_p99_high_s": 0.001}
    refusing |= {"latency_p99_s": 0.001, "latency_p99_low_s": 0.001}
    found = {row.name: row for row in rows(asked, refusing)}
    assert found["p99"].status == "met"
    assert found["Traffic"].status == found["Errors"].status == "not met"
    assert "traffic is not met; errors is not met" in decide(list(found.values()), []).text


def test_copies_are_a_division_and_say_so() -> None:
    row = one(Requirements(rate_rps=300))
    assert row.status == "not met" and "by division 4 copies" in row.evidence  # 300 / 90 = 3.3
    assert row.used == pytest.approx(300 / 90)
    assert one(Requirements(rate_rps=90)).status == "met"


def test_the_budget_is_hours_times_copies_times_price() -> None:
    month = price().usd_per_hour * HOURS_A_MONTH
    asked = Requirements(rate_rps=300, budget_usd=3.9 * month)
    found = {row.name: row for row in rows(asked, SUMMARY, price=price())}
    assert found["Budget"].status == "not met" and found["Budget"].used == pytest.approx(4 / 3.9)
    assert one(Requirements(budget_usd=month)).status == "met"  # no rate is asked: one machine
    (unpriced,) = rows(Requirements(budget_usd=1.0), SUMMARY)
    assert unpriced.status == "not measured"


@pytest.mark.parametrize("goodput", [0.0, None])
def test_where_nothing_was_served_in_time_there_is_no_number_of_copies(goodput: float | None) -> None:
    """T35's other half: no infinity, no zero."""
    asked = Requirements(rate_rps=10, budget_usd=100)
    found = rows(asked, {**SUMMARY, "goodput_rps": goodput}, price=price())
    assert [row.status for row in found] == [("not met" if goodput == 0 else "not measured"), "not met"]
    assert all(row.used is None for row in found)


@pytest.mark.parametrize(("limit", "status"), [(0.06, "met"), (0.045, "cannot be told"), (0.02, "not met")])
def test_quality_is_judged_by_its_interval(limit: float, status: str) -> None:
    assert one(Requirements(loss_fraction=limit)).status == status


def test_quality_that_was_not_evaluated_is_no_loss_of_zero() -> None:
    (row,) = rows(Requirements(loss_fraction=0.1), SUMMARY)
    assert (row.status, row.used) == ("not measured", None)
    (base,) = rows(Requirements(loss_fraction=0.1), SUMMARY, quality={"is_baseline": True, "measures": []})
    assert base.status == "met"


def test_nothing_is_ready_with_a_question_open_unless_it_is_waived_by_name() -> None:
    met = [one(Requirements(rate_rps=50))]
    found = questions(document(), DECLARED)
    still = [q.code for q in found if q.status == "open"]
    assert still and not decide(met, found).ready
    after = waive(found, dict.fromkeys(still, "Ann: one draw will do"))
    assert not decide(met, waive(found, dict.fromkeys(still[1:], "Ann: one draw will do"))).ready
    assert decide(met, after).ready
    assert f"{len(still)} questions waived by name" in decide(met, after).text
    assert all("Ann: one draw will do" in q.answer for q in after if q.status == "waived")


def test_nothing_that_is_asked_is_nothing_that_is_ready() -> None:
    assert not decide([], []).ready
    answered = [Question("x", "?", "yes", "answered")]
    assert decide([one(Requirements(rate_rps=50))], answered).text == "Ready: all 1 requirement are met by measurement."
