"""What answers cost, against arithmetic on paper."""

from dataclasses import replace
from datetime import date

import pytest

from lab.errors import InputError
from lab.measure.cost import THIS_MACHINE, Use, break_even, caveats, cost, fit, paid_hours_a_day, usd_per_useful_hour
from lab.measure.cost_words import even_sentence
from lab.measure.prices import Price
from lab.spec import parse

TODAY = date(2026, 11, 30)
ON_DEMAND = Price("cloud", "west", "T4", 1, "on_demand", 2.0, "page", "2026-11-09", "high")
PLAN = replace(ON_DEMAND, commitment="1yr_plan", usd_per_hour=0.331)
PER_SECOND = replace(ON_DEMAND, commitment="on_demand_per_second")
EIGHT = replace(ON_DEMAND, accelerator="H100-80GB", count=8, usd_per_hour=55.04)
TOKENS = {"throughput_rps": 1.0, "goodput_rps": 0.5, "output_tokens_per_s": 100.0, "good_tokens_per_s": 40.0}
CPU = {"cpu": "AMD EPYC", "cores": 4, "gpus": {"found": {}, "reason": "no GPU"}}
H100 = {"cpu": "Xeon", "cores": 8, "gpus": {"names": {"gpu:0": "NVIDIA H100 80GB HBM3"}}}


def test_two_dollars_an_hour_at_100_tokens_a_second_are_5_556_a_million() -> None:
    found = cost(TOKENS, ON_DEMAND)
    assert found.usd_per_million_tokens == pytest.approx(5.556, abs=0.0005)
    assert found.usd_per_million_good_tokens == pytest.approx(2 / (40 * 3600) * 1e6)  # 13.89
    assert found.usd_per_request == pytest.approx(2 / 3600)
    assert found.usd_per_good_request == pytest.approx(2 / 1800)
    assert (found.per_million, found.per_million_good) == (
        found.usd_per_million_tokens,
        found.usd_per_million_good_tokens,
    )


def test_another_price_is_another_cost_of_the_same_figures() -> None:
    assert cost(TOKENS, replace(ON_DEMAND, usd_per_hour=4.0)).usd_per_million_tokens == pytest.approx(11.11, abs=0.005)


@pytest.mark.parametrize("served", [0.0, None])
def test_where_nothing_succeeded_there_is_no_cost(served: float | None) -> None:
    """Not even where broken answers held tokens."""
    found = cost({**TOKENS, "throughput_rps": served, "good_tokens_per_s": 0.0, "goodput_rps": 0.0}, ON_DEMAND)
    figures = (
        found.usd_per_request,
        found.usd_per_good_request,
        found.usd_per_million_tokens,
        found.usd_per_million_good_tokens,
    )
    assert figures == (None,) * 4
    assert set(found.notes.values()) == {"no request succeeded"}


def test_zero_tokens_a_second_cost_nothing_that_could_be_told() -> None:
    found = cost({**TOKENS, "output_tokens_per_s": 0.0, "good_tokens_per_s": 0.0}, ON_DEMAND)
    assert found.usd_per_million_tokens is None and found.usd_per_request is not None


def test_answers_outside_the_objective_are_no_good_ones() -> None:
    found = cost({**TOKENS, "goodput_rps": 0.0, "good_tokens_per_s": 0.0}, ON_DEMAND)
    assert found.usd_per_million_tokens is not None
    assert found.per_million_good is None
    assert found.notes["usd_per_million_good_tokens"] == "no answer was within the objective"


def test_a_model_without_tokens_costs_by_the_request() -> None:
    found = cost({"throughput_rps": 1000.0, "goodput_rps": 500.0, "output_tokens_per_s": None}, ON_DEMAND)
    assert found.unit == "requests"
    assert found.per_million == pytest.approx(2 / 3.6)  # a thousand a second are 3.6 million an hour
    assert found.per_million_good == pytest.approx(4 / 3.6)
    assert found.notes["usd_per_million_tokens"] == "no tokens were counted"


def test_a_run_of_an_older_lab_says_why_it_has_no_good_tokens() -> None:
    kept = {name: value for name, value in TOKENS.items() if name != "good_tokens_per_s"}
    assert "older lab" in cost(kept, ON_DEMAND).notes["usd_per_million_good_tokens"]


def test_a_commitment_is_paid_for_all_hours() -> None:
    half = Use(utilization=0.5)
    assert paid_hours_a_day(PLAN, half) == 24
    assert usd_per_useful_hour(PLAN, half) == pytest.approx(0.662)
    assert usd_per_useful_hour(ON_DEMAND, half) == 2.0  # switched off while idle
    assert usd_per_useful_hour(ON_DEMAND, Use(utilization=0.5, kept_on=True)) == 4.0


def test_a_commitment_at_63_percent_of_the_price_pays_from_63_percent_use_on() -> None:
    on_demand = replace(ON_DEMAND, usd_per_hour=0.526)
    even = break_even(PLAN, on_demand)
    assert even == pytest.approx(0.629, abs=0.0005)
    at = Use(utilization=even)
    assert usd_per_useful_hour(PLAN, at) == pytest.approx(usd_per_useful_hour(on_demand, at))
    assert break_even(replace(PLAN, usd_per_hour=0.6), on_demand) is None  # dearer than what it replaces


def test_a_commitment_beats_a_dearer_machine_that_stays_on_at_any_use() -> None:
    on, dear = replace(ON_DEMAND, usd_per_hour=0.526), replace(PLAN, usd_per_hour=0.6)
    stays = Use(utilization=0.01, kept_on=True)
    assert usd_per_useful_hour(PLAN, stays) < usd_per_useful_hour(on, stays)
    assert (break_even(PLAN, on, stays), break_even(dear, on, stays)) == (0.0, None)
    assert even_sentence(PLAN, on, 0.0).endswith("however few hours are used.")


def test_serverless_pays_for_use_cold_starts_and_the_idle_tail() -> None:
    """A tenth of a day is 2.4 h; 12 bursts of 30 s start and 270 s tail are 1 h more: 3.4 paid for 2.4 used."""
    use = Use(utilization=0.1, wakes_per_day=12, cold_start_s=30, idle_s=270)
    assert paid_hours_a_day(PER_SECOND, use) == pytest.approx(3.4)
    assert usd_per_useful_hour(PER_SECOND, use) == pytest.approx(2 * 3.4 / 2.4)


def test_a_serverless_instance_that_never_sleeps_is_paid_24_hours() -> None:
    assert paid_hours_a_day(PER_SECOND, Use(utilization=0.5, wakes_per_day=1000, idle_s=600)) == 24


def test_the_break_even_with_serverless_counts_its_overhead() -> None:
    """24 h at 1 USD against 2 USD for use and 1 h of overhead: even at 11 of 24 hours."""
    use = Use(wakes_per_day=12, cold_start_s=30, idle_s=270)
    even = break_even(replace(PLAN, usd_per_hour=1.0), PER_SECOND, use)
    assert even == pytest.approx(11 / 24)
    assert 2 * (24 * even + 1) == pytest.approx(24)


def test_a_bundle_of_eight_is_paid_whole() -> None:
    assert cost(TOKENS, EIGHT).usd_per_million_tokens == pytest.approx(55.04 / 0.36)
    full = cost(TOKENS, EIGHT, Use(copies=8))
    assert full.usd_per_million_tokens == pytest.approx(55.04 / 0.36 / 8)
    told = caveats(EIGHT, Use(), fit(EIGHT, H100, "gpu"), today=TODAY)
    assert "8 accelerators come as one machine and all are paid; 1 of them serves." in told


def test_more_copies_than_accelerators_are_refused() -> None:
    with pytest.raises(InputError, match=r"copies 9: .* has 8 accelerators; allowed: 1 to 8"):
        cost(TOKENS, EIGHT, Use(copies=9))


@pytest.mark.parametrize("field", ["utilization", "copies", "wakes_per_day"])
def test_impossible_use_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=field):
        parse(Use, {field: -1})


def test_a_price_of_another_machine_is_a_what_if() -> None:
    found = fit(EIGHT, CPU)
    assert not found.measured
    assert found.text == (
        "a what-if: measured on 4 cores of AMD EPYC, not on 8 × H100-80GB, which would answer at another rate"
    )
    assert caveats(EIGHT, Use(), found, today=TODAY)[0].startswith("A what-if: ")


def test_a_price_of_the_machine_that_was_measured_is_none() -> None:
    four = replace(ON_DEMAND, accelerator="CPU-4vCPU-16GiB")
    assert fit(four, CPU).measured
    assert not fit(four, {**CPU, "cores": 2}).measured
    assert fit(replace(ON_DEMAND, accelerator=THIS_MACHINE), CPU).measured
    one = replace(EIGHT, count=1)
    assert fit(one, H100, "gpu").measured
    assert not fit(one, H100, "cpu").measured  # the GPU was there, the model was not on it
    assert not fit(replace(one, accelerator="H200-141GB"), H100, "gpu").measured
    assert not fit(one, {**CPU, "gpus": {"found": {"gpu:0": 8e10}}}, "gpu").measured  # nobody noted which


def test_what_a_cost_must_be_read_with() -> None:
    old = replace(ON_DEMAND, as_of="2026-03", certainty="low", commitment="spot", accelerator=THIS_MACHINE)
    told = " ".join(caveats(old, Use(utilization=0.5), fit(old, CPU), today=TODAY))
    assert "The price is of 2026-03, up to 274 days old" in told
    dated = caveats(replace(old, as_of="2026-03-01"), Use(), fit(old, CPU), today=TODAY)
    assert "The price is of 2026-03-01, 274 days old" in " ".join(dated)
    assert "certainty low" in told and "Spot" in told and "Used 50 % of all hours: assumed" in told
    assert caveats(replace(ON_DEMAND, accelerator=THIS_MACHINE), Use(), fit(old, CPU), today=TODAY) == ()
