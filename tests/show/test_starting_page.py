"""The page Cold start & serverless: both sections with a finished run, its choices, and what it starts."""

import json
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.measure.records import OK
from lab.run import billing, catalogue, results
from lab.run.plan import cell_blocks, with_rate
from lab.show.charts import cold as cold_charts
from lab.show.charts import serverless as serverless_charts
from lab.show.drills import starts
from lab.show.drills.drill import pose
from lab.show.drills.source import Source
from lab.show.ui import runs
from tests.show.pages import charts, open_page, words
from tests.show.synthetic import MIB, SECOND, Author

pytestmark = pytest.mark.pages

PROJECT = Path(__file__).parents[2]
COLD, SCALED = "20261130-030101-cold-start-done", "20261130-030201-serverless-done"
PLAIN = {"process": 0.1, "import_torch": 1.5, "import_model": 0.6, "read": 0.3, "convert": 0.8, "compile": 24.0,
         "runtime": 0.2, "warm_up": 0.1, "first_answer": 0.2}  # fmt: skip
KEPT = {**PLAIN, "compile": 0.9}
ALL = {"process": 0.02, "import_torch": 0.0, "import_model": 0.0, "read": 0.01, "compile": 0.3, "runtime": 0.15,
       "warm_up": 0.05, "first_answer": 0.1}  # fmt: skip


def cold_run(run_id: str = COLD):
    """Plain 27.8 s, with kept code 4.7 s, with all remedies 0.63 s; twice each."""
    experiment = catalogue.experiment("cold_start").when_quick()
    author = Author(experiment, run_id, seconds=120)
    ways = [PLAIN, KEPT, ALL]
    for cell in range(3):
        author.folder.event(
            "cold_cell", cell=cell, weight_bytes=260 * MIB, parent_bytes=310 * MIB if cell == 2 else None,
            kept_bytes={"compile_cache": 3 * MIB} if cell else {},
        )  # fmt: skip
    for block in cell_blocks(experiment):
        asked = now = author.now_ns
        stages = []
        for name, seconds in ways[block.cell].items():
            stages.append({"name": name, "begin_ns": now, "end_ns": now + int(seconds * SECOND)})
            now = stages[-1]["end_ns"]
        author.folder.event(
            "cold_start", cell=block.cell, repeat=block.repeat, asked_ns=asked, answered_ns=now, stages=stages,
            steady_s=[0.08, 0.08], memory_bytes=420 * MIB, resident_fraction=0.0,
        )  # fmt: skip
        author.now_ns = now + SECOND // 10
    return author.end("done")


def scaled_run(run_id: str = SCALED):
    """Three rates; at the slowest each request waits a second for a worker, at the fastest the first one does."""
    experiment = catalogue.experiment("serverless").when_quick()
    author = Author(experiment, run_id, seconds=200)
    folder = author.folder
    folder.event("serverless", enforced_by=None, kept_bytes={}, refusal=None)
    for index, planned in enumerate(cell_blocks(experiment)):
        block, start_ns = with_rate(planned, None), author.now_ns
        end_ns, rate = start_ns + 30 * SECOND, block.workload.arrival.rate_rps
        folder.event(
            "block_start", block=index, role="cell", cell=block.cell, repeat=0, planned=None,
            workload=block.workload.model_dump(mode="json"), model=block.model.model_dump(mode="json"),
            start_ns=start_ns, measured_from_ns=start_ns, end_ns=end_ns, t_ns=start_ns,
        )  # fmt: skip
        count = int(30 * rate)
        due = start_ns + (np.arange(count) / rate * SECOND).astype(np.int64)
        is_cold = np.arange(count) < (count if rate < 0.3 else 1)
        took = np.where(is_cold, 1.6, 0.6) * SECOND
        author.write(
            {
                "block": [index] * count, "request": np.arange(count), "due_ns": due, "sent_ns": due,
                "done_ns": due + took.astype(np.int64), "outcome": np.full(count, OK, np.uint8),
            }
        )  # fmt: skip
        for number in np.flatnonzero(is_cold).tolist():
            at = int(due[number]) + SECOND
            told = {"worker": number + 1, "t_ns": at}
            folder.event("worker_ready", seconds=1.0, stages=[["process", 0.1], ["compile", 0.9]], pid=1, **told)
            folder.event("waited", block=index, request=number, cold=True, waited_ns=SECOND, refused=None, t_ns=at)
            told = {"worker": number + 1, "t_ns": at + 3 * SECOND, "why": "idle", "up_s": 4.0, "answered": 1}
            folder.event("worker_ended", asked_ns=int(due[number]), **told)
        folder.event("block_end", block=index, planned=None, end_ns=end_ns, t_ns=end_ns)
        author.now_ns = end_ns + SECOND // 5
    return author.end("done")


def test_a_cold_start_is_told_with_its_stages_and_the_price_of_remedies(empty_home):
    cold_run()
    app = open_page("cold_start", run=COLD)
    assert not app.exception
    said = words(app)
    assert "27.8 s to the first answer (compiles kernels 86.3 %" in said
    assert "All remedies: 630 ms" in said and "310 MiB of memory" in said
    assert "The hypothesis holds" in said and "stay in the page cache" in said
    assert len(app.metric) == 4
    drawn = charts(app)
    assert len(drawn) == 2 and all(chart["alt"] for chart in drawn)


def test_a_bet_on_the_remedies_is_kept_with_the_start_and_scored(empty_home, monkeypatch):
    started = []
    monkeypatch.setattr(runs, "start", lambda *given, **named: started.append(named))
    app = open_page("cold_start", n_bet="fewer", n_size="10×")
    app.button(key="run_starts").click().run()
    assert str(started[0]["bet"]) == "fewer:10x"
    cold_run()
    app = open_page("cold_start", run=COLD, n_bet="fewer", n_size="10×")
    said = words(app)
    assert "You bet on fewer, 10×; measured with all remedies" in said
    assert "does not count" in said and "**Try next**" in said  # placed after the run


def test_the_other_section_is_about_other_runs(empty_home):
    scaled_run()
    app = open_page("cold_start", run=SCALED)
    assert not app.exception
    said = words(app)
    assert "A cold start takes 1.00 s, a warm answer 600 ms" in said
    assert "Not verified against the live service" in said and "modelled" in said.lower()
    assert len(charts(app)) == 3 and len(app.metric) == 4
    (even,) = (card for card in app.metric if card.label == "Break-even")
    assert " to " in even.value or "none" in even.value  # never one figure where blocks say otherwise


def test_the_runners_form_shows_what_is_declared_and_changes_nothing_by_itself(empty_home, monkeypatch):
    started = []
    monkeypatch.setattr(runs, "start", lambda *given, **named: started.append(given))
    app = open_page("cold_start", n_part="Scale to zero")
    declared = catalogue.experiment("serverless")
    for said in (declared.when_quick().serverless.idle_s, declared.serverless.idle_s):
        assert f"{said:g}" in app.number_input(key="n_idle").placeholder
    assert app.number_input(key="n_idle").value is None and app.number_input(key="n_memory").value is None
    app.button(key="run_starts").click().run()
    app.number_input(key="n_memory").set_value(300).run()
    app.button(key="run_starts").click().run()
    assert started == [("serverless", []), ("serverless", [f"serverless.memory_limit_bytes={300 * MIB}"])]


@pytest.mark.parametrize("arguments", [["compare", COLD, SCALED], ["plan", COLD, "--qps", "1"]])
def test_what_needs_a_load_says_that_starts_have_none(arguments, empty_home, capsys):
    cold_run()
    scaled_run()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "it measured starts, and no load" in said and said.count("\n") == 1


def test_without_a_run_it_offers_one_and_starts_what_is_chosen(empty_home, monkeypatch):
    started = []
    monkeypatch.setattr(runs, "start", lambda *given, **named: started.append((given, named)))
    app = open_page("cold_start")
    assert "Run it here for figures of your own" in words(app)  # a recording stands in
    app.button(key="run_starts").click().run()
    (given, named) = started[0]
    assert given == ("cold_start", []) and named["quick"] is True and named["page"] == "pages/cold_start.py"
    app.button_group(key="n_models").set_value(["llm, int4", "digits, bf16"])
    app.button_group(key="n_ways").set_value(["all remedies"])
    app.button_group(key="n_own").set_value(["mapped weights", "kept warm"])
    app.run()
    app.button(key="run_starts").click().run()
    models, ways = (json.loads(setting.partition("=")[2]) for setting in started[1][0][1])
    assert [(model["name"], model["precision"]) for model in models] == [("llm", "int4"), ("digits", "bf16")]
    own = {"mapped_weights": True, "keep_warm": True}
    assert ways == [{}, {"compile_cache": True, "mapped_weights": True, "zygote": True}, own]


@pytest.fixture(scope="module")
def documents(tmp_path_factory, lab_home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(tmp_path_factory.mktemp("starts")))
        made = {folder.run_id: folder for folder in (cold_run(), scaled_run())}
        return {run: (results.document(f), f.document["experiment"]) for run, f in made.items()}


def test_the_waterfall_has_a_panel_a_start_and_a_row_a_stage(documents):
    found = documents[COLD][0]["cold"]
    chart = cold_charts.waterfall(*cold_charts.pair(found, "llm, bf16"))
    assert [trace["name"] for trace in chart.figure["data"]] == ["plain start", "all remedies"]
    assert chart.alt.startswith("plain start 27.8 s, of which compiles kernels 86.3 %; all remedies 630 ms")
    shares = [s for start, s in zip(chart.table["start"], chart.table["share"], strict=True) if start == "plain start"]
    assert sum(shares) == pytest.approx(1.0)
    assert cold_charts.waterfall(None, None).notes == ("no start was measured",)


def test_ways_are_against_plain_and_say_what_they_hold(documents):
    document = documents[COLD][0]
    chart = cold_charts.ways(document["cold"], "llm, bf16")
    assert chart.table["of plain"][2] == pytest.approx(0.63 / 27.8, rel=1e-3)
    assert chart.table["held while nothing runs"] == [
        "nothing",
        "3.0 MiB of disk",
        "310 MiB of memory, 3.0 MiB of disk",
    ]


def test_measured_shares_are_marks_and_modelled_ones_a_line(documents):
    found = documents[SCALED][0]["serverless"]
    line, marks = serverless_charts.cold_share(found).figure["data"]
    assert (line["name"], line["mode"], marks["name"], marks["mode"]) == ("modelled", "lines", "measured", "markers")
    cost = serverless_charts.cost(found, 0.36, billing.find("modal-function"), 0.2)
    assert "break even at" in cost.alt and len(cost.figure["data"]) == 2
    assert serverless_charts.tail(found).alt.startswith("A cold start takes 1.00 s")


def test_drills_come_from_these_runs_with_right_answers(documents):
    sources = [Source(run, document, declared) for run, (document, declared) in documents.items()]
    posed = {drill.id: pose(drill, sources) for drill in starts.DRILLS}
    assert all(posed.values())
    assert posed["cold_remedies"].truth == pytest.approx(100 * 0.63 / 27.8, rel=1e-3)
    assert posed["cold_share"].truth == pytest.approx(100 * np.exp(-0.5))
    for one in posed.values():
        assert "{" not in one.ask + one.formula + one.why and "n/a" not in one.ask + one.formula
        assert one.drill.chart is None or one.drill.chart(one.source).alt
