"""Every page in every state, run by Streamlit's AppTest: what it says, what it offers, and that nothing raises."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.runtime.scriptrunner import StopException
from streamlit.testing.v1 import AppTest

from lab.errors import RunError, ServerError
from lab.run import catalogue, conversation, launch, results
from lab.run.conversation import Piece
from lab.run.folder import RunFolder
from lab.run.text import lines
from lab.show.ui import listing, machine, reads, trying
from lab.spec import ModelSpec
from tests.show.conftest import DONE, FAILED, KV_CACHE, LLM_BATCHING, LLM_LOAD, QUANTIZATION, STOPPED
from tests.show.synthetic import Author, batching_run

pytestmark = pytest.mark.pages

PROJECT = Path(__file__).parents[2]
PAGES = (
    *("start", "batching", "quantization", "kv_cache", "scheduling", "memory", "try_it", "live", "runs", "system"),
    *("your_server", "sweep", "tail", "trust"),
)
GOING = "20261130-020202-load-goes"


def open_page(page: str, **params: str) -> AppTest:
    app = AppTest.from_file(str(PROJECT / "app.py"), default_timeout=60).run()
    app.switch_page(f"pages/{page}.py")
    for name, value in params.items():
        app.query_params[name] = value
    return app.run()


def words(app: AppTest) -> str:
    """All text on the page."""
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def run_in_url(app: AppTest) -> str:
    value = app.query_params["run"]
    return value if isinstance(value, str) else value[0]


def components(app: AppTest) -> list[dict[str, Any]]:
    """What each component of ours was given."""
    return [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]


def charts(app: AppTest) -> list[dict[str, Any]]:
    """Everything that is drawn, the live page's moment among it."""
    drawn = [data.get("moment", data) for data in components(app)]
    return [data for data in drawn if "figure" in data]


def load_run(run_id: str = GOING, **status: Any) -> RunFolder:
    """A load run that this very process owns, so it counts as going on; `status` fields are then overwritten."""
    workload = {"arrival": {"kind": "poisson", "rate_rps": 50}, "duration_s": 60}
    author = Author(catalogue.single({"name": "digits"}, workload, []), run_id, quick=False)
    author.folder.set_status("running", progress=0.5)
    path = author.folder.path / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **status}))
    return author.folder


def interrupted_run() -> RunFolder:
    return load_run(pid=2**22 + 1, heartbeat_ns=time.perf_counter_ns() - 10_000_000_000)


# --- all pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_to_do_when_nothing_has_run(page: str, empty_home: Path) -> None:
    app = open_page(page)
    assert not app.exception
    assert len(app.title) == 1
    assert not app.error
    assert len(app.info) + len(app.button) >= 1


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("run", [DONE, STOPPED, FAILED])
def test_a_page_shows_a_run_that_ended(page: str, run: str, full_home: Path) -> None:
    app = open_page(page, run=run)
    assert not app.exception
    assert len(app.title) == 1
    assert len(app.metric) <= 4


@pytest.mark.parametrize(
    ("page", "run"),
    [
        ("batching", DONE),
        ("live", DONE),
        ("live", LLM_LOAD),
        ("kv_cache", KV_CACHE),
        ("scheduling", LLM_BATCHING),
        ("quantization", QUANTIZATION),
    ],
)
def test_every_chart_has_a_text_with_a_number_and_a_unit_and_its_data(page: str, run: str, full_home: Path) -> None:
    app = open_page(page, run=run)
    assert not app.exception and not app.error
    drawn = charts(app)
    assert len(drawn) >= 1
    for data in drawn:
        told = re.search(r"\d (ms|s|req/s|tok/s|%|MiB|executions|µs)", data["alt"])
        assert told or "nothing to draw" in data["alt"], data["alt"]
        assert len(data["figure"]["data"]) <= 4 or page == "live"
    shown = [data for data in drawn if data["figure"]["data"]]
    assert len([e for e in app.expander if e.label.endswith("Show data")]) == len(shown) >= 1


@pytest.mark.parametrize("page", ["batching", "live"])
@pytest.mark.parametrize("run", ["does-not-exist", "../../etc/passwd", ""])
def test_a_run_that_is_not_there_is_told_in_one_line(page: str, run: str, full_home: Path) -> None:
    app = open_page(page, run=run)
    assert not app.exception
    told = [warning.value for warning in app.warning]
    assert len(told) == (1 if run else 0)
    assert all("\n" not in line and repr(run) in line for line in told)


def test_a_damaged_folder_is_listed_and_does_not_hide_the_others(full_home: Path) -> None:
    (full_home / "runs" / DONE / "run.json").write_text("{ torn")
    app = open_page("runs")
    assert not app.exception
    assert "damaged" in words(app) and "stopped" in words(app)
    assert open_page("live", run=DONE).warning[0].value.count("\n") == 0


DAMAGE = {
    "no cells": ("run.json", lambda d: d.pop("cells")),
    "cells of no kind": ("run.json", lambda d: d.update(cells=5)),
    "an experiment of no kind": ("run.json", lambda d: d.update(experiment=[1])),
    "a summary without its verdict": ("summary.json", lambda d: d.pop("verdict")),
    "a summary of no kind": ("summary.json", lambda d: d.update(cells=[{"factors": {}}])),
}


@pytest.mark.parametrize("page", ["start", "batching", "live", "runs", "system"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_that_makes_no_sense_is_one_line(
    page: str, damage: str, full_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, spoil = DAMAGE[damage]
    path = full_home / "runs" / DONE / name
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))
    app = open_page(page, run=DONE)
    assert not app.exception
    assert len(app.error) <= 1
    assert all("\n" not in error.value and "cannot be shown: " in error.value for error in app.error)
    caplog.clear()


def test_an_exception_while_a_run_is_read_is_one_line(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_run()
    monkeypatch.setattr(reads, "look", lambda *_: {}["series"])
    app = open_page("live", run=GOING)
    assert not app.exception
    (error,) = app.error
    assert error.value.startswith(
        f"run '{GOING}' cannot be shown: 'series' is missing; its files or the lab are at fault"
    )
    assert any(record.exc_info for record in caplog.records)
    caplog.clear()


def test_a_fault_of_a_page_is_laid_on_no_run(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "logs", lambda: {}["place"])
    (error,) = open_page("system").error
    assert error.value.startswith("this page cannot be shown: 'place' is missing; that is a fault of the page")
    caplog.clear()


@pytest.mark.parametrize(("run", "shown"), [(DONE, True), ("x; rm -rf /", False), ("../../etc/passwd", False)])
def test_a_command_line_is_given_only_for_what_can_be_a_run(run: str, shown: bool, full_home: Path) -> None:
    commands = [block.value for block in open_page("live", run=run).code if "lab show" in block.value]
    assert commands == ([f"python -m lab show {run}"] if shown else [])


def test_no_page_needs_torch_or_mlflow(empty_home: Path) -> None:
    code = (
        "import sys; from streamlit.testing.v1 import AppTest\n"
        "app = AppTest.from_file('app.py', default_timeout=60).run()\n"
        f"for page in {PAGES!r}: app.switch_page(f'pages/{{page}}.py').run()\n"
        "assert not app.exception\n"
        "print([m for m in ('torch', 'mlflow', 'transformers', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr[-2000:]


def test_pages_stay_thin() -> None:
    assert len((PROJECT / "app.py").read_text().splitlines()) < 60
    for page in PAGES:
        assert len((PROJECT / "pages" / f"{page}.py").read_text().splitlines()) < 150


# --- Start ------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been started; each start leaves a folder of a run that goes on."""
    calls: list[tuple[Any, ...]] = []

    def start(experiment_id: str, settings: list[str], quick: bool, run_id: str, bet: str | None = None) -> str:
        calls.append((experiment_id, settings, quick, run_id))
        if len({call[3] for call in calls}) == len(calls):
            load_run(run_id)
        return run_id

    monkeypatch.setattr(launch, "start", start)
    return calls


def test_one_click_starts_the_quick_experiment_and_shows_it(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    app = open_page("start")
    app.button(key="start").click().run()
    assert not app.exception
    ((experiment, settings, quick, run_id),) = started
    assert (experiment, settings, quick) == ("batching", [], True)
    assert run_in_url(app) == run_id
    assert "under load" in app.title[0].value  # the live page of that run


def test_a_second_click_means_the_same_run(
    empty_home: Path, started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "active_runs", list)  # the second click was on its way before the page knew of a run
    app = open_page("start")
    for _ in range(2):
        app.button(key="start").click().run()
        app.switch_page("pages/start.py").run()
    assert len(started) == 2
    assert len({run_id for *_, run_id in started}) == 1


def test_the_next_start_after_a_run_has_ended_is_another_run(
    empty_home: Path, started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "active_runs", list)
    app = open_page("start")
    for _ in range(2):
        app.button(key="start").click().run()
        RunFolder.open(started[-1][3]).set_status("done")
        app.switch_page("pages/start.py").run()
    assert len({run_id for *_, run_id in started}) == 2


def test_a_refused_start_is_one_line(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise RunError("run x made no folder within 20 s; see `python -m lab doctor`")

    monkeypatch.setattr(launch, "start", refuse)
    app = open_page("start")
    app.button(key="start").click().run()
    assert not app.exception
    assert [error.value for error in app.error] == ["run x made no folder within 20 s; see `python -m lab doctor`"]
    assert app.title[0].value == "What does dynamic batching buy on this machine?"


def test_while_a_run_goes_on_the_button_rests_and_says_why(empty_home: Path) -> None:
    load_run()
    app = open_page("start")
    assert app.button(key="start").disabled
    assert "One run measures at a time" in words(app)
    assert "Load on digits" in words(app)


# --- Dynamic batching -------------------------------------------------------------------------------------------


def test_a_finished_comparison_opens_with_its_headline(full_home: Path, document: dict[str, Any]) -> None:
    app = open_page("batching", run=DONE)
    headline = document["verdict"]["text"].partition(". ")[0].rstrip(".")
    assert f"#### {headline}." in [m.value for m in app.markdown]
    assert [metric.label for metric in app.metric] == ["Served in time", "p50 latency", "p99 latency", "Mean batch"]
    titles = {data["figure"]["layout"]["yaxis"]["title"]["text"] for data in charts(app)[:2]}
    assert titles == {"latency from the scheduled arrival, ms"}


def test_the_page_says_whether_the_answers_stayed_the_same(empty_home: Path) -> None:
    batching_run(DONE, duration_s=1.0)
    assert "(64 requests, largest difference 3.8e-06)" in words(open_page("batching", run=DONE))
    batching_run(STOPPED, duration_s=1.0, difference=0.02)
    app = open_page("batching", run=STOPPED)
    assert "up to 0.02 apart, 0.0001 is allowed" in words(app)  # in place of a headline
    assert "The answers differ" in app.error[0].value


def test_the_link_chooses_level_and_load(full_home: Path) -> None:
    app = open_page("batching", run=DONE, b_level="5 ms delay", b_load="10 %")
    assert "Executed batch sizes at 10 % of saturation" in words(app)
    assert "5 ms delay" in charts(app)[0]["alt"]


def test_nonsense_in_the_link_falls_back_to_the_default(full_home: Path) -> None:
    app = open_page("batching", run=DONE, b_level="bogus", b_load="NaN", b_slo="abc", b_size="9999", b_bet="x")
    assert not app.exception
    assert "Executed batch sizes at 120 % of saturation" in words(app)
    assert app.number_input(key="b_slo").value == 20.0


def test_one_request_has_one_cost_on_the_page(full_home: Path) -> None:
    said = words(open_page("batching", run=DONE))
    costs = re.findall(r"[Oo]ne item costs .+? of compute alone and .+? in a batch of \d+", said)
    assert len(costs) == 2  # in the verdict and under Why
    assert costs[0].lower() == costs[1].lower()


def test_a_load_that_forbids_a_verdict_is_not_the_default_and_says_why(full_home: Path) -> None:
    path = full_home / "runs" / DONE / "summary.json"
    document = json.loads(path.read_text())
    text = "The client was the limit."
    problem = {"code": "client_limited", "text": text, "remedy": "More workers.", "forbids_verdict": True}
    fraction = "workload.arrival.saturation_fraction"
    for cell in document["cells"]:
        if cell["factors"].get(fraction) == 1.2:
            cell["summary"]["problems"] = [problem]
    for effect in document["verdict"]["effects"]:
        if effect["at"].get(fraction) == 1.2:
            effect.update(verdict="not comparable", reason=text, ratio=None)
    path.write_text(json.dumps(document))
    said = words(open_page("batching", run=DONE, b_bet="more"))
    assert "Executed batch sizes at 80 % of saturation" in said
    assert "You bet on more" in said  # scored at 80 %, not left open
    assert "No verdict on these figures" not in said
    said = words(open_page("batching", run=DONE, b_load="120 %"))
    assert f"No verdict on these figures] batching off: {text}" in said


def test_a_bet_is_scored(full_home: Path) -> None:
    app = open_page("batching", run=DONE, b_bet="fewer")
    assert "You bet on fewer, 2×" in words(app)


def test_the_bet_names_the_objective_that_will_score_it(full_home: Path) -> None:
    path = full_home / "runs" / DONE / "run.json"
    document = json.loads(path.read_text())
    document["experiment"]["slo"]["latency_s"] = 0.035
    path.write_text(json.dumps(document))
    assert "within 35 ms, compared" in words(open_page("batching", run=DONE, b_slo="50"))
    assert "within 50 ms, compared" in words(open_page("batching", run=GOING, b_slo="50"))  # no such run


def test_a_stopped_run_says_that_it_is_partial(full_home: Path) -> None:
    """5 blocks of saturation and 2 of the 15 cells; the third was cut."""
    app = open_page("batching", run=STOPPED)
    assert app.warning[0].value == ("Stopped by hand after 7 of 20 blocks; the one that had begun is not compared.")
    assert "Only 3 of 15 cells are measured" in words(app)
    assert any(m.value.startswith("#### At 2") for m in app.markdown)  # not the "Not decided" of the badge above it
    assert "is not drawn" in words(app) or "ends at" in words(app)


def test_a_failed_run_says_after_how_much_and_why(full_home: Path) -> None:
    said = "Failed after 8 of 20 blocks: the server died while the load ran: signal 9."
    assert open_page("batching", run=FAILED).warning[0].value == said
    assert open_page("live", run=FAILED).error[0].value == said


def test_the_page_and_the_terminal_doubt_in_the_same_words(full_home: Path, document: dict[str, Any]) -> None:
    """A problem that several blocks have is told with the figures of the first, and says so."""
    told = [line.removeprefix("- ") for line in lines(document) if line.startswith("- ")]
    shown = [m.value for m in open_page("batching", run=DONE).markdown if m.value.startswith("- ")]
    assert [text.removeprefix("- ").replace(" *", " ").removesuffix("*") for text in shown] == told
    assert any("blocks, the first: " in text for text in shown)


def test_a_run_that_is_over_is_shown_whole(full_home: Path) -> None:
    (drawn,) = charts(open_page("live", run=DONE))
    begin, end = drawn["figure"]["layout"]["xaxis"]["range"]
    assert (begin, end > 60) == (0, True)  # 5 + 30 blocks of 1.5 and 2 s
    (drawn,) = charts(open_page("live", run=DONE, w_over="30 s"))
    assert drawn["figure"]["layout"]["xaxis"]["range"][0] == pytest.approx(end - 30)


@pytest.mark.parametrize(
    ("run", "title"),
    [(KV_CACHE, "KV cache on llm"), (LLM_BATCHING, "Continuous batching on llm"), (LLM_LOAD, "llm under load")],
)
def test_a_run_goes_by_its_experiments_own_title(run: str, title: str, full_home: Path) -> None:
    assert open_page("live", run=run).title[0].value == title


def test_a_run_of_an_experiment_without_a_title_goes_by_its_id(full_home: Path) -> None:
    path = full_home / "runs" / KV_CACHE / "run.json"
    document = json.loads(path.read_text())
    del document["experiment"]["title"]
    path.write_text(json.dumps(document))
    assert open_page("live", run=KV_CACHE).title[0].value == "Kv cache on llm"


def test_a_withheld_figure_is_a_card_with_a_reason(full_home: Path) -> None:
    app = open_page("batching", run=STOPPED)
    (p99,) = [metric for metric in app.metric if metric.label == "p99 latency"]
    assert p99.value == "n/a" and "459" in p99.proto.help


def test_a_run_that_compares_nothing_is_sent_to_its_live_page(empty_home: Path) -> None:
    load_run()
    app = open_page("batching", run=GOING)
    assert "answers no such question" in app.info[0].value


def test_the_run_form_hands_on_what_was_chosen(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    app = open_page("batching", b_model="embedder", b_slo="50", b_depth="whole")
    app.button(key="run_ab").click().run()
    ((experiment, settings, quick, _),) = started
    assert (experiment, settings, quick) == ("batching", ["model.name=embedder", "slo.latency_s=0.05"], False)


# --- KV cache and continuous batching -----------------------------------------------------------------------------


def test_the_cache_shows_flat_against_rising(full_home: Path) -> None:
    app = open_page("kv_cache", run=KV_CACHE, k_output="128 tokens")
    assert [metric.label for metric in app.metric] == [
        "Tokens a second", "Between tokens, mean", "To the first token, mean", "Peak memory",
    ]  # fmt: skip
    alt = charts(app)[0]["alt"]
    found = re.findall(
        r"with KV cache (on|off) a token takes ([\d.]+) ms at the start and ([\d.]+) ms at token 128", alt
    )
    times = {level: (float(first), float(last)) for level, first, last in found}
    # 16 + 128 tokens are read anew at 0.18 ms each, from 16 + 1 on: some 20 ms more at the end.
    assert times["off"][1] - times["off"][0] == pytest.approx(20, abs=2)
    assert times["on"][1] - times["on"][0] == pytest.approx(0, abs=1)


def test_the_link_chooses_the_lengths(full_home: Path) -> None:
    said = [charts(open_page("kv_cache", run=KV_CACHE, k_output=f"{n} tokens"))[0]["alt"] for n in (32, 128)]
    assert "answers of 32 tokens" in said[0] and "answers of 128 tokens" in said[1]


def test_static_wastes_slots_that_continuous_fills(full_home: Path) -> None:
    notes = [c.value for c in open_page("scheduling", run=LLM_BATCHING).caption if "a request waited" in c.value]
    static, continuous = (float(re.search(r"([\d.]+) %", note)[1]) for note in notes)
    assert static > 5 * continuous


def test_a_run_is_linked_to_the_page_of_its_experiment(full_home: Path) -> None:
    pages = {link.proto.page for link in open_page("runs").get("page_link")}
    assert {"batching", "kv_cache", "scheduling"} <= pages


def test_the_forms_hand_on_what_was_chosen(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    for page, params in (("kv_cache", {"k_users": "4"}), ("scheduling", {"s_batch": "16", "s_depth": "whole"})):
        app = open_page(page, **params)
        app.button(key="run_ab").click().run()
        assert not app.exception
        RunFolder.open(started[-1][3]).set_status("done")
        reads.run_lines.clear()
    assert [call[:3] for call in started] == [
        ("kv_cache", ["workload.arrival.concurrency=4"], True),
        ("llm_batching", ["model.max_batch_size=16"], False),
    ]


# --- Try it -----------------------------------------------------------------------------------------------------


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for the language model; what it was asked."""
    asked: list[dict[str, Any]] = []

    def say(prompt: str, **sampling: Any) -> Iterator[Piece]:
        asked.append({"prompt": prompt, **sampling})
        sent_ns = time.perf_counter_ns()
        for i, (text, tokens) in enumerate((("a <b>", 4), (" $x$", 3), (" c", 3))):
            yield Piece(text, tokens, sent_ns, sent_ns + (i + 1) * 100_000_000, "length" if i == 2 else None, 9, None)

    def prepare(spec: ModelSpec) -> str:
        asked.append({"prepared": (spec.kv_cache, spec.scheduler, spec.stream_interval)})
        return "127.0.0.1:1"

    monkeypatch.setattr(conversation, "why_not", lambda spec: None)
    monkeypatch.setattr(conversation, "prepare", prepare)
    monkeypatch.setattr(conversation, "say", say)
    return asked


def test_an_answer_is_written_and_scored(empty_home: Path, model: list[dict[str, Any]]) -> None:
    app = open_page("try_it", t_cache="false", t_chunk="4", t_tokens="32")
    app.button(key="write").click().run()
    assert not app.exception
    assert model[0] == {"prepared": (False, "continuous", 4)}
    assert (model[1]["max_tokens"], model[1]["temperature"]) == (32, 0.0)
    (text,) = [h.proto.body for h in app.get("html") if "class='lab-answer'" in h.proto.body]
    assert "a &lt;b&gt; $x$ c" in text
    assert "It reached the longest allowed: 10 tokens after a prompt of 9" in words(app)
    assert "With KV cache off, 4 in a chunk the first of 10 tokens came after 100 ms" in words(app)


def test_the_switcher_scores_the_same_answer_anew(empty_home: Path, model: list[dict[str, Any]]) -> None:
    app = open_page("try_it")
    app.button(key="write").click().run()
    between = {}
    for tool in ("lab", "AIPerf", "LLMPerf"):
        app.segmented_control(key="t_tool").set_value(tool).run()
        between[tool] = app.metric[1].value
    assert between == {"lab": "33.3 ms", "AIPerf": "22.2 ms", "LLMPerf": "100 ms"}
    assert len(model) == 2  # asked once


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("", "There is no prompt yet"),
        (" \n ", "There is no prompt yet"),
        ("x" * 4001, "has 4,001 characters; allowed: 4,000"),
    ],
)
def test_a_prompt_that_cannot_be_asked_says_why(
    prompt: str, why: str, empty_home: Path, model: list[dict[str, Any]]
) -> None:
    app = open_page("try_it")
    app.text_area(key="t_prompt").set_value(prompt).run()
    assert app.button(key="write").disabled
    assert why in words(app)
    app.text_area(key="t_prompt").set_value("x" * 4000).run()
    assert not app.button(key="write").disabled


def test_why_nothing_can_be_written_is_said(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "why_not", lambda spec: "No Triton runs; start it")
    app = open_page("try_it")
    assert app.button(key="write").disabled
    assert "No Triton runs; start it" in words(app)


def test_a_click_while_it_writes_stops_the_server_too(
    empty_home: Path, model: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def say(prompt: str, **sampling: Any) -> Iterator[Piece]:
        try:
            for _ in range(1000):
                yield Piece("more ", 1, time.perf_counter_ns(), time.perf_counter_ns(), None, 9, None)
        finally:
            closed.append(True)

    def click(*_: Any, **__: Any) -> str:  # as Streamlit ends a script: at its next word to the page
        if asked["drawn"] > 0:
            raise StopException
        asked["drawn"] += 1
        return "<p>…</p>"

    asked = {"drawn": 0}
    monkeypatch.setattr(conversation, "say", say)
    monkeypatch.setattr(trying, "_answer_box", click)
    monkeypatch.setattr(trying, "REDRAW_S", 0.0)
    app = open_page("try_it")
    app.button(key="write").click().run()
    assert closed == [True]
    assert len(app.session_state["tried"][0].pieces) == 1


def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came(
    empty_home: Path, model: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(prompt: str, **sampling: Any) -> Iterator[Piece]:
        yield Piece("half", 1, time.perf_counter_ns(), time.perf_counter_ns(), None, 9, None)
        raise ServerError("model llm: the server is gone")

    monkeypatch.setattr(conversation, "say", say)
    app = open_page("try_it")
    app.button(key="write").click().run()
    assert [e.value for e in app.error] == ["model llm: the server is gone"]
    assert "It was stopped: 1 token" in words(app)


# --- Live run ---------------------------------------------------------------------------------------------------


def sent(folder: RunFolder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder.path / "control.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "id"} for line in lines]


def test_the_rate_is_changed_while_the_load_runs(empty_home: Path) -> None:
    folder = load_run()
    app = open_page("live", run=GOING)
    app.number_input(key=f"l_rate_rps_{GOING}").set_value(250.0).run()
    assert sent(folder) == [{"rate_rps": 250.0}]
    assert not app.exception


def test_batching_is_toggled_and_its_delay_set_while_the_load_runs(empty_home: Path) -> None:
    folder = load_run()
    app = open_page("live", run=GOING)
    app.toggle(key=f"l_batching_{GOING}").set_value(True).run()
    app.select_slider(key=f"l_delay_{GOING}").set_value(2.0).run()
    app.toggle(key=f"l_batching_{GOING}").set_value(False).run()
    first, second, third = (change["batching"] for change in sent(folder))
    assert (first["max_batch_size"], first["max_queue_delay_us"]) == (32, 0)
    assert second["max_queue_delay_us"] == 2000
    assert third is None


def begun(folder: RunFolder, rate_rps: float) -> None:
    cell = folder.document["cells"][0]
    workload = {**cell["workload"], "arrival": {**cell["workload"]["arrival"], "rate_rps": rate_rps}}
    now = time.perf_counter_ns()
    times = {"start_ns": now, "measured_from_ns": now, "end_ns": now + 60_000_000_000, "t_ns": now}
    block = {"block": 0, "role": "cell", "cell": 0, "repeat": 0, "planned": None}
    folder.event("block_start", **block, workload=workload, model=cell["model"], **times)


def test_the_controls_show_what_is_in_force_after_a_reload_and_in_another_browser(empty_home: Path) -> None:
    folder = load_run()
    begun(folder, 50.0)
    here = open_page("live", run=GOING)
    assert here.number_input(key=f"l_rate_rps_{GOING}").value == 50.0
    batching = {"max_batch_size": 8, "max_queue_delay_us": 700}
    folder.event("change", field="rate_rps", **{"from": 50.0}, to=250.0)
    folder.event("change", field="batching", **{"from": None}, to=batching)
    for app in (open_page("live", run=GOING), here.run()):
        assert not app.exception
        assert app.number_input(key=f"l_rate_rps_{GOING}").value == 250.0
        assert app.toggle(key=f"l_batching_{GOING}").value is True
        assert app.select_slider(key=f"l_delay_{GOING}").value == 0.7
    assert not (folder.path / "control.jsonl").exists()  # looking changes nothing
    here.select_slider(key=f"l_delay_{GOING}").set_value(2.0).run()
    (change,) = sent(folder)
    assert (change["batching"]["max_batch_size"], change["batching"]["max_queue_delay_us"]) == (8, 2000)


def test_between_a_change_and_its_effect_the_control_keeps_what_was_asked(empty_home: Path) -> None:
    begun(load_run(), 50.0)
    app = open_page("live", run=GOING)
    app.number_input(key=f"l_rate_rps_{GOING}").set_value(250.0).run()
    assert app.run().number_input(key=f"l_rate_rps_{GOING}").value == 250.0


def test_cache_and_scheduler_of_a_language_model_are_changed_while_it_writes(empty_home: Path) -> None:
    workload = {"arrival": {"kind": "poisson", "rate_rps": 2}, "duration_s": 60}
    folder = Author(catalogue.single({"name": "llm"}, workload, []), GOING, quick=False).folder
    folder.set_status("running", progress=0.5)
    app = open_page("live", run=GOING)
    assert not app.exception
    app.toggle(key=f"l_kv_cache_{GOING}").set_value(False).run()
    app.segmented_control(key=f"l_scheduler_{GOING}").set_value("static").run()
    assert sent(folder) == [{"kv_cache": False}, {"scheduler": "static"}]


def test_a_language_models_load_shows_its_tokens(full_home: Path) -> None:
    app = open_page("live", run=LLM_LOAD)
    labels = ["Tokens a second", "To the first token, p50", "Between tokens, p50", "Answered at once"]
    (moment,) = charts(app)
    assert [card["label"] for card in moment["cards"]] == labels
    assert all(card["value"] != "n/a" for card in moment["cards"])
    axes = moment["figure"]["layout"]
    titles = [axes[f"yaxis{n}"]["title"]["text"] for n in ("", "2", "3", "4", "5", "6")]
    assert titles == ["tok/s", "first token, ms", "between tokens, ms", "requests", "tokens in cache", "memory, MiB"]


def test_an_experiment_offers_no_change_by_hand(full_home: Path) -> None:
    shutil.copytree(full_home / "runs" / DONE, full_home / "runs" / GOING)
    going = RunFolder.open(GOING)
    going.set_status("running", progress=0.5)
    app = open_page("live", run=GOING)
    assert not app.number_input
    assert "its settings stay as declared" in words(app)
    assert app.button(key="stop")


def test_an_interrupted_run_says_so_and_offers_no_stop(empty_home: Path) -> None:
    interrupted_run()
    app = open_page("live", run=GOING)
    assert app.warning[0].value.startswith("Broke off before anything was measured: its process ")
    assert "stop" not in [button.key for button in app.button]


def test_from_a_run_that_ended_another_load_can_be_started(full_home: Path) -> None:
    app = open_page("live", run=DONE)
    app.button(key="another").click().run()
    assert app.title[0].value == "Live run"
    assert "run" not in app.query_params
    assert app.button(key="start_live")


def test_a_failed_run_names_the_cause(full_home: Path) -> None:
    app = open_page("live", run=FAILED)
    assert "the server died while the load ran: signal 9" in app.error[0].value


def test_the_menu_leads_to_the_run_that_goes_on(empty_home: Path) -> None:
    load_run()
    app = open_page("live")
    assert run_in_url(app) == GOING
    assert app.title[0].value == "digits under load"


def test_opening_a_link_starts_nothing(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    for page in PAGES:
        open_page(page, run=DONE, b_bet="more", l_model="embedder")
    assert started == []


# --- Runs -------------------------------------------------------------------------------------------------------


def test_runs_are_found_by_words_and_state(full_home: Path) -> None:
    assert words(open_page("runs", r_q="batching-fail")).count("20261130-") == 1
    app = open_page("runs", r_state="stopped")
    assert STOPPED in words(app) and DONE not in words(app)
    assert "No run matches" in words(open_page("runs", r_q="no such thing"))


def test_the_search_minds_no_capitals() -> None:
    line = reads.RunLine("20261130-020202-x", "done", "", "batching", "Batching", "Digits", 1, False, "")
    assert listing.matching([line], "bATCHING digits", None) == [line]
    assert listing.matching([line], "embedder", None) == []


def test_a_damaged_run_says_why_in_full_and_so_does_its_download(full_home: Path) -> None:
    (full_home / "runs" / DONE / "run.json").write_text("{ torn")
    assert any("run.json: damaged: Expecting" in c.value for c in open_page("runs").caption)
    assert "run.json: damaged" in json.loads(listing._figures(DONE))["error"]


def test_deleting_removes_the_run_and_a_refusal_is_told(full_home: Path) -> None:
    load_run()
    app = open_page("runs")
    assert app.button(key=f"delete_{GOING}").disabled
    listing.delete(DONE)
    assert not (full_home / "runs" / DONE).exists()


def test_the_download_is_the_document(full_home: Path) -> None:
    assert json.loads(listing._figures(DONE)) == json.loads(json.dumps(results.document(RunFolder.open(DONE))))


def test_two_hundred_runs_are_listed_at_once_and_a_page_at_a_time(full_home: Path) -> None:
    source = full_home / "runs" / DONE
    for i in range(200):
        copy = full_home / "runs" / f"20261129-{i:06d}-batching-copy"
        copy.mkdir()
        for name in ("run.json", "status.json"):
            shutil.copy(source / name, copy / name)
    app = open_page("runs")
    assert not app.exception
    assert len([b for b in app.button if str(b.key).startswith("delete_")]) == listing.PAGE_SIZE
    runs, last = 200 + len(list((full_home / "runs").glob("20261130-*"))), 18
    app.number_input(key="r_page").set_value(last).run()
    assert len([b for b in app.button if str(b.key).startswith("delete_")]) == runs - (last - 1) * listing.PAGE_SIZE


# --- System -----------------------------------------------------------------------------------------------------


def test_without_a_server_the_system_page_says_how_to_get_one(empty_home: Path) -> None:
    app = open_page("system")
    assert "No managed Triton lives" in app.info[0].value


def test_the_config_viewer_shows_what_triton_would_read(empty_home: Path) -> None:
    blocks = open_page("system", y_delay="500", y_size="8").code
    code = next(block.value for block in blocks if "max_batch_size" in block.value)
    assert "max_batch_size: 8" in code and "max_queue_delay_microseconds: 500" in code


def test_a_contradiction_is_one_line(empty_home: Path) -> None:
    app = open_page("system", y_size="1", y_delay="500")
    assert not app.exception
    assert len(app.error) == 1 and "max_batch_size 1" in app.error[0].value
