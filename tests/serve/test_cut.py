"""Against the tokenizer itself, on texts that it takes whole."""

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from lab.serve import cut, weights
from lab.serve.cut import Cut
from lab.spec import ModelSpec

EMBEDDER = ModelSpec(name="embedder")


@pytest.fixture(scope="module")
def tokenizer():
    weights.prepare(EMBEDDER)
    found = Tokenizer.from_file(str(weights.folder(EMBEDDER) / "tokenizer.json"))
    found.no_truncation()
    return found


def test_the_limit_is_the_models():
    text = (Path(weights.__file__).parent / "models" / "embedder.py").read_text()
    assert re.search(r"^MAX_TOKENS = (\d+)$", text, re.MULTILINE)[1] == str(cut.EMBEDDER_TOKENS)


def test_a_long_text_is_counted_in_pieces_as_if_whole(tokenizer, monkeypatch):
    text = "Wächter, naïve café; " + "antidisestablishmentarianism is not e.g. 3.14 " * 40 + "x" * 300 + " end"
    whole = len(tokenizer.encode(text).ids)
    for piece in (1, 7, 100, 10**6):
        monkeypatch.setattr(cut, "PIECE", piece)
        assert Cut.of(EMBEDDER).tokens([text, "", "one"]) == [whole, 2, 3]


def test_what_is_beyond(tokenizer):
    counted = Cut.of(EMBEDDER)
    tokens = counted.tokens(["word " * 254, "word " * 255, "word " * 1000])
    assert tokens == [256, 257, 1002]
    assert [counted.beyond(count) for count in tokens] == [0, 1, 746]


def test_a_model_that_drops_nothing_has_none():
    assert Cut.of(ModelSpec(name="digits")) is None


def test_in_words(tokenizer):
    config = {"parameters": {"family": {"string_value": "embedder"}}}
    assert cut.told(config, ["word " * 260]) == (
        "The model reads 256 tokens of a text: of the text the last 6 are in no answer."
    )
    assert "of 2 of 3 texts the last 7 are" in cut.told(config, ["word " * 260, "short", "word " * 255])
    assert cut.told(config, ["short"]) == cut.told({}, ["word " * 260]) == ""
