"""Engines beside each other: what is asked of them, how their words are compared, and that one that fails is told."""

from __future__ import annotations

import pytest

from lab.commands.engines import lines
from lab.errors import InputError
from lab.run import engines
from lab.run.engines import Engine, agreement, answers
from lab.spec import ClosedLoop, ModelSpec, Workload
from tests.load.fakes.streams import Chunk, Story, openai_server


def test_an_engine_is_a_url_and_a_name() -> None:
    found = Engine.read("openai+http://127.0.0.1:8100/v1=meta/llama=x")
    assert (found.url, found.model) == ("openai+http://127.0.0.1:8100/v1=meta/llama", "x")
    assert Engine.read("grpc://h:8001=llm").name == "llm at h:8001"
    for wrong in ("llm", "=llm", "grpc://h:8001="):
        with pytest.raises(InputError, match="allowed is URL=MODEL"):
            Engine.read(wrong)


def test_words_are_compared_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_tokenizer", lambda: None)  # words stand for tokens
    first = ["a b c d", "e f g h", "i j k"]
    assert agreement(first, first) == {"equal": 3, "of": 3, "tokens": None}
    assert agreement(first, ["a b x d", "e f g h", "i"]) == {"equal": 1, "of": 3, "tokens": 2}


def test_an_openai_engine_is_asked_greedily_and_whole() -> None:
    story = Story(chunks=[Chunk(0, 1, "one"), Chunk(0, 1, " two")])
    with openai_server(story) as fake:
        engine = Engine("fake", f"openai+http://{fake.url}", "small")
        workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, protocol="openai")
        assert answers(engine, ModelSpec(name="llm"), workload) == ["one two"] * engines.QUESTIONS


def test_an_engine_that_failed_is_in_the_table_with_its_reason() -> None:
    figures = dict.fromkeys(engines.FIGURES)
    row = {"name": "gone", "run": None, "figures": figures, "error": "nobody listens there", "agreement": None}
    said = lines({"engines": [row], "questions": 8, "tokens": 32})
    assert said[1].startswith("gone") and "n/a" in said[1] and said[-1] == "gone: nobody listens there"
