"""Prompts of exact length, counted again by the tokenizer; tokenizers of four kinds, trained here on the manual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lab.errors import InputError
from lab.load.prompts import prompts, sentences

SPECIAL = ["<s>", "<unk>"]
KINDS = ("byte level", "opened", "metaspace", "bytes")


def trained(kind: str) -> Any:
    """ "byte level": as GPT-2's and SmolLM2's. "opened": the same, with a token before each prompt, as Llama 3's.
    "metaspace": words with their space before them, the first one too, as Llama 2's. "bytes": a token a letter."""
    if kind == "bytes":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return tokenizer
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[1]))
    trainer: Any = trainers.BpeTrainer(vocab_size=3000, special_tokens=SPECIAL, show_progress=False)
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "opened":
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.train_from_iterator(sentences(), trainer)
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("tokenizers")
    for kind in KINDS:
        trained(kind).save(str(found / f"{kind}.json"))
    yield found


@pytest.mark.parametrize("kind", KINDS)
def test_each_prompt_has_the_tokens_that_were_asked_for(folder: Path, kind: str) -> None:
    path = folder / f"{kind}.json"
    lengths = (*range(2, 150), 700, 2000)
    count = Tokenizer.from_file(str(path))
    assert [len(count.encode(text).ids) for text in prompts(lengths, 0, path)] == list(lengths)


def test_no_two_prompts_share_their_first_token(folder: Path) -> None:  # nothing for a prefix cache to find
    path = folder / "byte level.json"
    count = Tokenizer.from_file(str(path))
    first = [count.encode(text).ids[0] for text in prompts((20,) * 300, 3, path)]
    assert len(set(first)) == 300


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_prompt_follows_seed_place_and_length_alone(folder: Path, with_tokenizer: bool) -> None:
    path = folder / "byte level.json" if with_tokenizer else None
    many = prompts(tuple(range(10, 110)), 5, path)
    assert prompts(tuple(range(10, 30)), 5, path) == many[:20]
    assert prompts((*range(10, 29), 500), 5, path)[:19] == many[:19]
    assert prompts(tuple(range(10, 110)), 6, path) != many


def test_without_a_tokenizer_a_token_is_three_quarters_of_a_word() -> None:
    texts = prompts((1, 4, 100, 1000), 0, None)
    assert [len(text.split()) for text in texts] == [1, 3, 75, 750]
    assert len({text.split()[0] for text in prompts((8,) * 1000, 0, None)}) == 1000


def test_a_prompt_is_the_manuals_prose() -> None:
    words = [word for word in " ".join(sentences()).split() if any(sign.isalnum() for sign in word)]
    round_trip = f" {' '.join(words)} {' '.join(words)} "
    for text in prompts((40,) * 50, 0, None):
        assert f" {text} " in round_trip


def test_a_length_that_no_prompt_has_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"prompt_tokens 1: .* makes 2"):  # one token opens, one is the word
        prompts((5, 1), 0, folder / "opened.json")


@pytest.mark.parametrize("text", [None, "{}", "not json"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read: .*; allowed"):
        prompts((5,), 0, path)
