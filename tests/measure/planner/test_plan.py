"""Whole plans from servers whose answer is known on paper."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lab.errors import InputError
from lab.measure.floors import Machine
from lab.measure.planner import accelerators, answers, calibrated, limits, plan_words, scaling
from lab.measure.planner.accelerators import Accelerator
from lab.measure.planner.calibrated import Calibrated
from lab.measure.planner.heldout import HeldOut, Trust
from lab.measure.planner.limits import Surroundings
from lab.measure.planner.prediction import Prediction, SimulatedRun, put_together
from lab.measure.planner.scaling import Format
from lab.measure.planner.service import Service, steady
from lab.measure.planner.setting import Ranges, Setting
from lab.measure.planner.steps import Steps
from lab.measure.prices import Price
from lab.measure.words import format_seconds
from lab.spec import Batching, ModelSpec, Slo


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs enough for what is asked here."""
    monkeypatch.setattr(calibrated, "RUNS", 2)


METRICS = ("throughput_rps", "latency_p50_s", "latency_p95_s", "latency_p99_s")


def trusted(*errors: float) -> Trust:
    """Held-out blocks that were so far off in every metric."""
    none = Prediction(1.0, None, None, None, None, None, None)
    return Trust(
        tuple(HeldOut("a", n, 1.0, 0.5, True, none, {}, dict.fromkeys(METRICS, e)) for n, e in enumerate(errors)), {}
    )


def queue(service: Service | None = None, *, size: int = 1, trust: Trust | None = None) -> Calibrated:
    """A server of 10 ms a request, up to 100 a second, measured from 10 to 80."""
    spec = ModelSpec(name="digits", batching=None if size == 1 else Batching(max_batch_size=size))
    ranges = Ranges((10.0, 80.0), 1.0 * size, frozenset({(None,) if size == 1 else (size, 0)}), ("fp32",))
    return Calibrated(spec, ranges, trust or trusted(0.1, -0.1), services={"fp32": service or steady(0.010)})


def engine(**changes: object) -> Calibrated:
    """10 ms a step, whoever shares it; a token of a prompt takes 1 ms; 9 tokens in, 11 out."""
    spec = ModelSpec(name="llm", max_batch_size=4, max_request_tokens=64)
    found = Calibrated(
        spec,
        Ranges((1.0, 20.0), 4.0, frozenset({("continuous", 4)}), ("bf16",)),
        trusted(0.05),
        steps={"bf16": Steps(0.010, read_token_s=0.001)},
        formats={
            "bf16": Format("bf16", 200e6, 1000.0, 100e6),
            "int8": Format("int8", 100e6, 1000.0, 100e6, predicted=True),
        },
        machine=Machine(50e9, {"bf16": 400e9, "int8": 800e9}),
        prompt_tokens=9,
        output_tokens=11,
    )
    return replace(found, **changes)


# --- the setting ---------------------------------------------------------------------------------------------------


def test_a_setting_is_named_with_what_it_leaves_to_the_run():
    assert plan_words.setting_words(Setting(50), queue()) == "digits in fp32, requests alone, 1 replica"
    told = plan_words.setting_words(Setting(50, 3, delay_s=0.002), queue(size=8))
    assert told == "digits in fp32, batches of up to 8, 2 ms delay, 3 replicas"
    assert plan_words.setting_words(Setting(5), engine()) == "llm in bf16, batches of up to 4, 1 replica"


# --- replicas -----------------------------------------------------------------------------------------------------


def test_a_target_below_the_floor_is_met_by_no_number_of_replicas():
    found = answers.needed(queue(steady(0.008)), Setting(50), Slo(latency_s=0.005, percentile=0.95))
    assert found.replicas is None
    assert found.why == "No number of replicas reaches 5 ms: one request alone takes 8.0 ms."
    assert plan_words.needed_sentence(found, Slo(latency_s=0.005)) == found.why


def test_a_delay_is_part_of_the_floor():
    held = Setting(50, max_batch_size=8, delay_s=0.020)
    assert answers.needed(queue(steady(0.008)), held, Slo(latency_s=0.020, percentile=0.95)).replicas is None
    assert answers.needed(queue(steady(0.008)), replace(held, delay_s=0.0), Slo(latency_s=0.020)).replicas is not None


def test_replicas_follow_the_rate():
    slo = Slo(latency_s=0.5, percentile=0.95)  # half a second is fifty services: only capacity counts
    numbers = {rate: answers.needed(queue(), Setting(rate), slo, 0.0).replicas for rate in (50, 250, 950)}
    assert numbers == {50: 1, 250: 3, 950: 10}


def test_headroom_asks_for_more():
    slo = Slo(latency_s=0.5, percentile=0.95)
    assert answers.needed(queue(), Setting(95), slo, 0.0).replicas == 1
    assert answers.needed(queue(), Setting(95), slo, 0.2).replicas == 2
    with pytest.raises(InputError, match="headroom -1: allowed is 0 to 10"):
        answers.needed(queue(), Setting(95), slo, -1)


def test_what_held_out_blocks_were_off_widens_the_number():
    slo = Slo(latency_s=0.030, percentile=0.95)
    sure, doubtful = (
        answers.needed(queue(trust=trusted(*errors)), Setting(400), slo, 0.0)
        for errors in ((0.0,), (0.5, -0.4))
    )  # fmt: skip
    assert (sure.low, sure.high) == (sure.replicas, sure.replicas)
    assert doubtful.low <= doubtful.replicas < doubtful.high
    assert "at best" in plan_words.needed_sentence(doubtful, slo)
    lost = replace(doubtful, high=None)
    assert plan_words.needed_sentence(lost, slo).startswith("It cannot be told how many replicas keep")


def test_more_replicas_than_anybody_has_is_said():
    found = answers.needed(queue(), Setting(1e6), Slo(latency_s=1.0))
    assert found.replicas is None and "More than 1,024 replicas" in found.why


def test_no_more_replicas_are_worse():
    slo = Slo(latency_s=0.025, percentile=0.95)
    shares = [answers.tell(queue(), Setting(300, n), slo).predicted.slo_attainment_fraction for n in (4, 5, 6, 10)]
    assert shares == sorted(shares)


def test_a_target_that_the_model_may_be_wrong_about_is_told_with_that():
    """8 ms alone against 7.5: a model that said 10 % too much elsewhere may be wrong by as much here."""
    sure, doubtful = (
        answers.needed(queue(steady(0.008), trust=trusted(off)), Setting(50), Slo(latency_s=0.0075))
        for off in (0.0, 0.1)
    )
    assert sure.why == "No number of replicas reaches 7.5 ms: one request alone takes 8.0 ms."
    assert doubtful.replicas is None and doubtful.why.startswith(sure.why)
    assert "within what the model was off by" in doubtful.why


# --- several simulated runs ---------------------------------------------------------------------------------------


def test_what_is_asked_about_is_a_point_of_the_curve():
    model = queue(scattered())
    told = answers.tell(model, Setting(62), None)
    line = answers.curve(model, Setting(62), None, asked=told)
    assert told in line and [one.load_fraction for one in line] == sorted(one.load_fraction for one in line)
    full = answers.tell(model, Setting(150), None)
    assert full not in answers.curve(model, Setting(150), None, asked=full)


def test_a_server_that_never_sleeps_gets_no_quicker_with_load(monkeypatch):
    """Stalls of eight times the usual, one in a hundred: a single draw of them makes p99 jump."""
    monkeypatch.setattr(calibrated, "RUNS", 8)
    spread = np.array([1.0] * 99 + [8.0])
    model = queue(replace(steady(0.002, 0.001), spread=spread / spread.mean()), size=8)
    line = answers.curve(model, Setting(100), None)
    tails = [one.predicted.latency_p99_s for one in line]
    assert all(b > 0.97 * a for a, b in itertools.pairwise(tails))


def test_a_single_server_s_tail_is_mm1_s(monkeypatch):
    """M/M/1: time in the system is exponential with mean s / (1 - load), so its p99 is ln(100) times that."""
    monkeypatch.setattr(calibrated, "RUNS", 8)
    draws = -np.log((np.arange(2000) + 0.5) / 2000)
    found = answers.tell(queue(replace(steady(0.010), spread=draws / draws.mean())), Setting(50), None).predicted
    assert found.latency_p99_s == pytest.approx(np.log(100) * 0.010 / 0.5, rel=0.08)
    low, high = found.between("latency_p99_s")
    assert low < found.latency_p99_s < high and len(found.each["latency_p99_s"]) == 8


def test_runs_are_put_together_by_their_answers_and_told_apart():
    def run(*latency_s: float) -> SimulatedRun:
        return SimulatedRun(np.array(latency_s), np.zeros(len(latency_s)), 2.0, 4, len(latency_s), 0, 3.0, 1.0, 0.5)

    found = put_together([run(1.0, 2.0, 3.0), run(9.0)], Slo(latency_s=2.5))
    assert (found.latency_p50_s, found.each["latency_p50_s"]) == (2.5, (2.0, 9.0))
    assert (found.throughput_rps, found.slo_attainment_fraction, found.goodput_rps) == (1.0, 0.25, 0.5)
    assert found.missed_alone_fraction == 1.0  # nobody waited
    assert put_together([run(1.0)]).between("latency_p50_s") is None


# --- intervals and what is outside --------------------------------------------------------------------------------


def test_a_prediction_has_the_interval_of_held_out_errors():
    told = answers.tell(queue(trust=trusted(0.25, -0.2)), Setting(50), None)
    low, high = told.bounds["latency_p95_s"]
    assert (low, high) == pytest.approx((told.predicted.latency_p95_s / 1.25, told.predicted.latency_p95_s / 0.8))


def test_an_interval_is_no_narrower_than_the_simulated_runs_are_apart():
    told = answers.tell(queue(trust=trusted(0.001, -0.001)), Setting(50), None)
    between = told.predicted.between("latency_p95_s")
    assert between is not None and between[1] > 1.01 * between[0]
    assert told.bounds["latency_p95_s"] == between


def test_above_85_percent_there_is_none():
    told = answers.tell(queue(), Setting(90), None)
    assert told.busy and not told.bounds
    assert plan_words.figure(told, "latency_p95_s")[1] == "above 85 % of capacity: no interval"


def test_above_capacity_no_latency_is_told():
    told = answers.tell(queue(), Setting(150), None)
    assert told.load_fraction > 1
    assert plan_words.figure(told, "latency_p99_s")[0] == "without limit"
    assert plan_words.figure(told, "throughput_rps")[0] != "without limit"


def test_how_far_outside_is_said():
    model = queue(size=8)
    inside = answers.tell(model, Setting(50), None)
    assert inside.outside == ()
    more = answers.tell(model, Setting(160), None).outside
    assert any("2.0× the highest rate measured" in text for text in more)
    other = answers.tell(model, Setting(50, 3, max_batch_size=4, delay_s=0.005), None).outside
    assert any("batches of up to 4 with a delay of 5 ms: not measured" in text for text in other)
    assert any("more than one replica" in text for text in other)


def test_a_seed_fixes_a_plan():
    slo = Slo(latency_s=0.030, percentile=0.95)
    for model in (queue(), engine()):
        twice = [answers.tell(model, Setting(15, 2), slo, seed=4).predicted for _ in range(2)]
        assert twice[0] == twice[1]
        balanced = [answers.balancing(model, Setting(15, 2), slo, seed=4) for _ in range(2)]
        assert balanced[0] == balanced[1]
    assert (
        answers.tell(queue(), Setting(70), slo, seed=5).predicted != answers.tell(queue(), Setting(70), slo).predicted
    )


def test_what_cannot_be_asked_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"precision 'int8': not measured in this run.* allowed: fp32"):
        answers.tell(queue(), Setting(10, precision="int8"), None)
    with pytest.raises(InputError, match="accelerator 'T4': what digits takes here is mostly the server's own work"):
        answers.tell(queue(), Setting(10, accelerator=T4), None)
    with pytest.raises(InputError, match="delay 2 ms: a language model's engine holds nobody back"):
        answers.tell(engine(), Setting(1, delay_s=0.002), None)
    with pytest.raises(InputError, match="replicas 1: one replica has nothing to be balanced"):
        answers.balancing(queue(), Setting(10), None)


# --- routers and limits -------------------------------------------------------------------------------------------


def scattered(**changes: float) -> Service:
    """1 to 30 ms, 10 on average, with the tail that real ones have."""
    spread = np.random.default_rng(5).lognormal(0, 0.5, 500)
    return replace(steady(0.010), spread=spread / spread.mean(), **changes)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("wake_s", [0.0, 0.020])
def test_where_nobody_waits_no_router_is_better(replicas: int, wake_s: float):
    """At 2 % of capacity hardly two requests meet; also where a pause makes the next one slower."""
    model = queue(scattered(wake_s=wake_s, asleep_s=0.5))
    found = answers.balancing(model, Setting(0.02 * replicas * 100, replicas), Slo(latency_s=0.1))
    base = found["round_robin"].latency_p99_s
    assert all(one.latency_p99_s == pytest.approx(base, rel=0.02) for one in found.values())
    assert plan_words.balancing_sentence(found).count("no different") == 2


def test_the_tail_of_the_service_time_is_no_queue():
    """5 % of the requests take 40 ms by themselves, whoever waits: 20 ms for 95 % is missed at any rate above a few."""
    slow = replace(steady(0.010), spread=np.array([0.842] * 95 + [4.0] * 5))
    model, slo = queue(slow), Slo(latency_s=0.020, percentile=0.94)
    first = limits.first(limits.limits(model, Setting(20), slo, Surroundings()))
    assert first.name == "service time"
    assert "would miss it without a queue too" in first.text and "the tail of its times" in first.text
    kept = limits.first(limits.limits(queue(), Setting(20), Slo(latency_s=0.020, percentile=0.95), Surroundings()))
    assert kept.name == "queue"


# --- precision and accelerators -----------------------------------------------------------------------------------

T4 = Accelerator(
    name="T4",
    memory_gib=15.0,
    bandwidth_gb_s=320.0,
    fp16_tflops_dense=65.0,
    int8_tops_dense=130.0,
    fp8_tflops_dense=None,
    source="data sheet",
    as_of="2026-11",
    certainty="high",
)


def test_fewer_bytes_save_of_a_step_what_reading_them_would_take():
    steps, told = scaling.in_precision(
        Steps(0.010, 0.001, 1e-5, 0.002, 0.004),
        Format("bf16", 200e6, 1000.0, 100e6),
        Format("int8", 100e6, 500.0, 100e6),
        Machine(50e9, {"bf16": 400e9, "int8": 800e9}),
    )
    # 4 ms of the 10 read the weights. Of 4 ms a token 0.5 are arithmetic; its fixed part is hidden behind that.
    assert (steps.write_fixed_s, steps.write_row_s, steps.write_held_s) == pytest.approx((0.008, 0.001, 0.5e-5))
    assert (steps.read_fixed_s, steps.read_token_s) == pytest.approx((0.002, 0.00375))
    assert "int8 was not measured: scaled from bf16" in told


def test_a_prompt_whose_tokens_cost_less_than_arithmetic_waits_for_the_weights():
    steps, _ = scaling.in_precision(
        Steps(0.010, read_fixed_s=0.010, read_token_s=0.0004),
        Format("bf16", 200e6, 1.0, 100e6),
        Format("int8", 100e6, 1.0, 100e6),
        Machine(50e9, {"bf16": 400e9, "int8": 800e9}),
    )
    assert (steps.read_fixed_s, steps.read_token_s) == pytest.approx((0.008, 0.0002))


def test_a_disturbed_probe_makes_no_prompt_slower_in_fewer_bits():
    disturbed = Machine(50e9, {"bf16": 60e9, "int8": 25e9})
    steps, _ = scaling.in_precision(
        Steps(0.010, read_token_s=0.001),
        Format("bf16", 200e6, 1.0, 100e6),
        Format("int8", 100e6, 1.0, 100e6),
        disturbed,
    )
    assert steps.read_token_s == 0.001


def test_an_accelerator_is_scaled_by_its_data_sheet_and_called_a_bound():
    told = answers.tell(engine(), Setting(4, accelerator=T4), None)
    steps, _ = engine().server(Setting(4, accelerator=T4))
    assert steps.write_fixed_s == pytest.approx(0.010 * 50 / 320)
    assert steps.read_token_s == pytest.approx(0.001 * 0.4 / 65)
    assert not told.fitted and not told.bounds  # no block of it was held out
    assert any("T4 was not measured" in text and "It is a bound" in text for text in told.outside)


def test_an_accelerator_needs_a_machine_that_was_probed():
    with pytest.raises(InputError, match="does not say what its own machine reads and multiplies"):
        engine(machine=None).server(Setting(4, accelerator=T4))
    bare = T4.model_copy(update={"fp16_tflops_dense": None})
    with pytest.raises(InputError, match="gives no rate for bf16"):
        engine().server(Setting(4, accelerator=bare))


ROW = "name,memory_gib,bandwidth_gb_s,fp16_tflops_dense,int8_tops_dense,fp8_tflops_dense,source,as_of,certainty\n"


def test_accelerator_rows_are_read_with_their_source():
    (found,) = accelerators.read(f"{accelerators.FORMAT}\n{ROW}L4,22.5,300,121,242,,NVIDIA,2026-11,medium\n")
    assert (found.memory_bytes, found.fp8_tflops_dense, found.source) == (22.5 * 2**30, None, "NVIDIA")
    assert found.machine.arithmetic("int8") == 242e12 and found.machine.arithmetic("fp32") is None


@pytest.mark.parametrize(("row", "says"), [
    ("L4,22.5,-300,121,242,,NVIDIA,2026-11,medium", "row 1: bandwidth_gb_s"),
    ("L4,22.5,,121,242,,NVIDIA,2026-11,medium", "row 1: bandwidth_gb_s"),
    ("L4,22.5,inf,121,242,,NVIDIA,2026-11,medium", "row 1: bandwidth_gb_s"),
    ("L4,22.5,300,121,242,,,2026-11,medium", "row 1: source"),
    ("L4,22.5,300,121,242,,NVIDIA,November,medium", "row 1: as_of"),
    ("L4,22.5,300,121,242,,NVIDIA,2026-11,sure", "row 1: certainty"),
    ("L4,22.5,300,121,242,,NVIDIA, Inc,2026-11,high", "row 1: holds more fields"),
    ("L4,1,1,1,1,1,x,2026,low\nL4,1,1,1,1,1,x,2026,low", "row 2: name 'L4' stands there twice"),
    ("", "0 rows"),
])  # fmt: skip
def test_a_row_that_cannot_be_right_is_refused(row, says):
    with pytest.raises(InputError, match=says):
        accelerators.read(ROW + row)


# --- what breaks first, routers, the bill -------------------------------------------------------------------------


def test_the_queue_breaks_before_the_server_is_full():
    found = limits.limits(queue(), Setting(50), Slo(latency_s=0.030, percentile=0.95), Surroundings())
    assert limits.first(found).name == "queue"
    rates = {one.name: one.rate_rps for one in found}
    # M/D/1: the wait is within two services with (1 - load) (exp(2 load) - load exp(load)), 0.95 at a load of 0.492.
    assert rates["queue"] == pytest.approx(49.2, rel=0.05) and rates["batch limit"] == pytest.approx(100)
    assert (rates["memory"], rates["client"], rates["network"]) == (None, None, None)
    assert "What breaks first: the queue." in plan_words.limit_sentence(limits.first(found))


def test_a_patient_objective_breaks_at_full_batches():
    found = limits.limits(queue(size=4), Setting(50), Slo(latency_s=60.0, percentile=0.95), Surroundings())
    assert limits.first(found).name == "batch limit"


def test_what_one_request_takes_breaks_before_any_load():
    found = limits.limits(queue(), Setting(50), Slo(latency_s=0.005), Surroundings())
    assert (limits.first(found).name, limits.first(found).rate_rps) == ("service time", 0.0)


def test_memory_client_and_network_have_rates_of_their_own():
    around = Surroundings(
        memory_bytes=1e9,
        replica_bytes=4e8,
        client_core_s=0.02,
        client_cores=2,
        request_bytes=1250.0,
        network_bits_s=1e6,
    )
    found = {
        one.name: one for one in limits.limits(queue(), Setting(50), Slo(latency_s=0.030, percentile=0.95), around)
    }
    assert found["client"].rate_rps == pytest.approx(100)  # two cores, 20 ms each
    assert found["network"].rate_rps == pytest.approx(100)  # a million bits a second, ten thousand each
    assert found["memory"].rate_rps == pytest.approx(2 * found["queue"].rate_rps)  # two fit
    assert (found["network"].known, found["client"].known) == ("assumed", "measured")


def test_a_cache_that_holds_fewer_answers_than_places_breaks():
    room = limits.limits(engine(), Setting(5), Slo(latency_s=5.0), Surroundings())
    assert next(one for one in room if one.name == "KV cache").rate_rps is None
    # 200 MB of weights and two answers of 20 tokens, 1,000 bytes each: half the places.
    tiny = T4.model_copy(update={"memory_gib": (200e6 + 2 * 20 * 1000.0) / 2**30})
    small = limits.limits(engine(), Setting(5, accelerator=tiny), Slo(latency_s=5.0), Surroundings())
    cache = next(one for one in small if one.name == "KV cache")
    assert cache.rate_rps == pytest.approx(engine().capacity_rps(Setting(5, accelerator=tiny)) / 2)
    none = T4.model_copy(update={"memory_gib": 0.1})
    (memory,) = [
        one for one in limits.limits(engine(), Setting(5, accelerator=none), Slo(latency_s=5.0), Surroundings())
        if one.name == "memory"
    ]  # fmt: skip
    assert memory.rate_rps == 0.0 and "do not fit" in memory.text


def test_an_engines_capacity_is_full_steps_and_its_prompts():
    # Reading gives the first of 11 tokens; ten in steps of four take 25 ms of an answer, its prompt 9 ms.
    assert engine().capacity_rps(Setting(1)) == pytest.approx(1 / 0.034)


def test_a_router_that_looks_has_the_shorter_tail():
    scattered = Service(0.010, 0.0, np.random.default_rng(0).exponential(1.0, 4000), np.array([0.0]))
    found = answers.balancing(queue(scattered), Setting(340, 4), Slo(latency_s=0.1))
    assert (
        found["least_outstanding"].latency_p99_s
        < found["two_choices"].latency_p99_s
        < found["round_robin"].latency_p99_s
    )
    assert "Predicted p99 behind round robin" in plan_words.balancing_sentence(found)


def tails(*p99_s: float) -> Prediction:
    each = {"latency_p99_s": p99_s}
    return Prediction(1.0, None, None, None, None, None, float(np.mean(p99_s)), each=each)


@pytest.mark.parametrize(("other", "says"), [
    (tails(0.009, 0.026), "not told apart: 10 % less to 30 % more in 2 simulated runs"),
    (tails(0.008, 0.016), "20 % less, and so in each of 2 simulated runs"),
    (tails(0.010, 0.020), "no different"),
])  # fmt: skip
def test_a_router_is_better_where_every_simulated_run_says_so(other, says):
    base = tails(0.010, 0.020)
    text = plan_words.balancing_sentence({"round_robin": base, "least_outstanding": other})
    assert text == f"Predicted p99 behind round robin: 15.0 ms; behind least outstanding {told(other)} ({says})."


def told(one: Prediction) -> str:
    return format_seconds(one.latency_p99_s)


def test_a_machine_is_paid_whole():
    price = Price("us", "any", "H100-80GB", 8, "on_demand", 16.0, "list", "2026-11", "high")
    found = answers.bill(price, 9, 1000.0)
    assert (found.machines, found.usd_per_hour, found.usd_per_month) == (2, 32.0, 32.0 * 730)
    assert found.usd_per_million == pytest.approx(32 / 3.6)
    assert answers.bill(price, 9, None).usd_per_million is None


def test_trust_is_told_with_the_worst():
    text = plan_words.trust_sentence(trusted(0.02, -0.1, 0.05))
    assert text.startswith("Left out and predicted, 3 blocks of this run: throughput off by 5 % (worst 10 %)")
    assert "the machine's own noise is not known" in text
