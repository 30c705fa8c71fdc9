"""A tiny Llama with random weights, saved by transformers, which is the independent truth for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.once import once

END = 256
"""The tiny tokenizer has a token a byte and this end token."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tiny_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.llm)


def save_llama(folder: Path, **changes: Any) -> Any:
    """Writes a random Llama into `folder` and returns transformers' model of it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rope_theta": 500.0,
        "initializer_range": 0.25,  # wide enough that logits are far apart
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": None,
    }
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # transformers starts them at 1, which would hide a forgotten or swapped one
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return model


def relative_rms(a: Any, b: Any) -> float:
    """Root mean square of the difference of two tensors, as a fraction of b's own."""
    return float((a.float() - b.float()).norm() / b.float().norm())


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by one process of the tests: who needs the folder alone does without transformers, which take seconds."""
    return once(tmp_path_factory, "tiny-llama", _save_tiny)


def _save_tiny(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    save_llama(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def truth(tiny_folder: Path) -> Any:
    """transformers' model of the tiny folder."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_folder).eval()


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Any:
    """The lab's decoder of the same folder, fp32."""
    import torch

    from lab.serve.models.decoder import Decoder

    torch.set_num_threads(1)  # so small a model only waits for a second one
    return Decoder.load(tiny_folder, torch.float32)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> None:
    """The compiled decoder's code is there: whoever needs it first compiles it, outside of any test's time."""
    from lab.serve.models.compiled_decoder import CompiledDecoder

    once(tmp_path_factory, "kernels", lambda _: CompiledDecoder.load(tiny_folder))


@pytest.fixture(scope="session")
def compiled(tiny_folder: Path, kernels: None) -> Any:
    """The lab's compiled decoder of the same folder, bf16, by two threads."""
    from lab.serve.models.compiled_decoder import CompiledDecoder

    return CompiledDecoder.load(tiny_folder, threads=2)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
