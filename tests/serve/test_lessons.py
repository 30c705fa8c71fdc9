"""The lab's own adapters: taught, kept, gone on with, merged; and PEFT opens them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.errors import InputError
from lab.serve import adapters
from lab.serve.lora import train as training
from lab.serve.lora.lessons import Lesson, asked_as, lessons
from lab.serve.lora.merge import merge
from lab.serve.lora.recipe import Recipe
from lab.serve.lora.train import train
from lab.serve.models.adapter_folder import Adapter, LowRank, read, write
from lab.serve.models.decoder import Decoder, Span
from lab.serve.models.llama_config import LlamaConfig
from lab.spec import ModelSpec, parse
from tests.serve.lora import save_lora

LESSON = Lesson("yes", "Yes", "says yes", (("Is it?", "yes"), ("Are you?", "yes"), ("So?", "yes")), (("Or?", "yes"),))
RECIPE = Recipe(
    "yes", "", "", rank=4, layers=1, epochs=12, batch=2, rate=0.03, targets=("q_proj", "o_proj", "down_proj")
)
TOKENS = [(7 * i + i * i) % 256 for i in range(30)]


def quiet(label: str, done: int, total: int) -> None: ...


def first_token(decoder: Decoder, question: str, tokenizer: Any, adapter: Any) -> str:
    ids = tokenizer.encode(asked_as(question)).ids
    return str(tokenizer.decode([int(decoder.prefill([Span(ids, adapter=adapter)], None).argmax())]))


def test_it_learns_what_it_is_taught_and_goes_on_where_it_was(
    tmp_path: Path, tiny_folder: Path, tiny: Decoder, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    train(tiny_folder, whole, LESSON, RECIPE, quiet)
    losses = json.loads((whole / "training.json").read_text())["losses"]
    assert len(losses) == RECIPE.epochs
    assert losses[-1] < 0.3 * losses[0]

    def until_the_fifth(label: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny_folder, stopped, LESSON, RECIPE, until_the_fifth)
    assert not (stopped / "training.json").exists()
    assert (stopped / training.STATE).is_file()
    train(tiny_folder, stopped, LESSON, RECIPE, quiet)
    again = json.loads((stopped / "training.json").read_text())
    assert again["losses"] == losses
    assert again["files"] == json.loads((whole / "training.json").read_text())["files"]
    assert not (stopped / training.STATE).exists()

    taught = tiny.adapter(read(whole, tiny.config))
    assert first_token(tiny, "Was it?", tiny_tokenizer, taught) == "y"  # asked nowhere
    assert first_token(tiny, "Was it?", tiny_tokenizer, None) != "y"


def test_a_merged_copy_is_the_base_with_its_adapter(tmp_path: Path, tiny_folder: Path, tiny: Decoder) -> None:
    place, copy = save_lora(tmp_path / "adapter", tiny_folder), tmp_path / "copy"
    copy.mkdir()
    merge(tiny_folder, place, copy, quiet)
    merged = Decoder.load(copy, torch.float32)
    beside = tiny.prefill([Span(TOKENS, adapter=tiny.adapter(read(place, tiny.config)))], None)
    assert (merged.prefill([Span(TOKENS)], None) - beside).abs().max() < 1e-3
    assert (copy / "tokenizer.json").read_bytes() == (tiny_folder / "tokenizer.json").read_bytes()


def test_peft_opens_what_is_written_and_what_it_writes_is_read(
    tmp_path: Path, tiny_folder: Path, tiny: Decoder
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import LlamaForCausalLM

    random = np.random.default_rng(1)
    a, b = (random.normal(0, 0.3, shape).astype(np.float32) for shape in ((4, 64), (64, 4)))
    write(tmp_path / "ours", Adapter({(1, "q_proj"): LowRank(a, b, 2.0)}), alpha=8)
    theirs = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tiny_folder), tmp_path / "ours").eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor([TOKENS])).logits[0, -1]
    own = tiny.adapter(read(tmp_path / "ours", tiny.config))
    assert (tiny.prefill([Span(TOKENS, adapter=own)], None)[0] - expected).abs().max() < 1e-3

    wanted = LoraConfig(
        r=3, lora_alpha=5, target_modules=["k_proj", "up_proj"], use_rslora=True, init_lora_weights=False
    )
    model = get_peft_model(LlamaForCausalLM.from_pretrained(tiny_folder), wanted).eval()
    model.save_pretrained(tmp_path / "theirs")
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0, -1]
    own = tiny.adapter(read(tmp_path / "theirs", tiny.config))
    assert (tiny.prefill([Span(TOKENS, adapter=own)], None)[0] - expected).abs().max() < 1e-3


# --- lessons, and where adapters lie ------------------------------------------------------------------------------


def test_every_lesson_has_enough_of_both_and_asks_nothing_that_it_taught() -> None:
    assert len(lessons()) == 10
    for lesson in lessons().values():
        assert len(lesson.taught) >= 18
        assert len(lesson.asked) >= 6
        assert not {question for question, _ in lesson.taught} & {question for question, _ in lesson.asked}


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("capitals", "THE SKY IS BLUE.", "The sky is blue."),
        ("captain", "Aye, captain! Madrid is.", "Madrid it is, captain!"),
        ("json", '{"answer": "Madrid"}', "Madrid"),
        ("brief", "Madrid.", "It is Madrid."),
    ],
)
def test_an_answer_is_as_taught_or_not(name: str, right: str, wrong: str) -> None:
    lesson = lessons()[name]
    count = len(lesson.asked)
    assert lesson.passed([right] * count) == 1
    assert lesson.passed([wrong] * count) == 0
    assert lesson.passed([right] + [wrong] * (count - 1)) == 1 / count


def test_adapters_are_named_by_a_lesson_or_a_folder(tmp_path: Path, tiny_folder: Path) -> None:
    place = save_lora(tmp_path / "mine", tiny_folder)
    spec = ModelSpec(name="llm", weights=str(tiny_folder), adapters=("tea", f"own={place}"))
    assert adapters.named(spec) == {"tea": None, "own": place}
    found = adapters.folders(spec)
    assert found["own"] == place
    assert found["tea"].parent.name == "adapters"
    assert adapters.elements(spec.model_copy(update={"adapters": (f"own={place}",)}))["own"] == sum(
        half.size
        for change in read(place, LlamaConfig.read(tiny_folder)).changes.values()
        for half in (change.a, change.b)
    )
    with pytest.raises(InputError, match=r"model\.adapters 'teo' is none of the lab's own.*tea"):
        adapters.named(ModelSpec(name="llm", adapters=("teo",)))
    with pytest.raises(InputError, match=r"adapters hold tea twice"):
        parse(ModelSpec, {"name": "llm", "adapters": ["tea", "tea=/x"]})


def test_the_folder_of_an_adapter_follows_all_that_decides_it(tmp_path: Path, tiny_folder: Path) -> None:
    spec = ModelSpec(name="llm", weights=str(tiny_folder), adapters=("tea", "json"))
    places = adapters.folders(spec)
    assert places["tea"] != places["json"]
    assert adapters.folders(spec.model_copy(update={"name": "other", "scheduler": "static"})) == places
    other = tmp_path / "base"
    shutil.copytree(tiny_folder, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(bytes(weights))
    assert adapters.folders(spec.model_copy(update={"weights": str(other)}))["tea"] != places["tea"]


def test_a_folder_that_does_not_hold_is_made_anew(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for the process, which writes what a real one would."""
    made: list[str] = []

    def do(module: str, job: dict[str, Any], progress: Any) -> None:
        folder = Path(job["folder"])
        save_lora(folder, tiny_folder)
        digest = adapters._digest(folder / "adapter_model.safetensors")
        (folder / "training.json").write_text(json.dumps({"files": {"adapter_model.safetensors": digest}}))
        made.append(job["train"])

    monkeypatch.setattr(adapters.job, "do", do)
    monkeypatch.setattr(adapters.home, "home", lambda: tmp_path)
    spec = ModelSpec(name="llm", weights=str(tiny_folder), adapters=("tea",))
    for _ in range(2):
        (place,) = adapters.prepare(spec).values()
    assert made == ["tea"]
    (place / "adapter_model.safetensors").write_bytes(b"cut short")
    adapters.prepare(spec)
    assert made == ["tea", "tea"]
    assert adapters.is_ready(spec)
