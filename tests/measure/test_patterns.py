"""Ways of serving held to each other's promises, from records with known answers."""

import dataclasses

import pytest

from lab.measure import patterns
from lab.measure.judgement import CellResult, Comparison
from lab.measure.patterns import Served
from lab.measure.records import Window
from lab.measure.summary import summarize
from lab.measure.telling import Telling
from lab.run.catalogue import experiment
from lab.spec import ClosedLoop, Poisson, Slo, Workload

WHOLE = Slo(latency_s=1.0, percentile=0.9)
MORNING = Slo(latency_s=7200.0, percentile=0.9)
WINDOW = Window(0, 0, 10_000_000_000)


def way(requests_of, pattern, slo, rows, arrival=None, stream=False):
    """Two repeats of the same records: (due ms, done ms) each."""
    workload = Workload(arrival=arrival or Poisson(rate_rps=1), duration_s=10, pattern=pattern, slo=slo, stream=stream)
    requests = requests_of([(due, due, done, "ok") for due, done in rows])
    summary = summarize(requests, window=WINDOW, planned=None, slo=slo)
    level = {"pattern": pattern}
    return Served(workload, level, [(requests, WINDOW)] * 2, [summary] * 2)


@pytest.fixture
def found(requests_of):
    """Online: 10 answers, each after 500 ms. Batch: 40 answers, of which 10 came within a second."""
    online = way(requests_of, "online", WHOLE, [(1000 * i, 1000 * i + 500) for i in range(10)])
    rows = [(0, 900 if i < 10 else 5000 + i) for i in range(40)]
    batch = way(requests_of, "batch", MORNING, rows, ClosedLoop(concurrency=40))
    return patterns.patterns([online, batch], "workload")


def test_every_way_is_held_to_every_promise(found):
    assert [way["label"] for way in found["ways"]] == ["online", "batch"]
    whole, morning = found["targets"]
    assert (whole["promise"], morning["promise"]) == ("1 s", "a deadline in 2 h")
    assert [(one["share"], one["good_rps"]) for one in whole["ways"]] == [(1.0, 1.0), (0.25, 1.0)]
    assert [(one["share"], one["good_rps"]) for one in morning["ways"]] == [(1.0, 1.0), (1.0, 4.0)]


def test_who_suits_is_the_cheapest_that_keeps_it(found):
    whole, morning = found["targets"]
    assert whole["suits"] == "online"  # the batch job's good items cost as much, and too few of them are good
    assert [one["cost_ratio"] for one in morning["ways"]] == [4.0, 1.0]
    assert morning["suits"] == "batch" and morning["rows_by_then"] == 4.0 * 7200
    assert [way["machine_s_per_item"] for way in found["ways"]] == [1.0, 0.25]
    assert [one["machine_s_per_good"] for one in whole["ways"]] == [1.0, 1.0]
    assert [one["machine_s_per_good"] for one in morning["ways"]] == [1.0, 0.25]


def test_in_words(found):
    said = " ".join(patterns.sentences(found))
    # Wilson: all of 20 leave 20 / (20 + 1.96²).
    share = "100 % within it (83.9 to 100 % by 20 requests, too few to be sure of 90 %)"
    assert f"For 1 s, online: {share}, and no other way makes a good item cheaper." in said
    rows = "28,800 rows by then, extrapolated from 20 s measured"
    assert f"For a deadline in 2 h, batch: {rows}; with online a row costs 4.0× as much." in said
    rows = patterns.table(found)
    assert len(rows) == 3 and rows[1][-1] == "100 %, 4.0×"


def test_a_promise_that_nobody_keeps(requests_of):
    slow = way(requests_of, "online", WHOLE, [(0, 3000 + i) for i in range(20)])
    found = patterns.patterns([slow], "workload")
    assert found["targets"][0]["suits"] is None
    assert patterns.sentences(found) == ["None of these ways keeps 1 s for 90 %."]


def test_ways_without_a_name_are_no_patterns(requests_of):
    plain = way(requests_of, None, None, [(0, 100)])
    assert patterns.patterns([plain], "workload") is None


def test_levels_with_loads_of_their_own_share_no_rate():
    """0.92 req/s of a streaming reader and 8.17 of a batch are not both "At 4.54 req/s"."""
    chosen = experiment("patterns")
    base = CellResult({"workload": {}}, [], [])
    nothing = Comparison({}, {}, base, base, {}, "open", (), 1)
    say = Telling(chosen, chosen.judge, ())
    assert say.where(nothing) == "Each under a load of its own,"
    batching = experiment("batching")
    light = dataclasses.replace(nothing, at={"workload.arrival.rate_rps": 150})
    assert Telling(batching, batching.judge, ()).where(light).startswith("At ")
