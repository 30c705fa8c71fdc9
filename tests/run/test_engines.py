"""Engines beside each other: what is asked of them, in which order, what is kept of it, and that one that fails is
told. The engines are scripted servers, whose words and times are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.__main__ import main
from lab.errors import InputError, RunError, ServerError
from lab.run import engines, preflight, results, runner
from lab.run.beside import agreement, pieces, told
from lab.run.catalogue import experiment, single
from lab.run.engines import OWN, Engine
from lab.run.folder import RunFolder, new_run_id
from lab.run.plan import settle
from lab.run.text import lines
from lab.spec import Experiment
from tests.load.fakes.servers import free_port
from tests.load.fakes.streams import Chunk, Story, openai_server
from tests.load.test_torchserve import torchserve

SHORT: dict[str, Any] = {"workload.duration_s": 0.8, "workload.warmup_s": 0.1, "workload.output_tokens": 3}
FAST = [Chunk(0.00, 1, "one"), Chunk(0.01, 1, " two"), Chunk(0.02, 1, " three")]
SLOW = [Chunk(0.00, 1, "one"), Chunk(0.06, 1, " two"), Chunk(0.12, 1, " four")]


def asked(*levels: dict[str, Any], **more: Any) -> Experiment:
    settings = [("workload", list(levels)), ("judge.baseline", levels[0]), *(SHORT | more).items()]
    return settle(experiment("engines"), settings, quick=False)


def measured(chosen: Experiment) -> dict[str, Any]:
    folder = runner.create(chosen, new_run_id("engines"), quick=False, settings=[], url=None)
    runner.run(chosen, folder, stop=runner.Stop(), report=lambda line: None)
    return results.document(RunFolder.open(folder.run_id))


@pytest.fixture(scope="module")
def compared(lab_home: Path) -> Iterator[tuple[dict[str, Any], list[Story]]]:
    """A run of two engines of which the second takes six times as long, ends otherwise, and had 3 of the 7 tokens of
    each prompt in its prefix cache; and what each was asked."""
    stories = [Story(chunks=FAST), Story(chunks=SLOW, cached_tokens=3)]
    with openai_server(stories[0]) as fast, openai_server(stories[1]) as slow:
        levels = [Engine(f"openai+http://{fake.url}", "small").level() for fake in (fast, slow)]
        yield measured(asked(*levels)), stories


def test_an_engine_is_a_url_and_a_name() -> None:
    found = Engine.read("openai+http://127.0.0.1:8100/v1=meta/llama=x")
    assert (found.url, found.model) == ("openai+http://127.0.0.1:8100/v1=meta/llama", "x")
    assert Engine.read("grpc://h:8001=llm").level() == {
        "url": "grpc://h:8001",
        "protocol": "grpc",
        "served_model": "llm",
    }
    assert OWN.level() == {"url": None}
    for wrong in ("llm", "=llm", "grpc://h:8001="):
        with pytest.raises(InputError, match="allowed is URL=MODEL"):
            Engine.read(wrong)


def test_an_engine_that_is_not_there_is_one_line_before_there_is_a_run() -> None:
    with pytest.raises(ServerError, match="nobody listens there"):
        Engine(f"openai+http://127.0.0.1:{free_port()}", "small").check()
    with openai_server(Story()) as fake, pytest.raises(InputError, match="has none of that name"):
        Engine(f"openai+http://{fake.url}", "large").check()


@pytest.mark.processes
@pytest.mark.processes
def test_both_engines_are_asked_the_same_prompts_in_turns(compared: tuple[dict[str, Any], list[Story]]) -> None:
    document, stories = compared
    asked_of = [[r["prompt"] for r in story.requests if r.get("stream")] for story in stories]
    fewer = min(map(len, asked_of))
    # The first users of a repeat ask together, in any order; a faster engine gets further in one.
    assert sorted(asked_of[0][:4]) == sorted(asked_of[1][:4]) and fewer > 8
    order = [(cell["repeat"], cell["factors"]["workload"]["url"]) for cell in document["cells"]]
    first, second = (row["url"] for row in document["engines"]["rows"])
    assert order == [(0, first), (0, second), (1, second), (1, first)]


@pytest.mark.processes
def test_figures_words_and_ratio_stand_in_one_run(compared: tuple[dict[str, Any], list[Story]]) -> None:
    document, _ = compared
    assert document["state"] == "done" and document["experiment"] == "engines"
    fast, slow = document["engines"]["rows"]
    # No chunk is sent before its time; how much later a busy machine sends it, nobody knows.
    assert 0.0099 <= fast["figures"]["itl_mean_s"] < slow["figures"]["itl_mean_s"] >= 0.0599
    assert fast["blocks"] == slow["blocks"] == 2 and fast["figures"]["output_tokens_mean"] == 3
    assert fast["texts"] == ["one two three"] * engines.QUESTIONS and fast["agreement"] is None
    assert slow["agreement"] == {"equal": 0, "of": 8, "words": 2}
    assert len(document["engines"]["questions"]) == engines.QUESTIONS
    text = document["engines"]["text"]
    assert text == document["verdict"]["text"] and "With 4 in flight, small at" in text and "×" in text
    assert "gives 0 of 8 answers in the same words" in text and "the other 8 part after 2 words" in text
    effect = next(e for e in document["verdict"]["effects"] if e["metric"] == "output_tokens_per_s")
    assert effect["verdict"] == "lower" and effect["ratio"] < 0.8


@pytest.mark.processes
def test_nothing_of_the_labs_own_is_told_of_another_engine(compared: tuple[dict[str, Any], list[Story]]) -> None:
    document, _ = compared
    for cell in document["cells"]:
        assert (cell["format"], cell["ledger"], cell["floor"]) == (None, None, None)
        assert cell["summary"]["memory_peak_bytes"] is None and cell["summary"]["step_mean_s"] is None


@pytest.mark.processes
def test_what_a_prefix_cache_had_of_the_prompts_is_marked_where_it_is_told(
    compared: tuple[dict[str, Any], list[Story]],
) -> None:
    document, _ = compared
    for cell in document["cells"]:
        slow = cell["factors"]["workload"]["url"] == document["engines"]["rows"][1]["url"]
        assert cell["summary"]["prompt_cached_fraction"] == (pytest.approx(3 / 7) if slow else None)
        said = [problem["text"] for problem in cell["summary"]["problems"] if problem["code"] == "cache_warm"]
        assert len(said) == slow and all(text.startswith("42.9 % of the prompts' tokens") for text in said)


def test_one_prompt_is_called_and_answered_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(chunks=FAST)
    with openai_server(story) as fake:
        url = f"openai+http://{fake.url}/v1/chat/completions"
        assert main(["call", "--url", url, "--model", "small", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["call", "--url", url, "--model", "small", "--shape", "X:1"]) == 2
        assert "is asked a prompt" in capsys.readouterr().err
        assert main(["call", "--url", url, "--model", "large"]) == 2
        assert "has none of that name" in capsys.readouterr().err
    (asked_once,) = story.requests
    assert asked_once["messages"][0]["content"] == found["prompt"] and asked_once["max_tokens"] == engines.ANSWER_TOKENS
    assert found["answer"] == "one two three" and found["seconds"] > 0


def test_an_answer_that_only_calls_a_tool_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": []}}]}
    monkeypatch.setattr(engines, "_post", lambda url, body: json.dumps(answer).encode())
    question = {"text_input": np.array([b"Why?"]), "sampling_parameters": np.array([b"{}"])}
    assert engines._of_http("http://127.0.0.1:1/v1/chat/completions", "openai", "small", question) == ""


@pytest.mark.processes
def test_the_terminal_has_a_row_an_engine(compared: tuple[dict[str, Any], list[Story]]) -> None:
    document, _ = compared
    printed = lines(document)
    start = next(n for n, line in enumerate(printed) if line.startswith("engine "))
    assert all("tok/s" in line for line in printed[start + 1 : start + 3])
    assert printed[start + 2].endswith("0 of 8, else the first 2")


@pytest.mark.processes
@pytest.mark.processes
def test_an_engine_that_fails_is_told_and_the_others_are_measured(lab_home: Path) -> None:
    story = Story(chunks=FAST)
    with openai_server(story) as fake:
        here, gone = f"openai+http://{fake.url}", f"openai+http://127.0.0.1:{free_port()}"
        document = measured(asked(Engine(here, "small").level(), Engine(gone, "small").level(), repeats=1))
    rows = document["engines"]["rows"]
    assert rows[0]["blocks"] == 1 and rows[1]["blocks"] == 0
    assert "nobody listens there" in rows[1]["error"]
    assert document["engines"]["text"].endswith(f"{rows[1]['name']} failed: {rows[1]['error'].rstrip('?')}.")


@pytest.mark.processes
def test_a_run_of_which_no_engine_is_there_fails_with_the_reason(lab_home: Path) -> None:
    levels = [Engine(f"openai+http://127.0.0.1:{free_port()}", name).level() for name in ("a", "b")]
    with pytest.raises(RunError, match=r"no engine can be asked; b at .*nobody listens there"):
        measured(asked(*levels))


@pytest.mark.processes
@pytest.mark.processes
def test_torchserve_counts_no_tokens_so_answers_are_compared(lab_home: Path) -> None:
    with openai_server(Story(chunks=FAST)) as fake, torchserve(pieces=("one", " two", " three")) as (other, _):
        levels = [Engine(f"openai+http://{fake.url}", "small"), Engine(f"torchserve+http://{other.url}", "llm")]
        document = measured(asked(*(engine.level() for engine in levels), repeats=1))
    row = document["engines"]["rows"][1]
    assert row["figures"]["output_tokens_per_s"] is None and row["figures"]["throughput_rps"] > 0
    text = document["engines"]["text"]
    assert "tokens are not counted by both, so answers are" in text and ".;" not in text
    assert row["agreement"] == {"equal": 8, "of": 8, "words": None}


@pytest.mark.processes
def test_of_somebody_elses_model_nothing_is_claimed(lab_home: Path) -> None:
    load = {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 0.3}
    chosen = single({"name": "llm"}, {**load, "protocol": "openai", "served_model": "small"})
    said: list[str] = []
    with openai_server(Story(chunks=FAST)) as fake:
        url = f"openai+http://{fake.url}"
        folder = runner.create(chosen, new_run_id("load"), quick=False, settings=[], url=url)
        runner.run(chosen, folder, stop=runner.Stop(), report=said.append, url=url)
    document = results.document(RunFolder.open(folder.run_id))
    assert document["cells"][0]["format"] is None and document["formats"] == {}
    assert any(": small, prompts of 64 tokens" in line for line in said)
    assert not any(word in line for line in said for word in ("bf16", "continuous", "KV cache"))


@pytest.mark.triton
def test_the_labs_engine_beside_itself_gives_the_same_words(triton_server: Any, tiny_folder: Path) -> None:
    """The second way to the same model goes by its URL, as to somebody else's Triton."""
    there = Engine(f"grpc://{triton_server.grpc_url}", "llm").level()
    own = {"weights": str(tiny_folder), "precision": "fp32", "max_request_tokens": 128}
    tiny = [(f"model.{field}", value) for field, value in own.items()]
    document = measured(asked(OWN.level(), there, **{"workload.prompt_tokens": 4, "repeats": 1}, **dict(tiny)))
    first, second = document["engines"]["rows"]
    assert first["name"] == "the lab's engine" and second["name"] == f"llm at {triton_server.grpc_url}"
    assert second["agreement"] == {"equal": 8, "of": 8, "words": None}
    own_cell, other_cell = document["cells"]
    assert own_cell["summary"]["step_mean_s"] and own_cell["format"] == "fp32"
    assert (other_cell["summary"]["step_mean_s"], other_cell["format"]) == (None, None)
    assert document["environment"]["triton"] == triton_server.version()
    triton_server.unload("llm")


def test_another_server_is_asked_in_this_experiment_alone() -> None:
    load = {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 1}
    with pytest.raises(InputError, match=r"workload\.url 'grpc://h:1': engines are compared by `lab engines"):
        preflight.check(single({"name": "llm"}, {**load, "url": "grpc://h:1"}))
    with pytest.raises(InputError, match=r"the server at openai\+http://h:1 speaks openai"):
        preflight.check(asked(OWN.level(), {"url": "openai+http://h:1"}))


@pytest.mark.parametrize("arguments", [[], ["--no-own", "--engine", "grpc://h:8001=llm"]])
def test_one_engine_is_no_comparison(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", *arguments]) == 2
    assert "one engine is no comparison" in capsys.readouterr().err


def test_words_are_compared_word_by_word() -> None:
    first = ["a b c d", "e f g h", "i j k"]
    assert agreement(first, first) == {"equal": 3, "of": 3, "words": None}
    assert agreement(first, ["a b x d", "e f g h", "i"]) == {"equal": 1, "of": 3, "words": 1.5}
    assert agreement(["a b"], ["a b c"]) == {"equal": 0, "of": 1, "words": 2}
    text = " two\n\nwords  and a tail \n"
    assert "".join(pieces(text)) == text and pieces("") == []


def test_lengths_that_differ_are_told() -> None:
    figures = dict.fromkeys(("output_tokens_per_s", "throughput_rps"), 10.0)
    row = {"level": {"url": "x"}, "error": None, "agreement": None, "texts": None}
    rows = [
        {**row, "name": "first", "figures": {**figures, "prompt_tokens_mean": 32.0, "output_tokens_mean": 64.0}},
        {**row, "name": "other", "figures": {**figures, "prompt_tokens_mean": 53.0, "output_tokens_mean": 64.5}},
    ]
    text = told(asked(OWN.level()), {"rows": rows, "against": None}, [])
    assert "Mind that other counts prompts of 53.0 tokens where first counts 32.0." in text and "answers of" not in text
    json.dumps(rows)


def test_tokens_of_answers_that_failed_are_told() -> None:
    figures = dict.fromkeys(("output_tokens_per_s", "throughput_rps", "prompt_tokens_mean", "output_tokens_mean"), 10.0)
    row = {"level": {"url": "x"}, "error": None, "agreement": None, "texts": None, "figures": figures}
    rows = [{**row, "name": "first", "unfinished_fraction": 0.01}, {**row, "name": "other", "unfinished_fraction": 0.4}]
    text = told(asked(OWN.level()), {"rows": rows, "against": None}, [])
    assert "40 % of the tokens of other are of answers that failed." in text and "tokens of first" not in text
