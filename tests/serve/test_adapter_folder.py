"""PEFT's adapter folder, read and written: what is wrong is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.serve.models.adapter_folder import Adapter, LowRank, read, write
from lab.serve.models.llama_config import LlamaConfig
from tests.serve.lora import save_lora

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def config(tiny_folder: Path) -> LlamaConfig:
    return LlamaConfig.read(tiny_folder)


def test_what_is_read_is_what_is_stored(tmp_path: Path, tiny_folder: Path, config: LlamaConfig) -> None:
    folder = save_lora(tmp_path, tiny_folder, rank=4, alpha=8, targets=("q_proj", "down_proj"), dtype=torch.bfloat16)
    adapter, stored = read(folder, config), load_file(folder / "adapter_model.safetensors")
    assert adapter.targets == ["q_proj", "down_proj"]
    assert sorted(adapter.changes) == [(0, "down_proj"), (0, "q_proj"), (1, "down_proj"), (1, "q_proj")]
    change = adapter.changes[0, "q_proj"]
    assert change.scale == 2.0
    assert np.array_equal(change.a, stored[f"{Q0}.lora_A.weight"].float().numpy())
    assert np.array_equal(change.b, stored[f"{Q0}.lora_B.weight"].float().numpy())
    assert np.allclose(change.merged(), 2.0 * change.b.astype(float) @ change.a, rtol=1e-5, atol=1e-5)


def test_every_way_to_a_scale(tmp_path: Path, tiny_folder: Path, config: LlamaConfig) -> None:
    """alpha / r, alpha / √r, and what patterns say of single modules, by the end of their names."""
    fields: dict[str, Any] = {"rank": 4, "alpha": 6, "targets": ("q_proj", "v_proj")}
    plain = read(save_lora(tmp_path / "a", tiny_folder, **fields), config)
    assert {change.scale for change in plain.changes.values()} == {1.5}
    stable = read(save_lora(tmp_path / "b", tiny_folder, **fields, use_rslora=True), config)
    assert {change.scale for change in stable.changes.values()} == {3.0}
    pattern = {"alpha_pattern": {"layers.1.self_attn.v_proj": 2, "q_proj": 8, "_proj": 100}}
    some = read(save_lora(tmp_path / "c", tiny_folder, **fields, **pattern), config)
    found = {place: change.scale for place, change in some.changes.items()}
    assert found == {(0, "q_proj"): 2, (1, "q_proj"): 2, (0, "v_proj"): 1.5, (1, "v_proj"): 0.5}


def test_some_layers_only_and_a_pattern_of_targets(tmp_path: Path, tiny_folder: Path, config: LlamaConfig) -> None:
    folder = save_lora(tmp_path, tiny_folder, targets=("q_proj",), layers_to_transform=[1])
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({k: v for k, v in tensors.items() if "layers.1." in k}, folder / "adapter_model.safetensors")
    assert list(read(folder, config).changes) == [(1, "q_proj")]
    changed(folder, target_modules=".*q_proj", layers_to_transform=None)
    assert list(read(folder, config).changes) == [(1, "q_proj")]


def test_what_is_written_is_peft_s_layout_and_reads_back(tmp_path: Path, config: LlamaConfig) -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(size=(8, 64)).astype(np.float32), random.normal(size=(64, 8)).astype(np.float32)
    adapter = Adapter({(layer, "q_proj"): LowRank(a + layer, b, 2.0) for layer in range(2)}, "some/base")
    write(tmp_path, adapter, alpha=16)
    document = json.loads((tmp_path / "adapter_config.json").read_text())
    asked = ("peft_type", "task_type", "r", "lora_alpha", "target_modules", "bias", "base_model_name_or_path")
    assert [document[field] for field in asked] == ["LORA", "CAUSAL_LM", 8, 16, ["q_proj"], "none", "some/base"]
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert set(stored) == {f"{Q0.replace('.0.', f'.{n}.')}.lora_{half}.weight" for n in range(2) for half in "AB"}
    assert torch.equal(stored[f"{Q0}.lora_A.weight"], torch.from_numpy(a))
    back = read(tmp_path, config)
    assert back.base == "some/base"
    assert np.array_equal(back.changes[1, "q_proj"].a, a + 1)
    with pytest.raises(ValueError, match="alpha 8 and rank 8"):
        write(tmp_path, adapter, alpha=8)


# --- refusals -----------------------------------------------------------------------------------------------------


def changed(folder: Path, **fields: Any) -> None:
    place = folder / "adapter_config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **fields}))


def tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    place = folder / "adapter_model.safetensors"
    found = load_file(place)
    change(found)
    save_file(found, place)


FIELDS = [
    ({"r": 0}, "r 0; allowed: a whole number from 1"),
    ({"r": True}, "r True; allowed: a whole number"),
    ({"r": None}, "r None; allowed: a whole number"),
    ({"lora_alpha": -1}, "lora_alpha -1; allowed: a number above 0"),
    ({"lora_alpha": math.inf}, "lora_alpha inf; allowed"),
    ({"rank_pattern": {"q_proj": 0}}, "rank_pattern of q_proj 0; allowed"),
    ({"rank_pattern": [4]}, "rank_pattern .4.; allowed: an object"),
    ({"peft_type": "IA3"}, "peft_type 'IA3' is not served; allowed: 'LORA'"),
    ({"use_dora": True}, "use_dora True is not served; allowed: False"),
    ({"bias": "all"}, "bias 'all' is not served; allowed: 'none'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save .'lm_head'. is not served"),
    (
        {"target_modules": ["q_proj", "lm_head"]},
        "target module 'lm_head' is none that is served; allowed: q_proj, k_proj",
    ),
    ({"target_modules": []}, r"target_modules \[\]; allowed: some of q_proj"),
    ({"target_modules": ["q_proj"]}, "v_proj.lora_A.weight belongs to no projection in target_modules"),
    (
        {"target_modules": ["q_proj", "k_proj", "v_proj"]},
        "k_proj.lora_A.weight is missing in adapter_model.safetensors",
    ),
    ({"layers_to_transform": [2]}, "layer 2 of layers_to_transform; the base has 0 to 1"),
    ({"r": 8}, r"q_proj.lora_A.weight has the shape \[4, 64\]; allowed: \[8, 64\], by rank 8"),
]


@pytest.mark.parametrize(("fields", "said"), FIELDS, ids=[said[:20] for _, said in FIELDS])
def test_a_field_that_would_change_the_answers_is_refused(
    tmp_path: Path, tiny_folder: Path, config: LlamaConfig, fields: dict[str, Any], said: str
) -> None:
    folder = save_lora(tmp_path / "adapter", tiny_folder, targets=("q_proj", "v_proj"))
    read(folder, config)
    changed(folder, **fields)
    with pytest.raises(ValueError, match=f"^adapter {folder}: .*{said}") as refused:
        read(folder, config)
    assert "\n" not in str(refused.value)


WRONG: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
    (lambda t: t.pop(f"{Q0}.lora_B.weight"), "q_proj.lora_B.weight is missing"),
    (lambda t: t[f"{Q0}.lora_A.weight"].fill_(math.nan), "q_proj.lora_A.weight holds NaN or infinity"),
    (lambda t: t[f"{Q0}.lora_A.weight"][0, 0].fill_(math.inf), "q_proj.lora_A.weight holds NaN or infinity"),
    (lambda t: t.update({f"{Q0}.lora_A.weight": torch.zeros(4, 32)}), r"has the shape \[4, 32\]; allowed: \[4, 64\]"),
    (
        lambda t: t.update({f"{Q0}.lora_A.weight": torch.zeros(4, 64, dtype=torch.int8)}),
        "is I8; allowed: F32, F16, BF16",
    ),
    (
        lambda t: t.update({f"{Q0}.lora_magnitude_vector": torch.zeros(64)}),
        "lora_magnitude_vector is no low-rank matrix of q_proj, k",
    ),
    (lambda t: t.clear(), "q_proj.lora_A.weight is missing"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said[:24] for _, said in WRONG])
def test_a_wrong_tensor_is_refused(
    tmp_path: Path, tiny_folder: Path, config: LlamaConfig, change: Any, said: str
) -> None:
    folder = save_lora(tmp_path / "adapter", tiny_folder, targets=("q_proj", "v_proj"))
    tensors(folder, change)
    with pytest.raises(ValueError, match=f"^adapter {folder}: .*{said}"):
        read(folder, config)


def test_the_adapter_of_another_base_is_refused(tmp_path: Path, tiny_folder: Path, config: LlamaConfig) -> None:
    other = tmp_path / "base"
    other.mkdir()
    shape = json.loads((tiny_folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**shape, "hidden_size": 128}))
    wider = save_lora(tmp_path / "wider", other)
    with pytest.raises(
        ValueError, match=r"has the shape \[4, 128\]; allowed: \[4, 64\], by rank 4 and this base's q_proj"
    ):
        read(wider, config)
    (other / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 3}))
    deeper = save_lora(tmp_path / "deeper", other)
    for targets in (["q_proj", "up_proj"], ".*_proj"):
        changed(deeper, target_modules=targets)
        with pytest.raises(ValueError, match="it changes layer 2; the base has 0 to 1"):
            read(deeper, config)


def test_pickles_are_not_read(tmp_path: Path, tiny_folder: Path, config: LlamaConfig) -> None:
    folder = save_lora(tmp_path, tiny_folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"adapter_model\.bin is a pickle, which is never read"):
        read(folder, config)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ValueError, match=r"no adapter_model\.safetensors beside"):
        read(folder, config)


def test_files_that_are_none(tmp_path: Path, tiny_folder: Path, config: LlamaConfig) -> None:
    with pytest.raises(ValueError, match=r"no adapter_config\.json; allowed: a folder that PEFT"):
        read(tmp_path, config)
    folder = save_lora(tmp_path, tiny_folder)
    whole = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors cannot be read"):
        read(folder, config)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"adapter_config\.json is no JSON \("):
        read(folder, config)
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"adapter_config\.json is no JSON object"):
        read(folder, config)
