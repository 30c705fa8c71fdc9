"""The page Live run: what it shows, and what may be changed while a load goes on."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lab.run import catalogue
from lab.run.folder import RunFolder
from tests.show.conftest import DONE, FAILED, LLM_LOAD
from tests.show.pages import GOING, PAGES, begun, charts, interrupted_run, load_run, open_page, run_in_url, sent, words
from tests.show.synthetic import Author

pytestmark = pytest.mark.pages


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
    assert re.search(r"^A step reads .* of weights .* at this machine's 20.0 GB/s .* % of what the machine can do\.$",
                     moment["floor"])  # fmt: skip
    memory = "host memory (PSS), MiB"
    titles = [axes[f"yaxis{n}"]["title"]["text"] for n in ("", "2", "3", "4", "5", "6")]
    assert titles == ["tok/s", "first token, ms", "between tokens, ms", "requests", "tokens in cache", memory]


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


def test_a_run_that_is_done_says_what_it_found_and_leads_there(full_home: Path, document: dict[str, Any]) -> None:
    app = open_page("live", run=DONE)
    assert f"#### {document['verdict']['text'].partition('. ')[0].rstrip('.')}." in [m.value for m in app.markdown]
    app.button(key="to_verdict").click().run()
    assert app.title[0].value == "Does waiting for company pay?" and run_in_url(app) == DONE


def test_a_link_that_asks_for_it_goes_on_by_itself_once_the_run_is_done(full_home: Path) -> None:
    assert open_page("live", run=DONE, then="batching").title[0].value == "Does waiting for company pay?"
    assert "batching" in open_page("live", run=DONE, then="../system").title[0].value.lower()  # there is no such page
    assert open_page("live", run=FAILED, then="batching").error  # what failed says so here


def test_what_is_waited_for_is_said(empty_home: Path) -> None:
    folder = load_run()
    folder.set_status("starting", phase="starting", progress=0.0)
    folder.log("starting the server")
    (moment,) = charts(open_page("live", run=GOING))
    assert moment["covers"] == "Nothing is measured yet: starting the server."
    folder.set_status("queued", phase="place 1 behind 20261130-another")
    (moment,) = charts(open_page("live", run=GOING))
    assert "waits for its turn: place 1 behind 20261130-another" in moment["covers"]


def test_the_precision_of_a_model_without_tokens_is_changed_while_it_answers(empty_home: Path) -> None:
    folder = load_run()
    app = open_page("live", run=GOING)
    assert not app.exception
    format_ = app.selectbox(key=f"l_format_{GOING}")
    assert format_.options == ["fp32", "bf16", "int8"]
    format_.set_value("int8").run()
    assert sent(folder) == [{"model": {"precision": "int8"}}]


def test_a_model_of_one_precision_has_no_choice_of_it(empty_home: Path) -> None:
    workload = {"arrival": {"kind": "poisson", "rate_rps": 2}, "duration_s": 60}
    folder = Author(catalogue.single({"name": "sleeper"}, workload, []), GOING, quick=False).folder
    folder.set_status("running", progress=0.5)
    app = open_page("live", run=GOING)
    assert not app.exception
    assert f"l_format_{GOING}" not in [box.key for box in app.selectbox]
