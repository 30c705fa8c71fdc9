"""Folders whose files are broken, each told with the file, what is wrong and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lab import home
from lab.errors import FetchError, InputError
from lab.serve import llama_weights, weight_files, weights
from lab.spec import ModelSpec

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    """A whole folder, to be broken."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "tiny"))


def cut(name: str, bytes_left: int) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:bytes_left])

    return broken


def written(name: str, content: bytes | str) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return broken


def changed(**fields: object) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return broken


@pytest.mark.parametrize(
    ("broken", "file", "words"),
    [
        (cut(WEIGHTS, 5000), WEIGHTS, "cut short: 5,000 bytes, by its header "),
        (cut(WEIGHTS, 100), WEIGHTS, "no safetensors file, or its header is broken (100 bytes)"),
        (cut(WEIGHTS, 0), WEIGHTS, "no safetensors file"),
        (written(WEIGHTS, "<html>404</html>" * 100), WEIGHTS, "no safetensors file"),
        (written(WEIGHTS, b"\x05\0\0\0\0\0\0\0[1,2]"), WEIGHTS, "no safetensors file"),
        (
            written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            WEIGHTS,
            "a pointer of Git LFS",
        ),
        (cut("config.json", 40), "config.json", "no JSON, or cut short"),
        (written("config.json", b"\xff\xfe\x00"), "config.json", "no JSON, or cut short"),
        (written("config.json", "[1]"), "config.json", "a JSON list, where an object is expected"),
        (cut("tokenizer.json", 40), "tokenizer.json", "no JSON, or cut short"),
        (written("tokenizer.json", "{}"), "tokenizer.json", "no tokenizer"),
        (written("generation_config.json", "{"), "generation_config.json", "no JSON"),
        (
            written(INDEX, '{"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}'),
            INDEX,
            "names 2 files, of which model-1-of-2.safetensors, model-2-of-2.safetensors is not there",
        ),
        (written(INDEX, '{"weight_map": {"nothing.weight": "model.safetensors"}}'), WEIGHTS, "holds no nothing.weight"),
        (written(INDEX, "{}"), INDEX, "no field weight_map"),
        (changed(hidden_size="64"), "config.json", "a field is of a wrong kind"),
        (changed(num_attention_heads=0), "config.json", "a field is of a wrong kind"),
        (changed(vocab_size=77), "tiny", "model.embed_tokens.weight has the shape"),
        (changed(num_hidden_layers=1), "tiny", "more layers than config.json's num_hidden_layers 1"),
    ],
)
def test_a_broken_file_is_one_line_with_its_name(
    folder: Path, broken: Callable[[Path], None], file: str, words: str
) -> None:
    broken(folder)
    with pytest.raises(InputError) as caught:
        llama_weights.check_named(str(folder))
    said = str(caught.value)
    assert said.startswith("model.weights ") and "\n" not in said
    assert words in said
    assert file in said


def test_what_the_user_copied_is_copied_again_and_what_the_lab_made_is_made_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(WEIGHTS, 5000)(folder)
    with pytest.raises(InputError, match=r"; copy or save the model again$"):
        llama_weights.check_named(str(folder))
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    own = tmp_path / "models" / "SmolLM2-135M-Instruct"
    shutil.copytree(folder, own)
    with pytest.raises(InputError, match=rf"; remove {own}, and it is made anew$"):
        llama_weights.prepare()


def test_a_folder_of_shards_is_whole_when_all_are_there(folder: Path) -> None:
    shards = {"model-1.safetensors": {"a": [2, 3]}, "model-2.safetensors": {"b": [4]}}
    (folder / WEIGHTS).unlink()
    for name, held in shards.items():
        save_file({tensor: torch.zeros(shape) for tensor, shape in held.items()}, folder / name)
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {tensor: name for name, held in shards.items() for tensor in held}})
    )
    assert weight_files.check_folder(folder) == {"a": [2, 3], "b": [4]}


def test_digits_whose_file_was_cut_short_count_as_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    digits = ModelSpec(name="digits")
    place = weights.folder(digits)
    assert place is not None
    place.mkdir(parents=True)
    save_file({"a": torch.zeros(100)}, place / "weights.safetensors")
    assert weights.is_ready(digits)
    cut("weights.safetensors", 200)(place)
    assert not weights.is_ready(digits)


def test_an_embedder_that_is_damaged_says_what_to_remove(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    embedder = ModelSpec(name="embedder")
    place = weights.folder(embedder)
    assert place is not None
    shutil.copytree(folder, place)
    (tmp_path / "models" / "embedder" / home.MARK).write_text(weights.EMBEDDER.sha256)
    weights.prepare(embedder)
    cut(WEIGHTS, 5000)(place)
    with pytest.raises(
        FetchError, match=rf"{WEIGHTS}: cut short: .*; remove {tmp_path}/models/embedder, and it is fet"
    ):
        weights.prepare(embedder)
