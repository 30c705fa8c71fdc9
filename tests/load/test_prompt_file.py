"""Prompts of one's own: each form that other load generators have, and each mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.errors import InputError
from lab.load.payload import pool, requests_for
from lab.load.prompt_file import Prompt, read
from lab.spec import ClosedLoop, ModelSpec, Workload

LLM = ModelSpec(name="llm")
ENTRIES: list[dict[str, Any]] = [
    {"prompt": "vLLM's", "output_tokens": 7},
    {"text": "AIPerf's", "output_length": 8, "session_id": "x"},
    {"text_input": "perf_analyzer's", "max_tokens": 9},
    {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "a chat's"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "in parts"}, {"type": "image_url"}]}]},
    {"conversations": [{"from": "human", "value": "ShareGPT's"}, {"from": "gpt", "value": "no"}]},
    {"timestamp": 12, "input_length": 5, "output_length": 6, "hash_ids": [1]},
]
FOUND = (
    Prompt("vLLM's", None, 7),
    Prompt("AIPerf's", None, 8),
    Prompt("perf_analyzer's", None, 9),
    Prompt("a chat's"),
    Prompt("in parts"),
    Prompt("ShareGPT's"),
    Prompt(None, 5, 6),
)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps(entry) for entry in ENTRIES) + "\n\n",
        json.dumps(ENTRIES, indent=1),
        json.dumps({"data": ENTRIES}),
    ],
    ids=["lines", "list", "data"],
)
def test_each_form_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    assert read(path) == FOUND


def test_a_text_file_holds_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("first\n\n  second {}\n")
    assert read(path) == (Prompt("first"), Prompt("  second {}"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\nnot json\n', "line 2 is no JSON: not json"),
        ('{"prompt": "a"}\n[1]\n', r"entry 2 is no object: \[1\]"),
        ('{"question": "a"}', "entry 1 has no words to send"),
        ('{"prompt": ["a"]}', "entry 1 has no words to send"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "entry 1 has no words"),
        ('{"prompt": "\\ud800"}', "entry 1 holds half of a surrogate pair"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens 0; allowed: 1 to"),
        ('{"input_length": "many"}', 'input_length "many"; allowed: 1 to'),
        ('{"prompt": "a", "output_tokens": true}', "output_tokens true; allowed"),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        read(path)
    assert "\n" not in str(error.value) and "own.json" in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "binary")
    with pytest.raises(InputError, match="is a pipe or device; allowed: a file"):
        read(Path("/dev/zero"))
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["own.TXT", "own.txt"])
def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("one\ntwo\n", encoding="utf-8-sig")
    assert [prompt.text for prompt in read(tmp_path / name)] == ["one", "two"]


def test_they_are_sent_in_order_and_over_again_with_their_own_lengths(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(entry) for entry in ENTRIES))
    asked = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, prompts=str(path), output_tokens=64)
    made = requests_for(LLM, asked, 9)
    texts = [request["text_input"].item().decode() for request in made]
    assert texts[:6] == [prompt.text for prompt in FOUND[:6]] and texts[7:] == texts[:2]
    assert len(texts[6].split()) == 4  # prose of five tokens: three quarters of a word each
    wishes = [json.loads(request["sampling_parameters"].item())["max_tokens"] for request in made]
    assert wishes == [7, 8, 9, 64, 64, 64, 6, 7, 8]
    assert pool(LLM, asked) == 32  # as many as there may be workers
