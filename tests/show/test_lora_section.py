"""The section "Ten fine-tunes on one device": its form, and a finished run."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from lab.run import catalogue
from lab.run.plan import cell_blocks, settle, with_rate
from lab.serve.lora.lessons import lessons
from tests.show.synthetic_llm import CONFIG, MACHINE, LlmAuthor

pytestmark = pytest.mark.pages

PROJECT = Path(__file__).parents[2]
RUN = "20261130-020801-lora-done"
MIB = 2**20
NAMES = ("capitals", "tea")


def lora_run(run_id):
    """Two adapters of 1 MiB on a base of 500 MiB, and two copies of 480 MiB; adapters answer as taught."""
    levels = [{"adapters": []}, {"adapters": list(NAMES)}, {"adapters": list(NAMES), "merge_adapters": True}]
    experiment = settle(catalogue.experiment("lora"), [("model", levels)], quick=True)
    blocks = [with_rate(block, None) for block in cell_blocks(experiment)]
    author = LlmAuthor(experiment, run_id, seconds=sum(block.workload.duration_s + 10 for block in blocks))
    folder = author.folder
    folder.event("limits", weights=None, config=CONFIG, machine=MACHINE)
    folder.event("lora_base", model="llm", load_s=1.0, process_bytes=500 * MIB)
    for n, name in enumerate(NAMES, start=1):
        folder.event(
            "lora_adapter", name=name, bytes=MIB, predicted_bytes=MIB, load_s=0.02, process_bytes=(500 + n) * MIB
        )
        folder.event(
            "lora_copy", name=name, load_s=1.5, total_bytes=(20 + 480 * n) * MIB, predicted_bytes=500 * n * MIB
        )
        lesson = lessons()[name]
        questions = [question for question, _ in lesson.asked]
        folder.event(
            "lora_lesson",
            name=name,
            title=lesson.title,
            teaches=lesson.teaches,
            questions=questions,
            answers={"base": ["It is so."] * len(questions), "adapter": ["AS TAUGHT"] * len(questions)},
            passed={"base": 0.0, "adapter": 1.0},
        )
    for index, block in enumerate(blocks):
        author.llm_block(index, block)
    return author.end("done")


@pytest.fixture
def app(empty_home):
    return AppTest.from_file(str(PROJECT / "app.py"), default_timeout=60).run()


def words(app):
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def test_a_finished_run_opens_in_its_section_with_answers_side_by_side(app):
    lora_run(RUN)
    app.switch_page("pages/memory.py")
    app.query_params["run"] = RUN
    app.run()
    assert not app.exception
    said = words(app)
    assert "Ten fine-tunes on one device" in said
    assert "2 adapters on one base take 502 MiB" in said
    assert "Answers side by side" in said
    nodes = [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]
    alts = [node["alt"] for node in nodes if "alt" in node]
    assert any("2 full copies take 980 MiB" in alt for alt in alts)
    assert any("100 % by the adapters, 0 % by the base" in alt for alt in alts)
    (table,) = [frame.value for frame in app.table if "With the adapter" in frame.value]
    assert set(table["With the adapter"]) == {"AS TAUGHT"}


def test_the_form_takes_some_of_the_fine_tunes(app):
    app.switch_page("pages/memory.py")
    app.query_params["m_part"] = "Ten fine-tunes"
    app.run()
    assert not app.exception
    assert "Ten fine-tunes on one device" in words(app)
