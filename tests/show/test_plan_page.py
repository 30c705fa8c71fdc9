"""The page Plan in every state, by Streamlit's AppTest, and `lab plan` on the same runs."""

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.measure.planner import calibrated, calibrator, heldout
from lab.run import cassette, planning
from lab.show.ui import setting
from tests.show.conftest import DONE, LLM_BATCHING, LLM_LOAD
from tests.show.pages import charts, open_page, words

pytestmark = pytest.mark.pages


@pytest.fixture(autouse=True)
def rough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are tested here and not how far off a plan is: a few short replays will do."""
    monkeypatch.setattr(heldout, "FOLDS", 2)
    monkeypatch.setattr(calibrator, "SHOWN", 2)
    monkeypatch.setattr(calibrator, "REPLAYED", 200)
    monkeypatch.setattr(calibrated, "RUNS", 2)
    monkeypatch.setattr(heldout, "RUNS", 1)


def test_it_says_first_how_far_off_it_is_and_then_what_if(full_home: Path) -> None:
    app = open_page("plan", run=DONE)
    assert not app.exception and not app.error
    said = words(app)
    assert "Left out and predicted" in said and "Two blocks of one cell are" in said
    assert said.index("Left out and predicted") < said.index("Predicted: ")
    assert len(app.metric) <= 4
    assert [len(data["figure"]["data"]) <= 4 for data in charts(app)] == [True] * 3
    assert all(data["alt"] for data in charts(app))


def test_predictions_are_drawn_apart_and_say_so(full_home: Path) -> None:
    drawn = charts(open_page("plan", run=DONE))[2]["figure"]["data"]
    by_name = {trace["name"]: trace for trace in drawn}
    assert by_name["predicted"]["line"]["dash"] == "dash"
    assert by_name["predicted, band of held-out errors"]["fillpattern"]["shape"] == "/"
    assert by_name["predicted"]["error_y"]["arrayminus"] and by_name["measured"].get("error_y") is None
    assert by_name["measured"]["mode"] == "markers"
    assert by_name["predicted: what you ask"]["marker"]["symbol"].endswith("-open")


def test_everything_stands_in_the_link(full_home: Path) -> None:
    app = open_page("plan", run=DONE, p_batch="8", p_delay="2", p_replicas="3", p_ms="25", p_view="Balancing")
    assert not app.exception and not app.error
    said = words(app)
    assert "on 3 replicas" in said and "95 % within 25 ms" in said
    assert "Predicted p99 behind round robin" in said
    assert "batches of up to 8 with a delay of 2 ms: not measured in this run" in said


def test_what_breaks_first_is_said_of_a_language_model(full_home: Path) -> None:
    app = open_page("plan", run=LLM_BATCHING, p_view="What breaks first")
    assert not app.exception and not app.error
    assert "What breaks first: the " in words(app) and "KV cache" in words(app)


def test_a_target_below_the_floor_is_said(full_home: Path) -> None:
    app = open_page("plan", run=DONE, p_ms="0.1")
    assert not app.exception and not app.error
    assert "No number of replicas reaches 0.1 ms: one request alone takes" in words(app)
    assert [(card.value, card.delta) for card in app.metric][2:] == [
        ("n/a", "no number found"),
        ("n/a", "nothing to price"),
    ]


def test_a_run_that_cannot_be_planned_from_says_which_can(full_home: Path) -> None:
    app = open_page("plan", run=LLM_LOAD)
    assert not app.exception and not app.error
    assert "no block of it can be left out" in words(app)
    assert {"p_run_batching", "p_run_llm_batching"} <= {button.key for button in app.button}


def test_where_nothing_was_measured_it_plans_from_a_recording_that_has_all_requests(empty_home: Path) -> None:
    app = open_page("plan")
    assert not app.exception and not app.error
    assert "Left out and predicted" in words(app) and "Recorded on another machine" in app.info[0].proto.title


def test_a_recording_of_which_requests_are_missing_is_not_planned_from(empty_home: Path) -> None:
    thinned = next(m for m in cassette.shipped().values() if m.requests_one_in > 1)
    app = open_page("plan", run=thinned.run)
    assert not app.exception and not app.error
    assert f"only 1 in {thinned.requests_one_in} requests of this recording is kept" in app.warning[0].value


def test_a_bad_link_falls_back(full_home: Path) -> None:
    app = open_page("plan", run=DONE, p_batch="9999", p_delay="soon", p_replicas="-3", p_acc="TPU", p_qps="nan")
    assert not app.exception and not app.error


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_the_same(full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DONE, "--qps", "400", "--p95-ms", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["needed"]["replicas"] == 1
    assert found["held_out"]["fitted"]["latency_p95_s"]["n"] > 0
    low, high = found["predicted"]["intervals"]["latency_p95_s"]
    assert low <= found["predicted"]["latency_p95_s"] <= high
    assert main(["plan", DONE, "--qps", "400", "--p95-ms", "20"]) == 0
    said = capsys.readouterr().out
    assert "Predicted: 1 replica keeps 95 % within 20 ms at 400 req/s" in said
    assert said.startswith("The setting planned for: digits in fp32, batches of up to 32, ")


def test_a_run_that_the_model_says_nothing_of_makes_no_plan(
    full_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MOST_OFF", 0.0)  # whatever it is off by
    assert main(["plan", DONE, "--qps", "400", "--p95-ms", "20"]) == 2
    assert "off in their median latency, so it is not what a plan may be made from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--qps", "0"], "--qps 0: allowed is above 0"),
        (["--qps", "nan"], "--qps nan"),
        (["--qps", "10", "--p95-ms", "-1"], "--p95-ms -1: allowed is above 0"),
        (["--qps", "10", "--precision", "int7"], "--precision 'int7': not known of this run"),
        (["--qps", "10", "--accelerator", "T4"], "which no data sheet scales"),
        (["--qps", "10", "--batch", "0"], "--batch 0: allowed is 1 to 1,024"),
        (["--qps", "10", "--price", "free"], "price 'free': there is none"),
    ],
)
def test_a_wrong_question_is_one_line(
    more: list[str], says: str, full_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", DONE, *more]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


@pytest.mark.parametrize("run", [LLM_LOAD, "20261130-000000-no-such-run"])
def test_a_run_without_calibration_is_refused(run: str, full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", run, "--qps", "10"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_slider_s_figures_are_decimals_as_people_write_them() -> None:
    assert 17 * 0.2 != 3.4 and setting._tidy(17 * 0.2) == 3.4
    assert setting._tidy(400 * setting._step(6.8)) == 80.0
