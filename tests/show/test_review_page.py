"""The page Design review, recorded runs on pages, and the decision record."""

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from lab.__main__ import main
from lab.measure.redteam import questions
from lab.measure.review import Requirements, decide, rows
from lab.run import cassette, results, waivers
from lab.run.folder import RunFolder
from lab.run.sides import Name
from lab.show.charts.review import used
from lab.show.report import report
from lab.show.report_html import to_html
from lab.show.report_json import to_json
from lab.show.report_markdown import to_markdown
from lab.show.review import record
from tests.show.conftest import DONE, LLM_LOAD, QUANTIZATION, STOPPED
from tests.show.pages import charts, open_page, words

pytestmark = pytest.mark.pages


@pytest.mark.parametrize("run", [STOPPED, LLM_LOAD, QUANTIZATION])
def test_every_kind_of_run_can_be_reviewed(run: str, full_home: Path) -> None:
    app = open_page("review", run=run, v_rate="100", v_latency="50")
    assert not app.exception and not app.error
    assert len(app.metric) == 4 and len(charts(app)) <= 1


def test_requirements_are_in_the_link_and_nothing_asked_is_not_ready(full_home: Path) -> None:
    app = open_page("review", run=DONE)
    assert "Not ready: nothing is asked of it yet." in words(app) and charts(app) == []
    app = open_page("review", run=DONE, v_rate="1", v_memory="10000", v_latency="NaN")
    assert not app.exception
    assert app.metric[0].value == "2 of 2"
    assert "open" in words(app).lower() and "Not ready" in words(app)  # a sceptic still asks


def test_what_the_verdict_begins_with_is_reviewed_until_another_is_chosen(full_home: Path) -> None:
    app = open_page("batching", run=DONE)
    told = [app.segmented_control(key=key).value for key in ("b_level", "b_load")]
    app = open_page("review", run=DONE)
    assert [app.selectbox(key=key).value for key in ("v_level", "v_load")] == told
    app = open_page("review", run=DONE, v_level="batching off")
    assert [app.selectbox(key=key).value for key in ("v_level", "v_load")] == ["batching off", told[1]]


def test_a_waiver_needs_a_name_and_a_reason(full_home: Path) -> None:
    app = open_page("review", run=DONE, v_rate="1")
    before = int(app.metric[2].value)
    app.text_input(key="v_who_seed").set_value("Ann")
    submit(app, "seed").click().run()
    assert int(app.metric[2].value) == before
    assert app.error[0].value == (
        "waiver 'seed' has no reason; allowed: a name and a reason, up to 500 characters each"
    )
    assert waivers.kept(RunFolder.open(DONE)) == {}


def test_a_waiver_stays_with_the_run_and_every_form_of_it_says_so(
    full_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = open_page("review", run=DONE, v_rate="1")
    before = int(app.metric[2].value)
    app.text_input(key="v_who_seed").set_value("Ann <b>")
    app.text_input(key="v_why_seed").set_value("one draw will do")
    submit(app, "seed").click().run()
    assert int(app.metric[2].value) == before - 1 and app.metric[3].value == "1"
    another = open_page("review", run=DONE, v_rate="1")  # another browser
    assert another.metric[3].value == "1" and "one draw will do" in words(another)
    assert "one draw will do" in to_html(report([Name(DONE)])) and "<b>, 2" not in to_html(report([Name(DONE)]))
    for command in (["show", DONE], ["review", DONE]):
        assert main(command) == 0
        assert "one draw will do" in capsys.readouterr().out
    another.button(key="v_back_seed").click().run()
    assert another.metric[3].value == "0"
    lines = (RunFolder.open(DONE).path / waivers.FILE).read_text().splitlines()
    assert [json.loads(line)["why"] for line in lines] == ["one draw will do", ""]  # what was said is not unsaid


def submit(app: AppTest, code: str) -> Any:
    """The button of a question's form."""
    return next(b for b in app.button if b.form_id == f"v_form_{code}")


def test_the_record_says_decision_evidence_waivers_and_hashes(full_home: Path) -> None:
    document = results.document(RunFolder.open(DONE))
    cell = next(c for c in document["cells"] if c["role"] == "cell")
    found = rows(Requirements(rate_rps=1.0, latency_s=5.0), cell["summary"])
    asked = questions(document, RunFolder.open(DONE).document["experiment"])
    given = {q.code: "Ann <b>: it will do" for q in asked if q.status == "open"}
    decision = decide(found, [])
    made = record("Digits at 1 req/s", "batching off", decision, found, [Name(DONE)], waivers=given)
    assert [s.title for s in made.sections[:2]] == ["Decision", "Requirements and evidence"]
    assert made.open_questions == 0
    html, text = to_html(made), to_markdown(made)
    for said in (decision.text, "batching off", "Traffic"):
        assert said in html and said in text
    assert "Ann &lt;b&gt;: it will do" in html and "<b>: it" not in html
    assert "SHA-256" in html


def test_the_record_as_json_holds_what_the_html_holds(full_home: Path) -> None:
    made = record("Digits", "batching off", decide([], []), [], [Name(DONE)])
    read = json.loads(to_json(made))
    assert read["verdict"] == made.verdict and read["runs"] == [DONE]
    assert [section["title"] for section in read["sections"]] == [section.title for section in made.sections]
    blocks = [block for section in read["sections"] for block in section["blocks"]]
    hashes = next(block["table"] for block in blocks if "SHA-256" in block.get("table", {}))
    assert all(len(digest) == 64 for digest in hashes["SHA-256"])
    assert sum("chart" in block for block in blocks) == to_html(made).count("<figure>")


def test_it_is_presented_slide_by_slide_with_the_same_words(full_home: Path) -> None:
    app = open_page("review", run=DONE, v_rate="1", v_present="true")
    assert not app.exception and not app.error
    assert app.header[0].value == "The decision" and len(app.metric) == 4
    assert app.button(key="v_back").disabled
    app.button(key="v_next").click().run()
    assert app.header[0].value == "What is required, and the evidence" and len(charts(app)) == 1
    assert app.number_input(key="v_rate").value == 1.0  # what is asked stays at hand
    for slide, title in (("99", "Where this is from"), ("x", "The decision")):
        app = open_page("review", run=DONE, v_rate="1", v_present="true", v_slide=slide)
        assert not app.exception and app.header[0].value == title


def test_the_chart_of_no_requirement_and_of_unmeasured_ones_says_so() -> None:
    """T34: zero points, and points without a figure."""
    assert "nothing that is asked was measured" in used([]).alt
    missing = rows(Requirements(latency_s=1.0), {"notes": {}})
    assert used(missing).table["status"] == ["not measured"]


# --- recorded runs on pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "experiment", "button"),
    [
        ("kv_cache", "kv_cache", "run_ab"),
        ("memory", "multi_model", "run_ab"),
        ("patterns", "patterns", "run_ab"),
        ("cold_start", "cold_start", "run_starts"),
        ("rollout", "canary", "o_rehearse"),
        ("sweep", "sweep", "p_go_search"),
    ],
)
def test_where_nothing_has_run_a_recorded_run_stands_in_and_says_so(
    page: str, experiment: str, button: str, empty_home: Path
) -> None:
    app = open_page(page)
    assert not app.exception and not app.error
    manifest = cassette.of_experiment(experiment)
    assert manifest is not None
    assert manifest.machine in app.info[0].value and manifest.commit in app.info[0].value
    headings = [m.value for m in app.markdown if m.value.startswith("##### ") and "recorded" in m.value]
    marked = [data for data in charts(app) if data["alt"].startswith("Recorded on another machine.")]
    assert marked and len(headings) == len(marked)
    assert len(charts(app)) - len(marked) <= (page == "memory")  # the form's own plan is of no run
    assert "Run it here for figures of your own" in words(app)
    assert not app.button(key=button).disabled  # it still can be run


def test_a_traced_recording_shows_whom_the_slow_ones_waited_for(empty_home: Path) -> None:
    app = open_page("tail")
    assert not app.exception and not app.error
    assert "slowest requests spent most of their time in" in words(app)
    drawn = charts(app)
    assert len(drawn) == 2 and all(data["alt"].startswith("Recorded on another machine.") for data in drawn)
    assert app.button(key="t_go").label == "Measure it"


def test_an_own_run_takes_its_place(full_home: Path) -> None:
    app = open_page("kv_cache")
    assert "commit" not in " ".join(info.value for info in app.info) and charts(app) == []


def test_pages_that_decide_look_at_recorded_runs_too(empty_home: Path) -> None:
    for page in ("cost", "compare", "review"):
        app = open_page(page)
        assert not app.exception and not app.error
        assert "commit" in app.info[0].value
    listed = [link.proto.label for link in open_page("runs").get("page_link")]
    assert sum("recorded" in label for label in listed) == len(cassette.shipped())


def test_a_thinned_recording_has_no_live_page(empty_home: Path) -> None:
    thinned = next(m for m in cassette.shipped().values() if not m.whole)
    app = open_page("live", run=thinned.run)
    assert not app.exception and not app.error
    assert "its course over time cannot be shown" in " ".join(info.value for info in app.info)
    whole = next(m for m in cassette.shipped().values() if m.plays)
    app = open_page("live", run=whole.run)
    assert not app.exception and not app.error and len(charts(app)) == 1
