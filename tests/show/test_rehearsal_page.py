"""The parts of the page Rollout where a rollout is rehearsed: finished runs, and what is registered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from lab.run import catalogue
from lab.run.plan import cell_blocks, level_blocks, settle, with_rate
from lab.show.charts.shares import by_version
from lab.show.ui import registering
from tests.measure.test_rehearsal_figures import canary, switch
from tests.show.synthetic import Author

pytestmark = pytest.mark.pages
PROJECT = Path(__file__).parents[2]
CANARY, SWITCH = "20261130-020901-canary-done", "20261130-020902-blue-green-done"
TRAFFIC = {"t_s": [-0.25, 0.25, 0.75], "1": [100.0, 75.0, 100.0], "2": [0.0, 25.0, 0.0]}


def rehearsed(name: str, run_id: str, told: list[dict[str, Any]]) -> None:
    short = [("workload.duration_s", 2.0), ("workload.warmup_s", 0.5)]
    experiment = settle(catalogue.experiment(name), short, quick=True)
    author = Author(experiment, run_id, seconds=20)
    first = level_blocks(experiment) if experiment.reference else []
    blocks, events = [*first, *cell_blocks(experiment)], [None] * len(first) + told
    for index, (block, event) in enumerate(zip(blocks, events, strict=True)):
        author.block(index, with_rate(block, 250.0))
        if event is not None:
            author.folder.event("rehearsed", block=index, **event)
    author.end("done")


@pytest.fixture
def app(empty_home: Path) -> AppTest:
    return AppTest.from_file(str(PROJECT / "app.py"), default_timeout=60).run()


def opened(app: AppTest, **params: str) -> str:
    app.switch_page("pages/rollout.py")
    for name, value in params.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return words(app)


def words(app: AppTest) -> str:
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error", "success")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def charts(app: AppTest) -> list[str]:
    nodes = [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]
    return [node["alt"] for node in nodes if "alt" in node]


def test_canary_that_was_rehearsed_shows_the_guards_word_and_the_traffic(app: AppTest) -> None:
    decisions = {"good": "promoted", "slower": "rolled_back", "errs": "rolled_back", "worse": "rolled_back"}
    rehearsed("canary", CANARY, [canary(*one, traffic=TRAFFIC) for one in decisions.items()])
    said = opened(app, run=CANARY)
    assert "The hypothesis holds" in said and "decided rightly in 4 of 4 rollouts" in said
    assert "The guard's word:" in said and len(app.metric) == 4
    assert any("version 2 had" in alt and "begins (25 %)" in alt for alt in charts(app))
    (table,) = [frame.value for frame in app.dataframe]
    assert list(table["decision"]) == ["promoted", "rolled back", "rolled back", "rolled back"]


def test_switch_that_was_rehearsed_shows_its_books(app: AppTest) -> None:
    rehearsed("blue_green", SWITCH, [switch(traffic={"t_s": [0.25], "blue": [100.0], "green": [100.0]})])
    said = opened(app, run=SWITCH)
    assert "none were lost and none answered twice" in said and "The books agree" in said
    assert [card.label for card in app.metric][:2] == ["Lost", "Answered twice"]
    assert any("to green" in alt for alt in charts(app))


def test_part_without_a_run_offers_one(app: AppTest) -> None:
    said = opened(app, o_part="Canary, rehearsed")
    assert "Does the guard tell" in said
    assert not app.button(key="o_rehearse").disabled


def test_shares_of_no_traffic_say_so() -> None:
    assert "no request was sent" in by_version("Traffic", {"t_s": [], "1": [], "2": []}, {"1": "a", "2": "b"}, []).alt
    names, moves = {"1": "version 1", "2": "version 2"}, [(0.0, "begins"), (1.5, "rolled back")]
    chart = by_version("Traffic", TRAFFIC, names, moves)
    assert chart.alt.startswith("Traffic: version 2 had 8.33 % of the requests")
    assert "rolled back after 1.50 s" in chart.alt
    assert chart.table["version 2 (req/s)"] == [0.0, 25.0, 0.0]


VERSIONS = [
    {
        "name": "digits", "version": version, "aliases": aliases, "spec": {"precision": "fp32"},
        "held": {"size_bytes": 2**20}, "quality": {"accuracy": 0.97}, "run": None, "source": "here",
    }
    for version, aliases in (("2", []), ("1", ["champion"]))
]  # fmt: skip


def test_alias_moves_after_a_confirmation(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def lab(words: list[str], limit_s: float) -> tuple[str, bool]:
        asked.append(words)
        return (json.dumps({"versions": VERSIONS}), False) if words[0] == "list" else ("", False)

    monkeypatch.setattr(registering, "_lab", lab)
    opened(app, o_part="Your traffic")
    app.session_state["o_registry"] = True
    app.run()
    app.button(key="o_alias_champion").click().run()
    assert "goes from version 1 to version 2" in words(app) and "accuracy 0.97" in words(app)
    assert [words for words in asked if words[0] != "list"] == []  # nothing moved yet
    app.button(key="o_move_alias").click().run()
    assert ["promote", "digits", "2", "--instead-of", "1"] in asked
    assert "Done." in words(app)


def test_registry_that_cannot_be_asked_says_why(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registering, "_lab", lambda words, limit_s: ("MLflow's database was locked", True))
    opened(app, o_part="Your traffic")
    app.session_state["o_registry"] = True
    app.run()
    assert "database was locked" in words(app) and not app.button(key="o_ask_again").disabled
