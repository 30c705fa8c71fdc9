"""Hits, misses, swaps and pairs from records whose truth is written down; and the sentences about them."""

import numpy as np
import pyarrow as pa
import pytest

from lab.measure import fleet_words
from lab.measure.fleet import fit_error, fleet, joined
from lab.measure.records import OK, REFUSED, REQUESTS, WAITS

MS = 1_000_000
S = 1_000_000_000
MIB = 2**20


def requests(rows):
    """(block, request, due_ns, done_ns, outcome)."""
    filler = {f.name: pa.nulls(len(rows), f.type) for f in REQUESTS}
    block, request, due, done, outcome = zip(*rows, strict=True) if rows else ((),) * 5
    columns = {"block": block, "request": request, "due_ns": due, "sent_ns": due, "done_ns": done, "outcome": outcome}
    return pa.table({**filler, **{k: pa.array(v, REQUESTS.field(k).type) for k, v in columns.items()}}, schema=REQUESTS)


def waits(rows):
    """(t_ns, model, request, waited_ns, refused)."""
    columns = zip(*rows, strict=True) if rows else ((),) * 5
    return pa.table({f.name: pa.array(c, f.type) for f, c in zip(WAITS, columns, strict=True)}, schema=WAITS)


def block(number, start_s, models=2, kind="block_start", **more):
    at = int(start_s * S)
    times = {"start_ns": at, "measured_from_ns": at + S, "end_ns": at + 11 * S}
    return {"kind": kind, "t_ns": at, "block": number, "workload": {"models": models}, **times, **more}


def a_block(number, start_s, hits, misses, hit_ms=2, miss_ms=2000):
    """Records of a block: that many hits and misses, due 10 ms apart in its window."""
    at = int(start_s * S) + S
    asked, noted = [], []
    for k in range(hits + misses):
        due, miss = at + 10 * MS * k, k < misses
        asked.append((number, k, due, due + (miss_ms if miss else hit_ms) * MS, OK))
        noted.append((due + MS // 2, "a_1", k, (miss_ms - 5) * MS if miss else 0, None))
    return asked, noted


def swap(kind, at_s, seconds, model="a_1", **more):
    return {"kind": kind, "t_ns": int(at_s * S), "model": model, "seconds": seconds, **more}


def a_run():
    """Two models that fit: 1,000 hits. Three that do not: 90 hits, 10 misses, three swaps of 0.5 + 1.2 s."""
    one, one_noted = a_block(0, 100, hits=1000, misses=0)
    two, two_noted = a_block(1, 200, hits=90, misses=10)
    events = [
        {"kind": "fleet", "t_ns": 1, "budget_bytes": 200 * MIB, "stated": False, "filled": 3},
        block(0, 100, models=2),
        block(1, 200, models=3),
        *(swap("model_unloaded", 203 + 2 * k, 1.2, why="evicted") for k in range(3)),
        *(swap("model_loaded", 203.5 + 2 * k, 0.5) for k in range(3)),
        swap("model_loaded", 200.5, 9.0),  # before the window
    ]
    return events, requests(one + two), waits(one_noted + two_noted)


def test_hits_and_misses_are_told_apart_and_timed_by_the_client():
    first, second = fleet(*a_run())["cells"]
    assert (first["models"], first["hit_fraction"], first["hit_n"], first["miss_n"]) == (2, 1.0, 1000, 0)
    assert first["throughput_rps"] == pytest.approx(100)  # 1,000 in 10 s
    assert first["hit_p50_s"] == first["hit_p99_s"] == pytest.approx(0.002)
    assert second["hit_fraction"] == pytest.approx(0.9)
    assert second["miss_p50_s"] == pytest.approx(2.0)
    assert (second["hit_p95_s"], second["hit_p99_s"], second["miss_p95_s"]) == (pytest.approx(0.002), None, None)


def test_a_tail_of_misses_is_of_all_repeats_together_or_the_largest_seen():
    """Two blocks of 300 misses each, 1.2 to 3.6 s: p99 of 600, which neither has enough for."""
    events, asked, noted = [], [], []
    for number in (0, 1):
        rows, seen = a_block(number, 100 + 100 * number, hits=10, misses=300)
        asked += [(b, r, due, due + (1200 + 4 * r + 1200 * number) * MS if r < 300 else done, outcome)
                  for b, r, due, done, outcome in rows]  # fmt: skip
        noted += seen
        events.append(block(number, 100 + 100 * number, models=5))
    found = fleet(events, requests(asked), waits(noted))
    assert [cell["miss_p99_s"] for cell in found["cells"]] == [None, None]
    (level,) = found["waited"]
    latencies = [1.2 + 0.004 * k + 1.2 * number for number in (0, 1) for k in range(300)]
    assert (level["models"], level["hit_n"], level["miss_n"]) == (5, 20, 600)
    assert level["miss_p99_s"] == pytest.approx(np.percentile(latencies, 99))
    assert level["miss_max_s"] == pytest.approx(1.2 + 0.004 * 299 + 1.2)
    assert fleet_words.tail(found) == "p99 of misses is 3.57 s with 5 models (n = 600, all repeats together)."
    few = fleet(*a_run())
    assert [level["miss_p99_s"] for level in few["waited"]] == [None, None]
    assert fleet_words.tail(few) == (
        "The slowest miss took 2.00 s, with 3 models; p99 of misses needs 459 of them, and the most were 10."
    )


def test_models_that_came_from_host_memory_are_told_apart():
    events, asked, noted = a_run()
    for number, event in enumerate(e for e in events if e["kind"] == "model_loaded"):
        event["source"] = "host" if number < 2 else "disk"
        event["seconds"] = 0.1 if number < 2 else 0.9
    found = fleet(events, asked, noted)
    second = found["cells"][1]
    assert (second["swaps"], second["from_host"], second["from_host_median_s"]) == (3, 2, 0.1)
    assert "A swap takes 100 ms to load (2 of 3 from host memory, in 100 ms) and 1.20 s" in fleet_words.cliff(found)


def test_swaps_count_inside_the_window_only():
    second = fleet(*a_run())["cells"][1]
    assert (second["swaps"], second["load_median_s"], second["unload_median_s"]) == (3, 0.5, 1.2)
    assert second["swapping_fraction"] == pytest.approx(3 * 1.7 / 10)


def test_a_request_is_joined_by_block_and_number():
    """Both blocks have a request 0; the second one's waited."""
    events, asked, noted = a_run()
    starts = [e for e in events if e["kind"] == "block_start"]
    assert joined(starts[0], starts, asked, noted).waited_ns[0] == 0
    assert joined(starts[1], starts, asked, noted).waited_ns[0] == 1995 * MS


def test_refusals_are_counted_by_reason():
    events = [block(0, 100)]
    asked = requests([(0, 0, 102 * S, 103 * S, REFUSED), (0, 1, 102 * S, 103 * S, OK)])
    noted = waits([(102 * S, "a_1", 0, 5, "too_late"), (102 * S, "a_1", 1, 0, None)])
    (cell,) = fleet(events, asked, noted)["cells"]
    assert cell["refused"] == {"too_late": 1}
    assert (cell["hit_n"], cell["hit_p50_s"]) == (1, None)


def test_a_run_that_got_nowhere_says_nothing():
    found = fleet([], requests([]), waits([]))
    assert (found["cells"], found["pairs"], found["filled"], found["budget_bytes"]) == ([], [], [], None)
    assert fleet_words.sentences(found) == []
    assert fleet_words.table(found) == []


def filled(model, total, alone, predicted=None, load_s=1.0):
    return {
        "kind": "filled",
        "t_ns": 1,
        "model": model,
        "load_s": load_s,
        "first_answer_s": 0.02,
        "alone_bytes": alone * MIB,
        "own_bytes": alone * MIB,
        "total_bytes": total * MIB,
        "pss_bytes": total * MIB,
        "planned_bytes": None if predicted is None else predicted * MIB,
    }


def test_the_fit_is_judged_by_the_last_model():
    assert fit_error([filled("a", 100, 100)]) is None
    assert fit_error([filled("a", 100, 100), filled("b", 160, 100, 168)]) == pytest.approx(0.05)


def test_the_cliff_is_named_with_its_cause():
    found = fleet(*a_run())
    said = fleet_words.cliff(found)
    assert said.startswith(
        "The cliff lies between 2 and 3 models: with 2, every request finds its model loaded, and 100 req/s are "
        "served; with 3, for which a budget of 200 MiB has no room, 10 % of the requests wait for their model to be "
        "loaded, 2.00 s at the median, and it is 10.0 req/s, about 10× less (n = 1,000 against 100)."
    )
    assert "A swap takes 500 ms to load and 1.20 s to unload the one that makes room; swaps run one after" in said
    assert "took 51 % of the time" in said


def test_without_a_miss_there_is_no_cliff_to_tell():
    asked, noted = a_block(0, 100, hits=1000, misses=0)
    only = fleet(a_run()[0][:2], requests(asked), waits(noted))
    assert "All 2 models fit into a budget of 200 MiB" in fleet_words.cliff(only)


def test_the_fit_sentence_counts_shared_pages_once():
    found = fleet([filled("a", 100, 100), filled("b", 160, 100, 158, load_s=3.0)], requests([]), waits([]))
    assert fleet_words.fit(found) == (
        "2 models take 160 MiB together, not the 200 MiB that they show one by one: pages of the same libraries are "
        "there once. Predicted before loading: 1.25 % less. Loading took 2.00 s at the median (3.00 s for b), the "
        "first answer 20.0 ms."
    )
    grown = filled("b", 160, 100, 158) | {"host_bytes": 165 * MIB}
    said = fleet_words.fit(fleet([filled("a", 100, 100), grown], requests([]), waits([])))
    assert "The machine's memory in use, of all programs, grew by 165 MiB meanwhile." in said


def test_a_drop_is_as_exact_as_the_fewer_answers_are():
    def cell(models, rps, hits, misses):
        figures = {"miss_p50_s": None, "hit_p50_s": None, "load_median_s": None, "unload_median_s": None}
        counts = {"hit_n": hits, "miss_n": misses, "hit_fraction": hits / (hits + misses)}
        return {"models": models, "throughput_rps": rps, "swaps": misses, **counts, **figures}

    found = {
        "budget_bytes": 200 * MIB,
        "cells": [cell(4, 90.0, 2700, 0), cell(4, 91.2, 2736, 0), cell(5, 0.233, 2, 5), cell(5, 0.433, 3, 10)],
    }
    assert "about 200× less (n = 2,700 and 2,736 against 7 and 13)" in fleet_words.cliff(found)
    effect = {"factor": "workload.models", "metric": "throughput_rps", "level": 5, "ci_low": 0.002, "ci_high": 0.01}
    found["throughput"] = fleet_words.intervals(4, [effect])
    assert "about 200× less (100 to 500×; n = 2,700" in fleet_words.cliff(found)
    found["throughput"] = fleet_words.intervals(4, [{**effect, "ci_low": 0.00001}])
    assert "about 200× less (at least 100×; n = 2,700" in fleet_words.cliff(found)


def pair(disturber, p99, n=500, p50=0.001):
    return {"victim": "a", "disturber": disturber, "n": n, "p50_s": p50, "p95_s": None, "p99_s": p99}


def test_the_worst_pair_is_named_and_small_ones_are_not():
    assert fleet_words.interference({"pairs": [pair(None, 0.004), pair("b", 0.0044)]}) == (
        "No model slows another by more than 25 % at p99, in 1 pair (n ≥ 500)."
    )
    assert fleet_words.interference({"pairs": [pair(None, 0.004), pair("b", 0.04), pair("c", 0.01)]}) == (
        "Who slows whom: b at work raises p99 of a from 4.0 ms to 40.0 ms (10×, n = 500 and 500), the worst of 2 pairs."
    )


def test_all_pairs_are_told_by_the_percentile_that_each_has_enough_answers_for():
    pairs = [pair(None, 0.004), pair("b", 0.04, p50=0.003), pair("c", None, n=20, p50=0.0015)]
    assert fleet_words.statistic(pairs) == "p50"
    assert "raises p50 of a from 1.0 ms to 3.0 ms (3.0×" in fleet_words.interference({"pairs": pairs})


def test_noise_as_large_as_the_effect_is_said():
    said = fleet_words.interference({"pairs": [pair(None, 0.004), pair("b", 0.006), pair("a_2", 0.002)]})
    assert said.endswith(
        "But p99 of a beside a_2 is 0.50× of alone, which only chance can do: noise is as large as the effect."
    )


def test_the_hypothesis_holds_where_every_repeat_falls():
    def cell(models, rps, misses):
        return {"models": models, "throughput_rps": rps, "miss_n": misses, "swaps": misses}

    fits = [cell(2, 100.0, 0), cell(4, 110.0, 0)]
    assert fleet_words.holds({"cells": [*fits, cell(5, 3.0, 9), cell(5, 50.0, 9)]}) is True
    assert fleet_words.holds({"cells": [*fits, cell(5, 3.0, 9), cell(5, 60.0, 9)]}) is False
    assert fleet_words.holds({"cells": fits}) is None
    assert fleet_words.holds({"cells": [cell(5, 3.0, 9)]}) is None
