"""The pages Cost and Compare in every state, by Streamlit's AppTest."""

import json
import re
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.measure.prices import written
from lab.run import prices
from lab.show.ui import reads
from tests.show.conftest import DONE, FAILED, KV_CACHE, LLM_BATCHING, LLM_LOAD, QUANTIZATION, STOPPED
from tests.show.pages import charts, open_page, words

pytestmark = pytest.mark.pages

CPU = "lambda-us-east-1-cpu-4vcpu-16gib-x1-on-demand"


# --- cost ---------------------------------------------------------------------------------------------------------


def test_a_run_shows_its_cost_at_the_objective_and_says_that_it_is_a_what_if(full_home: Path) -> None:
    app = open_page("cost", run=DONE, x_price=CPU)
    assert not app.exception and not app.error
    said = words(app)
    assert "a million good requests (within 20 ms) cost \\$" in said
    assert "A what-if: measured on 2 cores of simulated, not on CPU-4vCPU-16GiB" in said
    assert len(app.metric) == 4
    assert len(charts(app)) == 2


@pytest.mark.parametrize("run", [STOPPED, FAILED, KV_CACHE, LLM_BATCHING, LLM_LOAD])
def test_the_cost_page_shows_every_kind_of_run(run: str, full_home: Path) -> None:
    app = open_page("cost", run=run)
    assert not app.exception and not app.error


def test_another_price_is_another_cost_without_another_run(full_home: Path) -> None:
    app = open_page("cost", run=LLM_LOAD, x_price=CPU)
    before = app.metric[2].value
    app.selectbox(key="price_box").set_value("lambda-any-h100-80gb-x1-on-demand").run()
    assert before == "$0.20" and app.metric[2].value == "$4.29"
    assert "not on H100-80GB" in words(app)
    assert "lambda-any-h100-80gb-x1-on-demand" in app.query_params["x_price"]


def test_another_objective_is_scored_at_once_from_the_records(full_home: Path) -> None:
    app = open_page("cost", run=DONE, x_price=CPU)
    before = charts(app)[0]["figure"]["data"]
    assert app.number_input(key="x_within_done").value == 20.0
    app.number_input(key="x_within_done").set_value(4.0).run()
    assert not app.exception
    assert charts(app)[0]["figure"]["data"] != before
    assert re.search(r"within 4(\.0+)? ms", words(app))


def test_a_price_that_is_not_there_is_told_and_another_one_taken(full_home: Path) -> None:
    app = open_page("cost", run=DONE, x_price="cloud-nine")
    assert not app.exception and not app.error
    assert "There is no price `cloud-nine`" in words(app) and len(app.metric) == 4


def test_an_edited_price_is_kept_and_a_refused_one_is_told(full_home: Path) -> None:
    app = open_page("cost", run=DONE)
    rows = [dict(vars(price)) for price in prices.catalogue()]
    rows[0]["usd_per_hour"] = 0.6
    prices.replace(rows)
    app = open_page("cost", run=DONE, x_price=prices.catalogue()[0].id)
    assert app.metric[2].value == "$0.60"
    (full_home / "prices.csv").write_text("provider\nme\n")
    app = open_page("cost", run=DONE)
    assert not app.exception
    assert [error.value for error in app.error if "delete it for the lab's own prices" in error.value]


def test_the_page_of_an_experiment_says_what_it_costs(full_home: Path) -> None:
    app = open_page("batching", run=DONE, x_price=CPU)
    assert not app.exception and not app.error
    assert "a million in time or not $" in words(app)
    assert len(app.metric) == 4


def test_a_finished_load_says_what_it_cost(full_home: Path) -> None:
    app = open_page("live", run=LLM_LOAD, x_price=CPU)
    assert not app.exception and not app.error
    assert charts(app)[0]["cost"].startswith("A million good tokens (within ")


# --- compare ------------------------------------------------------------------------------------------------------


def compared(*runs: str, **params: str):
    return open_page("compare", base=runs[0], run=list(runs[1:]), **params)


def test_two_levels_of_one_run_are_compared(full_home: Path) -> None:
    app = compared(f"{DONE}.10", f"{DONE}.12")  # at one load: batching off, 0.5 ms delay
    assert not app.exception and not app.error
    assert "goodput within 20 ms than A: batching off" in words(app)  # where it answers nothing in time
    assert len(charts(app)) == 2  # and no ratio to nothing
    assert all(len(data["figure"]["data"]) <= 4 for data in charts(app))


def test_the_ratio_that_decides_stands_beside_what_differs(full_home: Path) -> None:
    app = compared(f"{DONE}.5", f"{DONE}.7")
    decides, *_ = charts(app)
    band, marks = decides["figure"]["data"]
    assert band["name"] == "noise floor" and marks["error_x"]["array"] and "Goodput against" in words(app)


def test_the_report_is_one_click_away_for_one_run_and_for_two(full_home: Path) -> None:
    for runs in ((DONE,), (f"{DONE}.10", f"{DONE}.12")):
        app = compared(*runs)
        assert not app.exception and not app.error
        assert [button.label for button in app.get("download_button")] == [
            "Report, one HTML file",
            "The same in Markdown",
        ]


def test_a_run_beside_itself_says_so(full_home: Path) -> None:
    app = compared(DONE, DONE)
    assert not app.exception
    assert "This is one measurement beside itself" in words(app)


@pytest.mark.parametrize(
    ("view", "drawn"),
    [
        ("Curve", 2), ("Distribution", 2), ("Over time", 2), ("Where time went", 2), ("Memory", 1), ("Quality", 1),
        ("Ratios", 6),  # of one that was asked otherwise the share in time, not how much was
    ],
)  # fmt: skip
def test_every_view_of_a_comparison_is_drawn(view: str, drawn: int, full_home: Path) -> None:
    app = compared(f"{DONE}.0", f"{DONE}.3", f"{DONE}.6", c_view=view)
    assert not app.exception and not app.error
    assert len(charts(app)) == 1 + drawn
    for data in charts(app):
        assert data["alt"] and json.dumps(data["figure"])


def test_formats_are_compared_by_quality_with_its_interval(full_home: Path) -> None:
    app = compared(f"{QUANTIZATION}.0", f"{QUANTIZATION}.1", f"{QUANTIZATION}.2", c_view="Quality")
    assert not app.exception and not app.error
    _, lost, priced = charts(app)
    (trace,) = lost["figure"]["data"]
    assert len(trace["y"]) == 2 and trace["error_x"]["array"]  # the baseline has nothing to lose
    assert "perplexity" in lost["alt"] and "speed, size and quality" in priced["alt"]


def test_sides_without_a_format_say_why_there_is_no_quality(full_home: Path) -> None:
    app = compared(f"{DONE}.0", f"{DONE}.3", c_view="Quality")
    assert "fp32 is what others are compared with, so it has nothing to lose" in charts(app)[1]["alt"]


def test_six_sides_draw_four_at_first(full_home: Path) -> None:
    app = compared(*(f"{DONE}.{n}" for n in range(6)))
    assert not app.exception and not app.error
    lines = [t for t in charts(app)[1]["figure"]["data"] if t.get("mode") == "lines+markers"]
    assert len(lines) == 4


@pytest.mark.parametrize("name", ["../../etc/passwd", "does-not-exist", f"{DONE}.99", f"{DONE}.x"])
def test_a_side_that_is_not_there_is_told_in_one_line(name: str, full_home: Path) -> None:
    app = compared(DONE, name)
    assert not app.exception
    told = [e.value for e in (*app.warning, *app.error)]
    assert told and all("\n" not in line for line in told)


@pytest.mark.parametrize("others", [["../../etc", "NaN"], [DONE]])
def test_a_baseline_that_is_not_there_is_not_replaced_by_another(others: list[str], full_home: Path) -> None:
    app = compared("../../x", *others)
    assert not app.exception and not app.error and charts(app) == []
    assert len(app.warning) == 1 + others.count("NaN") * 2  # each is told
    assert app.selectbox(key="c_base").value is None and "Choose a baseline" in words(app)
    app.selectbox(key="c_base").select(DONE).run()
    assert not app.exception and app.query_params["base"] == DONE


def test_others_that_are_not_there_are_not_replaced_either(full_home: Path) -> None:
    app = open_page("compare", run=["does-not-exist"])
    assert not app.exception and app.multiselect(key="c_runs").value == []


def unmeasured(home: Path) -> str:
    """A newer run that failed before its first request."""
    run_id = "20261130-090909-batching-none"
    folder, of = home / "runs" / run_id, home / "runs" / DONE
    folder.mkdir()
    document = json.loads((of / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "run": run_id, "created_utc": "2031-01-01T00:00:00Z"}))
    status = json.loads((of / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "failed", "message": "no server"}))
    return run_id


def test_a_run_without_measurements_is_neither_the_default_nor_compared(
    full_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = unmeasured(full_home)
    assert reads.run_lines()[0].run_id == run_id
    for page, key in (("cost", "x_run"), ("compare", "c_base")):
        app = open_page(page)
        assert not app.exception and not app.error
        assert app.selectbox(key=key).value != run_id
    for names in ([DONE, run_id], [run_id, DONE]):
        capsys.readouterr()  # Streamlit's word that no script runs here
        assert main(["compare", *names]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        assert f"run {run_id}.0: nothing was measured in it" in printed.err
        app = compared(*names)  # chosen by hand
        (error,) = app.error
        assert not app.exception and charts(app) == []
        assert error.value.startswith("Nothing was measured in ") and error.value.endswith(
            "choose another run or cell."
        )


def test_the_page_cost_tells_of_a_price_list_without_rows(full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (full_home / "prices.csv").write_text(written([]))
    app = open_page("cost", run=DONE)
    assert not app.exception
    assert [error.value for error in app.error if "no rows" in error.value]
    assert main(["report", DONE, "-o", str(full_home / "r.html"), "--price", CPU]) == 2
    assert "prices.csv: prices: no rows" in capsys.readouterr().err


def test_the_pages_say_what_to_do_when_nothing_has_run(empty_home: Path) -> None:
    for page in ("cost", "compare"):
        app = open_page(page)
        assert not app.exception and not app.error
        assert len(app.title) == 1 and len(app.info) >= 1
