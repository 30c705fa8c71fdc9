"""Truth: blocks whose goodput and latency were put in, and a simulated batching server whose costs are known."""

import dataclasses
import json

import numpy as np
import pytest

from lab.errors import InputError
from lab.measure.compare import Effect
from lab.measure.records import OK, REFUSED, Requests, Window
from lab.measure.server import server_delta
from lab.measure.summary import summarize
from lab.measure.telling import Telling
from lab.measure.verdict import CellResult, verdict
from lab.spec import (
    Batching,
    ClosedLoop,
    Experiment,
    Judge,
    ModelSpec,
    Poisson,
    Reference,
    Slo,
    Workload,
    plain,
)

S = 1_000_000_000
LOAD = "workload.arrival.saturation_fraction"
DELAYS = tuple(Batching(max_batch_size=32, max_queue_delay_us=us) for us in (0, 5000))
OFF, NOW, LATE = None, plain(DELAYS[0]), plain(DELAYS[1])


def experiment(**changed):
    fields = {
        "id": "batching",
        "question": "?",
        "hypothesis": "!",
        "model": ModelSpec(name="digits"),
        "workload": Workload(arrival=Poisson(saturation_fraction=0.8), duration_s=10),
        "slo": Slo(latency_s=0.020),
        "factors": {LOAD: (0.1, 1.2), "model.batching": (None, *DELAYS)},
        "reference": Reference(),
        "judge": Judge(factor="model.batching"),
    }
    return Experiment(**fields | changed)


def cell(load, batching, *, rate, latency_ms, late=0.0, refused=0.0, repeats=3, seconds=4.0, **fields):
    """Blocks of `rate` requests a second, a second of warm-up before `seconds`, with about this latency. Exactly the
    share `late` takes a second more, the share `refused` is refused at once. `fields` replace the summaries' own;
    without batching 84 % of what is beyond saturation is served."""
    if batching is OFF and load > 1:
        fields = {"throughput_rps": 0.84 * rate, **fields}
    rng = np.random.default_rng([round(100 * load), round(1000 * latency_ms), round(1000 * late)])
    blocks, summaries = [], []
    for _ in range(repeats):
        due = np.round(np.arange(0, seconds + 1, 1 / rate) * S).astype(np.int64)
        took_s = latency_ms / 1000 * rng.lognormal(0, 0.02, len(due)) + share_of(len(due), late)
        outcome = np.where(share_of(len(due), refused), REFUSED, OK).astype(np.uint8)
        requests = Requests(due, due, due + np.round(took_s * S).astype(np.int64), outcome)
        window = Window(0, S, round((seconds + 1) * S))
        blocks.append((requests, window))
        summary = summarize(requests, window=window, planned=len(due), slo=Slo(latency_s=0.020))
        summaries.append(dataclasses.replace(summary, **fields))
    return CellResult({LOAD: load, "model.batching": batching}, blocks, summaries)


def share_of(n, share):
    """n times yes or no, the yeses evenly spread."""
    return np.floor(np.arange(1, n + 1) * share) > np.floor(np.arange(n) * share)


COSTS = {"batch_sizes": {1: 100, 8: 300}, "item_compute_s": {1: 0.0006, 8: 0.0001}, "batch_mean": 6.0}
SAME_COSTS = {"batch_sizes": {1: 100, 8: 300}, "item_compute_s": {1: 0.0201, 8: 0.0198}, "batch_mean": 6.0}


def saturation(off_rps, on_rps):
    summary = cell(1.0, OFF, rate=100, latency_ms=5, repeats=1).summaries[0]
    return [
        (level, dataclasses.replace(summary, throughput_rps=rps))
        for level, rps in ((OFF, off_rps), (NOW, on_rps), (LATE, on_rps))
    ]


def low_load(**fields):
    return [
        cell(0.1, OFF, rate=150, latency_ms=1, **fields),
        cell(0.1, NOW, rate=150, latency_ms=1, **fields),
        cell(0.1, LATE, rate=150, latency_ms=6, **fields),
    ]


def high_load(base_late, now_late, late_late, **fields):
    """1,900 req/s, of which the server without batching answers 1,600."""
    return [
        cell(1.2, OFF, rate=1900, latency_ms=8, late=base_late, **fields),
        cell(1.2, NOW, rate=1900, latency_ms=8, late=now_late, **fields),
        cell(1.2, LATE, rate=1900, latency_ms=8, late=late_late, **fields),
    ]


# --- it pays ----------------------------------------------------------------------------------------------------


def test_batching_that_pays_is_told_with_gain_reason_and_cost():
    """1 - 0.62 of the requests are in time without batching, all are with it: 1 / 0.38 = 2.6×."""
    cells = [*low_load(), *high_load(0.62, 0.0, 0.0, **COSTS)]
    found = verdict(experiment(), cells, saturation(1600, 4160))
    assert found.holds is True
    gain, why, cost, *rest = found.text.split(". ")
    assert gain.startswith(
        "At 1,900 req/s (120 % of saturation) batching without a delay serves 2.6× as many requests within 20 ms (2."
    )
    assert gain.endswith(
        "; it saturates at 4,160 req/s, the unbatched model at 1,600 req/s (2.6×, measured for 4 s each)"
    )
    assert why == "One item costs 0.60 ms of compute alone and 0.10 ms in a batch of 8"
    assert cost.startswith("At 150 req/s (10 % of saturation) a 5 ms delay adds 5.0 ms to p50 (4.")
    assert cost.endswith("and gains nothing")
    assert rest == ["It holds at 1 of 2 loads: not at 10 % of saturation."]
    assert found.where == ({"at": {LOAD: 0.1}, "answer": "no"}, {"at": {LOAD: 1.2}, "answer": "yes"})
    assert found.headline == {"level": NOW, "at": {LOAD: 1.2}}


@pytest.mark.parametrize("late", [0.0, 0.62])
def test_a_load_that_did_not_reach_saturation_decides_nothing(late):
    """All of 1,900 req/s are served at "120 %" of a saturation of 1,600, so that was wrong: neither that nothing is
    gained there nor that 1 / 0.38 = 2.6 times as many are in time says what happens beyond saturation."""
    cells = [*low_load(), *high_load(late, 0.0, 0.0, throughput_rps=1900.0)]
    found = verdict(experiment(), cells, saturation(1600, 6080))
    assert found.holds is None
    assert found.text.startswith(
        "Not decided: no load reached saturation. At 1,900 req/s (120 % of saturation) the unbatched model served "
        "1,900 req/s, and 1,600 req/s was measured as the most it can, so saturation was measured too low: run it again"
    )
    assert "saturates at" not in found.text and "3.8×" not in found.text and "does not pay" not in found.text
    assert [there["answer"] for there in found.where] == ["no", "open"]


def test_a_saturation_that_was_measured_too_low_is_doubted():
    """What keeps up with 120 % of it was not saturated; 300 % did exceed it, and decides."""
    design = experiment(factors={LOAD: (1.2, 3.0), "model.batching": (None, DELAYS[0])})
    cells = [
        cell(1.2, OFF, rate=1900, latency_ms=8, throughput_rps=1890.0),
        cell(1.2, NOW, rate=1900, latency_ms=8),
        cell(3.0, OFF, rate=4750, latency_ms=8, late=0.62, throughput_rps=2100.0),
        cell(3.0, NOW, rate=4750, latency_ms=8),
    ]
    found = verdict(design, cells, saturation(1600, 6080))
    assert found.holds is True
    assert "the unbatched model kept up with 120 % of its measured saturation" in found.text
    assert "saturates at" not in found.text


def test_a_level_that_serves_more_than_its_saturation_was_not_saturated():
    """1,900 req/s are served with batching, against 1,500 in its closed loop: its 1,500 is no fact to tell."""
    found = verdict(experiment(), [*low_load(), *high_load(0.62, 0.0, 0.0)], saturation(1600, 1500))
    assert found.holds is True and "saturates at" not in found.text


def test_the_better_level_is_named_when_the_simplest_is_not_as_good():
    found = verdict(experiment(), [*low_load(), *high_load(0.6, 0.3, 0.0)])
    assert "batching with a 5 ms delay serves 2.5× as many" in found.text


def three_loads(low, middle, high):
    """At each load the share of the requests that is late with batching off, and on: low, middle and high."""
    design = experiment(factors={LOAD: (0.1, 0.8, 1.2), "model.batching": (None, DELAYS[0])})
    cells = [
        cell(load, level, rate=rate, latency_ms=8, late=late)
        for (load, rate), pair in zip(((0.1, 150), (0.8, 1200), (1.2, 1900)), (low, middle, high), strict=True)
        for level, late in zip((OFF, NOW), pair, strict=True)
    ]
    return verdict(design, cells)


@pytest.mark.parametrize(
    ("loads", "says"),
    [
        (((0.5, 0.0), (0.5, 0.0), (0.5, 0.0)), "It holds at each of the 3 loads."),
        (((0.0, 0.0), (0.5, 0.0), (0.5, 0.0)), "It holds at 2 of 3 loads: not at 10 % of saturation."),
        (
            ((0.0, 0.5), (0.0, 0.0), (0.5, 0.0)),
            "It holds at 1 of 3 loads: not at 80 % of saturation, and worse at 10 % of saturation.",
        ),
    ],
)
def test_a_hypothesis_that_holds_says_where_and_where_not(loads, says):
    """A gain at one load of three is no gain at all three."""
    found = three_loads(*loads)
    assert found.holds is True and says in found.text
    holding = sum(load["answer"] == "yes" for load in found.where)
    assert f"at {holding} of 3" in says or (holding == 3 and "each of the 3" in says)


def test_what_is_told_first_is_what_the_cards_may_open_on():
    assert three_loads((0.5, 0.0), (0.5, 0.0), (0.5, 0.0)).headline == {"level": NOW, "at": {LOAD: 1.2}}
    assert three_loads((0.5, 0.0), (0.5, 0.0), (0.0, 0.0)).headline == {"level": NOW, "at": {LOAD: 0.8}}
    assert verdict(experiment(), []).headline is None
    assert verdict(experiment(), low_load()).headline["at"] == {LOAD: 0.1}  # also of what is not decided


def test_from_none_in_time_to_all_is_told_in_rates():
    found = verdict(experiment(), [*low_load(), *high_load(1.0, 0.0, 0.0)])
    assert found.holds is True
    assert "serves 1,900 req/s within 20 ms where the unbatched model serves none" in found.text


def test_effects_hold_every_level_load_and_metric():
    found = verdict(experiment(), [*low_load(), *high_load(0.62, 0.0, 0.0)])
    assert len(found.effects) == 2 * 2 * 4
    (effect,) = [
        e for e in found.effects if e["level"] == LATE and e["at"] == {LOAD: 0.1} and e["metric"] == "latency_p50_s"
    ]
    assert effect["factor"] == "model.batching"
    assert effect["ratio"] == pytest.approx(6, rel=0.02)
    assert effect["verdict"] == "higher"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["effects"] == found.effects


# --- it does not pay --------------------------------------------------------------------------------------------


def test_batching_that_does_not_pay_says_so_and_why():
    cells = [*low_load(), *high_load(0.5, 0.5, 0.5, **SAME_COSTS)]
    found = verdict(experiment(), cells, saturation(1600, 1610))
    assert found.holds is False
    assert found.text.startswith(
        "Batching does not pay here: at 1,900 req/s (120 % of saturation) the best of 2 settings, "
        "batching without a delay, serves 1."
    )
    assert "One item costs 20.1 ms of compute alone and 19.8 ms in a batch of 8: there is nothing to" in found.text
    assert "a 5 ms delay adds 5.0 ms to p50" in found.text


def test_an_objective_below_the_service_time_is_named():
    cells = [cell(load, level, rate=60, latency_ms=25) for load in (0.1, 1.2) for level in (OFF, NOW, LATE)]
    found = verdict(experiment(), cells, saturation(60, 60))
    assert found.holds is False
    assert found.text.startswith(
        "The objective is out of reach, nothing is served within 20 ms at any load: "
        "at 60.0 req/s (10 % of saturation) the median is 2"
    )
    assert "it saturates at 60.0 req/s, the unbatched model at 60.0 req/s (1.00×, measured for 4 s each)" in found.text


def test_nothing_is_to_be_gained_where_all_is_served_already():
    found = verdict(experiment(), [*low_load(), *high_load(0.0, 0.0, 0.0)])
    assert found.holds is False
    assert "serves 100 % of what is asked within 20 ms, so there is little to gain" in found.text


def test_what_is_served_already_cannot_be_gained_however_wide_the_interval():
    """One short repeat: 1.00 ± 0.06 does not rule out a gain of 5 %, but all 150 req/s are in time already."""
    design = experiment(factors={LOAD: (0.1,), "model.batching": (None, *DELAYS)})
    found = verdict(design, low_load(repeats=1))
    (effect,) = [e for e in found.effects if e["metric"] == "goodput_rps" and e["level"] == NOW]
    assert effect["ci_high"] > 1.05
    assert found.holds is False


def test_the_batch_size_that_carried_most_requests_is_told():
    """300 batches of 8 carry more than 10 of 32."""
    costs = {"batch_sizes": {1: 500, 8: 300, 32: 10}, "item_compute_s": {1: 0.002, 8: 0.001, 32: 0.0005}}
    found = verdict(experiment(), [*low_load(), *high_load(0.62, 0.0, 0.0, **costs)])
    assert "One item costs 2.0 ms of compute alone and 1.0 ms in a batch of 8." in found.text


def test_requests_that_waited_and_ran_alone_point_to_their_shapes():
    """P5: variable lengths never share a batch."""
    alone = {"batch_sizes": {1: 400}, "item_compute_s": {1: 0.001}, "batch_mean": 1.0, "queue_mean_s": 0.04}
    cells = [*low_load(), *high_load(0.5, 0.5, 0.5, in_flight_mean=40.0, **alone)]
    found = verdict(experiment(), cells, saturation(1600, 1600))
    assert "Requests waited for 40.0 ms and still ran alone (mean batch 1.0): inputs of different shapes" in found.text


def test_a_gain_of_next_to_nothing_is_none_however_large_its_ratio():
    """2 of 1,900 req/s in time against 12: six times as many, and still nothing."""
    found = verdict(experiment(), [*low_load(), *high_load(0.999, 0.994, 0.994)], saturation(1600, 1600))
    assert found.holds is False
    assert "hardly anything is served within 20 ms" in found.text


def test_an_objective_that_is_met_where_nothing_can_be_compared_is_not_out_of_reach():
    """At light load all is served in time, by too few answers to compare; at the heavy one nothing is."""
    light = [cell(0.1, level, rate=150, latency_ms=1, problems=(limited(),)) for level in (OFF, NOW, LATE)]
    found = verdict(experiment(), [*light, *high_load(1.0, 1.0, 1.0, throughput_rps=1590.0)], saturation(1600, 1600))
    assert found.text.startswith(
        "Batching does not pay here: at 1,900 req/s (120 % of saturation) hardly anything is served within 20 ms"
    )
    assert "out of reach" not in found.text


# --- it can't be told -------------------------------------------------------------------------------------------


def test_no_judge_no_verdict():
    found = verdict(experiment(judge=None), low_load())
    assert found.holds is None
    assert found.text.startswith("Nothing is compared here")


def test_nothing_measured():
    assert verdict(experiment(), []).text == "Nothing was measured yet."


def test_nothing_more_will_be_measured_of_a_run_that_is_over():
    cells = [*low_load(), *(CellResult({LOAD: 1.2, "model.batching": level}, [], []) for level in (OFF, NOW, LATE))]
    found = verdict(experiment(), cells, over=True)
    assert found.holds is None
    assert found.text.startswith("Not decided. At 150 req/s")
    assert "Only 3 of 6 cells are measured." in found.text
    assert "yet" not in found.text and "So far" not in found.text
    nothing = [CellResult(c.factors, [], []) for c in cells]
    assert verdict(experiment(), nothing, over=True).text == "No cell was measured, so nothing is compared."
    only = verdict(experiment(), [cells[0], *nothing[1:]], over=True).text
    assert only == "Not decided: only batching off was measured, and nothing to compare it with."


def test_one_level_has_nothing_to_be_compared_with():
    found = verdict(experiment(), low_load()[:1])
    assert found.holds is None
    assert found.text == (
        "Not decided: only batching off was measured. Add another level of model.batching to compare it with."
    )


def test_a_missing_baseline_is_named():
    found = verdict(experiment(), low_load()[1:])
    assert found.holds is None
    assert "the baseline (batching off) was not measured" in found.text
    assert "batching on, no delay and batching on, 5 ms delay" in found.text


def test_a_cell_where_everything_failed_is_named_with_what_failed():
    """T5: the other comparisons stand."""
    cells = [*low_load(), *high_load(0.62, 0.0, 0.0)]
    cells[5] = cell(1.2, LATE, rate=1900, latency_ms=0.1, refused=1.0)
    found = verdict(experiment(), cells)
    assert found.holds is True
    assert "this load had to be left out: No request succeeded: 9,500 refused" in found.text
    left_out = [e for e in found.effects if e["level"] == LATE and e["at"] == {LOAD: 1.2}]
    assert {e["verdict"] for e in left_out} == {"not comparable"}


def test_a_client_that_was_the_limit_leaves_it_open():
    """T18."""
    cells = [cell(1.2, level, rate=1900, latency_ms=8, late=0.3, problems=(limited(),)) for level in (OFF, NOW, LATE)]
    found = verdict(experiment(), cells)
    assert found.holds is None
    assert found.text.startswith("Not decided. At 1,900 req/s (120 % of saturation): The load generator sent half.")


def test_one_spoilt_repeat_is_left_out_and_named():
    cells = [*low_load(), *high_load(0.62, 0.0, 0.0)]
    spoilt = dataclasses.replace(cells[4].summaries[1], problems=(limited(),))
    cells[4].summaries[1] = spoilt
    found = verdict(experiment(), cells)
    assert found.holds is True
    assert "one or more repeats had to be left out: The load generator sent half." in found.text


@pytest.mark.parametrize("figure", ["cache_hit_fraction", "prompt_cached_fraction"])
def test_caches_that_are_equally_warm_are_a_fair_pair(figure):
    """T28: blocked until cold or both warm."""
    cold, warm = {figure: 0.0}, {figure: 0.8, "problems": (cache_warm(),)}
    mixed = [cell(1.2, OFF, rate=1900, latency_ms=8, **cold), cell(1.2, NOW, rate=1900, latency_ms=8, **warm)]
    both = [cell(1.2, OFF, rate=1900, latency_ms=8, **warm), cell(1.2, NOW, rate=1900, latency_ms=8, **warm)]
    assert "response cache" in verdict(experiment(), mixed).text
    assert {e["verdict"] for e in verdict(experiment(), mixed).effects} == {"not comparable"}
    assert {e["verdict"] for e in verdict(experiment(), both).effects} != {"not comparable"}


def test_an_interval_that_holds_both_says_how_many_repeats_would_tell():
    cells = [*low_load(repeats=1), *high_load(0.50, 0.46, 0.47, repeats=1)]
    found = verdict(experiment(), cells)
    assert found.holds is None
    assert "serves 1.0" in found.text
    assert "the interval holds both a gain and none. " in found.text
    assert "would tell" in found.text or "needed to tell" in found.text
    assert found.text.endswith("One repeat only: take the figures as rough.")


def test_a_quick_run_says_what_a_tail_lacks():
    cells = [*low_load(repeats=1, seconds=2.0), *high_load(0.62, 0.0, 0.0, repeats=1, seconds=2.0)]
    found = verdict(experiment(), cells)
    assert "p99 needs 459 successes on each side, has 300 and 300" in found.text
    assert found.text.endswith("One repeat only: take the figures as rough.")


def test_a_judged_tail_with_too_few_samples_says_how_much_longer():
    judge = Judge(factor="model.batching", primary="latency_p99_s", metrics=("latency_p99_s",), expect="lower")
    cells = [cell(0.1, level, rate=15, latency_ms=5, repeats=1) for level in (OFF, NOW)]
    found = verdict(experiment(judge=judge), cells)
    assert found.holds is None
    assert "p99 needs 459 successes on each side, has 60 and 60. Measure about 8 times as long." in found.text


def test_a_verdict_on_half_a_run_waits_for_the_rest():
    cells = [*low_load(), *(CellResult({LOAD: 1.2, "model.batching": x}, [], []) for x in (OFF, NOW, LATE))]
    found = verdict(experiment(), cells)
    assert found.holds is None
    assert found.text.startswith("Not decided yet. At 150 req/s")
    assert "So far 3 of 6 cells are measured." in found.text


def test_unequal_completed_load_stands_beside_the_headline():
    """T11: half is refused at once. What is served in time counts, and the refusals are named."""
    cells = [
        cell(1.2, OFF, rate=1900, latency_ms=8, late=0.9),
        cell(1.2, NOW, rate=1900, latency_ms=8, refused=0.5),
    ]
    found = verdict(experiment(), cells)
    assert found.holds is True
    assert "; mind the unequal completed load: 0 % of the requests failed against 50 %" in found.text
    assert {e["verdict"] for e in found.effects if e["metric"] == "latency_p50_s"} == {"not comparable"}


# --- other experiments ------------------------------------------------------------------------------------------


def test_another_factor_and_a_latency_as_primary_read_well():
    judge = Judge(
        factor="model.instances", baseline=1, primary="latency_p99_s", metrics=("memory_peak_bytes",), expect="lower"
    )
    design = experiment(
        judge=judge,
        factors={"model.instances": (1, 2)},
        workload=Workload(arrival=ClosedLoop(concurrency=8), duration_s=10),
        reference=None,
    )
    mib = 2**20
    cells = [
        CellResult({"model.instances": n}, made.blocks, made.summaries)
        for n, made in (
            (1, cell(1.0, OFF, rate=200, latency_ms=16, memory_peak_bytes=100.0 * mib)),
            (2, cell(1.0, OFF, rate=200, latency_ms=8, memory_peak_bytes=200.0 * mib)),
        )
    ]
    found = verdict(design, cells)
    assert found.holds is True
    assert found.text.startswith("With 8 in flight the server with 2 instances lowers p99 from 16.")
    assert "0.50×" in found.text
    (memory,) = [e for e in found.effects if e["metric"] == "memory_peak_bytes"]
    assert memory["verdict"] == "higher"
    assert memory["ratio"] == pytest.approx(2)


def test_a_metric_that_no_summary_has_is_refused():
    judge = Judge(factor="model.batching", metrics=("goodputt_rps",))
    with pytest.raises(InputError, match="goodputt_rps"):
        verdict(experiment(judge=judge), low_load())


# --- a whole simulated experiment -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pass_s", "item_s", "holds", "why"),
    [
        (0.0005, 0.0001, True, "One item costs 0.6"),
        (0.0, 0.001, False, "there is nothing to share"),
    ],
    ids=["a pass costs more than an item", "each item costs the same"],
)
def test_a_simulated_batcher_is_judged_by_what_it_is(serve, poisson, server_table, pass_s, item_s, holds, why):
    rng = np.random.default_rng(3)
    design = experiment()
    rate_rps, end_s = 1 / (pass_s + item_s), 3.0
    cells = []
    for load in (0.1, 1.2):
        due = poisson(load * rate_rps, end_s, np.random.default_rng(4))
        for batching in (OFF, NOW, LATE):
            runs = [
                serve(
                    due,
                    rng,
                    pass_s=pass_s,
                    item_s=item_s,
                    end_s=end_s,
                    max_batch=32 if batching else 1,
                    delay_s=(batching or {}).get("max_queue_delay_us", 0) / 1e6,
                )
                for _ in range(2)
            ]
            summaries = [
                summarize(
                    run.requests,
                    window=run.window,
                    planned=len(due),
                    slo=design.slo,
                    server=server_delta(
                        server_table({0: dict.fromkeys(run.counters, 0), 1000 * end_s: run.counters}),
                        "digits",
                        0,
                        run.window.end_ns,
                    ),
                )
                for run in runs
            ]
            factors = {LOAD: load, "model.batching": batching}
            cells.append(CellResult(factors, [(run.requests, run.window) for run in runs], summaries))
    found = verdict(design, cells, saturation(rate_rps, 32 / (pass_s + 32 * item_s)))
    assert found.holds is holds
    assert why in found.text
    assert "a 5 ms delay adds 5." in found.text or "a 5 ms delay adds 4.9" in found.text


def limited():
    from lab.measure.problems import Problem

    return Problem("client_limited", "The load generator sent half.", "Give it more workers.", True)


def cache_warm():
    from lab.measure.problems import Problem

    return Problem("cache_warm", "80 % of the answers came from the response cache.", "Switch it off.", True)


def test_a_model_is_told_with_the_one_it_is_compared_with():
    batching = {"max_batch_size": 32}
    levels = [{"name": "trees", "batching": batching}, {"name": "network", "batching": batching}]
    levels.append({**levels[1], "device": "gpu"})
    judge = Judge(factor="model", baseline=levels[0], primary="throughput_rps", metrics=("throughput_rps",))
    say = Telling(experiment(factors={"model": tuple(levels)}, judge=judge), judge, ())
    effect = Effect("throughput_rps", 1000.0, 1510.0, 1.51, 1.48, 1.55, 510.0, 480.0, 550.0, "higher", "")
    said = f"{say.subject(levels[1])} {say.does(effect)}"
    assert said == "network serves 1.51× as many requests as trees (1.48 to 1.55×)"
    assert say.subject(levels[2]) == "network, gpu"
    assert say.baseline == "trees"
