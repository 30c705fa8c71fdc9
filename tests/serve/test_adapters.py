"""Adapters in both decoders and in the engine: as if merged, in any company, in every precision (P27)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.serve.models.adapter_folder import read
from lab.serve.models.compiled_decoder import CompiledDecoder
from lab.serve.models.decoder import Decoder, Span
from lab.serve.models.engine import Engine, Options, run_to_end
from lab.serve.models.engine_thread import EngineThread
from tests.serve.conftest import relative_rms, save_llama
from tests.serve.lora import ALL, merged, save_lora
from tests.serve.rounded_weights import save_rounded

pytestmark = pytest.mark.llm

TOKENS = [(7 * i + i * i) % 256 for i in range(100)]
LENGTHS = [1, 31, 33, 64]
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 8}
NAMES = (None, "a", "b", "some", "one")
M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""


@pytest.fixture(scope="module")
def folders(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of different rank and targets."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        "a": save_lora(root / "a", tiny_folder, seed=1),
        "b": save_lora(root / "b", tiny_folder, seed=2, rank=8, dtype=torch.bfloat16),
        "some": save_lora(root / "some", tiny_folder, seed=3, rank=3, targets=("v_proj", "up_proj", "down_proj")),
        "one": save_lora(root / "one", tiny_folder, seed=4, rank=1, targets=("o_proj",), use_rslora=True),
    }


@pytest.fixture(scope="module", params=["bf16", "int8", "int8_weight", "int4"])
def served(request: Any, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory, compiled: Any) -> CompiledDecoder:
    if request.param == "bf16":
        return CompiledDecoder.load(tiny_folder, threads=2)
    folder = save_rounded(tiny_folder, tmp_path_factory.mktemp("rounded"), request.param, group_size=16)
    return CompiledDecoder.load(folder, threads=2)


def adapter(decoder: Any, folder: Path | None) -> Any:
    return None if folder is None else decoder.adapter(read(folder, decoder.config))


@torch.inference_mode()
def reference(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0].float()


def all_ends(decoder: Any, tokens: list[int], own: Any) -> torch.Tensor:
    """Logits after the fifth and every later token, by a prompt of five and single tokens."""
    cache = decoder.cache(1, len(tokens))
    found = [decoder.prefill([Span(tokens[:5], adapter=own)], cache)]
    found += [decoder.decode([token], [5 + i], cache, [own]) for i, token in enumerate(tokens[5:])]
    return torch.cat(found).float()


@pytest.mark.parametrize(("name", "scale"), [("a", 2.0), ("b", 1.0), ("some", 8 / 3), ("one", 8.0)])
def test_the_plain_decoder_answers_as_if_merged(
    folders: dict[str, Path], tiny: Decoder, truth: Any, name: str, scale: float
) -> None:
    """Against transformers with W + scale × B A; rsLoRA's scale of rank 1 is alpha."""
    expected = reference(merged(truth, folders[name], scale), TOKENS[:40])
    own = adapter(tiny, folders[name])
    assert (all_ends(tiny, TOKENS[:40], own) - expected[4:]).abs().max() < 1e-3
    assert (tiny.prefill([Span(TOKENS[:40], adapter=own)], None)[0] - expected[-1]).abs().max() < 1e-3
    assert relative_rms(reference(truth, TOKENS[:40]), expected) > 0.3  # or there was nothing to see


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": 42},  # q, k and v begin and end within a block
        {"hidden_size": 68, "intermediate_size": 45},
        {"num_attention_heads": 16, "num_key_value_heads": 1},
    ],
    ids=str,
)
def test_every_shape_of_llama(tmp_path: Path, compiled: Any, changes: dict[str, Any]) -> None:
    """The compiled decoder is no further from exact arithmetic than torch in bf16."""
    model = save_llama(tmp_path, **changes)
    folder = save_lora(tmp_path / "adapter", tmp_path, seed=7, size=0.1)
    exact = reference(merged(model, folder, 2.0), TOKENS[:40])[4:]
    plain, compiled = Decoder.load(tmp_path, torch.bfloat16), CompiledDecoder.load(tmp_path)
    theirs = relative_rms(all_ends(plain, TOKENS[:40], adapter(plain, folder)), exact)
    assert relative_rms(all_ends(compiled, TOKENS[:40], adapter(compiled, folder)), exact) < 1.1 * theirs < 0.1


def test_rows_have_the_same_bits_in_any_company(served: CompiledDecoder, folders: dict[str, Path]) -> None:
    """Prompts together and alone, few rows and many, with a cache and without; and who has no adapter has what he has
    where there are none."""
    own = [adapter(served, folders.get(name or "")) for name in NAMES]
    mixed = [(length, own[i % len(own)]) for i, length in enumerate(LENGTHS * 5)]
    spans = [Span(TOKENS[:length], slot, adapter=which) for slot, (length, which) in enumerate(mixed)]
    cache = served.cache(len(mixed), 100)
    together = served.prefill(spans, cache)
    step = served.decode([5] * len(mixed), [length for length, _ in mixed], cache, [which for _, which in mixed])
    for slot, (length, which) in enumerate(mixed[: len(NAMES) * 2]):
        alone = served.cache(1, 100)
        assert torch.equal(together[slot], served.prefill([Span(TOKENS[:length], adapter=which)], alone)[0])
        assert torch.equal(step[slot], served.decode([5], [length], alone, [which])[0])
        whole = Span([*TOKENS[:length], 5], adapter=which)
        assert torch.equal(step[slot], served.prefill([whole], None)[0])
    bare = served.cache(1, 100)
    assert torch.equal(together[0], served.prefill([Span(TOKENS[: LENGTHS[0]])], bare)[0])
    assert torch.equal(step[0], served.decode([5], [LENGTHS[0]], bare)[0])


def test_the_number_of_threads_does_not_matter(tiny_folder: Path, folders: dict[str, Path], compiled: Any) -> None:
    found = []
    for threads in (1, 3):
        decoder = CompiledDecoder.load(tiny_folder, threads)
        own = [adapter(decoder, folders[name]) for name in ("a", "b")]
        found.append(decoder.prefill([Span(TOKENS[:n], adapter=own[n % 2]) for n in LENGTHS], None))
    assert torch.equal(*found)


# --- the engine ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make(compiled: CompiledDecoder, tiny: Decoder, tiny_tokenizer: Any, folders: dict[str, Path]) -> Any:
    def engine(decoder: Any = compiled, **options: Any) -> Engine:
        made = Engine(decoder, tiny_tokenizer, Options(**{"max_request_tokens": 64, **options}))
        for name, folder in folders.items():
            made.adapters.load(name, folder)
        return made

    return engine


def asked(engine: Engine, wishes: list[tuple[str | None, list[int]]]) -> list[list[int | None]]:
    requests = [
        engine.request(str(i), prompt, {**GREEDY, **({"lora_name": name} if name else {})})
        for i, (name, prompt) in enumerate(wishes)
    ]
    outputs = run_to_end(engine, requests)
    return [[output.token for output in outputs[str(i)]] for i in range(len(wishes))]


wishes = st.tuples(st.sampled_from(NAMES), st.lists(st.integers(0, 255), min_size=1, max_size=20))


@settings(max_examples=25, deadline=None)
@given(
    day=st.lists(wishes, min_size=1, max_size=8),
    compiled_one=st.booleans(),
    scheduler=st.sampled_from(["static", "continuous"]),
    kv_cache=st.booleans(),
    prefill_tokens=st.sampled_from([3, 512]),
)
def test_any_mix_gives_each_request_the_tokens_it_gets_alone(
    make: Callable[..., Engine], compiled: Any, tiny: Any, day: Any, compiled_one: bool, **options: Any
) -> None:
    decoder = compiled if compiled_one else tiny
    alone = [asked(make(decoder, scheduler="one"), [wish])[0] for wish in day]
    assert asked(make(decoder, max_batch_size=4, **options), day) == alone


def test_each_adapter_answers_differently(make: Callable[..., Engine]) -> None:
    answers = asked(make(), [(name, TOKENS[:9]) for name in NAMES])
    assert len({tuple(tokens) for tokens in answers}) == len(NAMES)


def test_who_asks_for_what_is_not_loaded_is_told_what_is(make: Callable[..., Engine]) -> None:
    engine = make()
    for name in ("c", "", 5, ["a"]):
        with pytest.raises(ValueError, match=r"lora_name .*: no such adapter is loaded; allowed: a, b, one, some"):
            engine.request("1", [5], {"lora_name": name})


def test_no_more_than_there_is_place_for(make: Callable[..., Engine], folders: dict[str, Path]) -> None:
    engine = make(max_adapters=4)
    engine.adapters.load("a", folders["b"])  # in place of the first
    with pytest.raises(ValueError, match="adapter c would be number 5; allowed: 4"):
        engine.adapters.load("c", folders["a"])
    with pytest.raises(ValueError, match=r"adapter name '\.\./x'; allowed: up to 64 letters"):
        engine.adapters.load("../x", folders["a"])


def test_what_is_unloaded_goes_with_its_last_request(make: Callable[..., Engine], compiled: Any) -> None:
    expected = asked(make(), [("a", TOKENS[:9])])[0]
    engine = make()
    held = engine.adapters.bytes
    thread = EngineThread(engine)
    tokens: list[int | None] = []
    try:
        answer = thread.generate(TOKENS[:9], {**GREEDY, "lora_name": "a"})
        tokens.append(next(answer).token)
        gone = engine.adapters.unload("a")
        with pytest.raises(ValueError, match="lora_name 'a': no such adapter is loaded; allowed: b, one, some"):
            thread.submit([5], {"lora_name": "a"}, lambda _: None)
        tokens += [output.token for output in answer]
        assert gone.wait(60)
        assert tokens == expected
        assert engine.adapters.bytes < held
    finally:
        thread.close()
    with pytest.raises(ValueError, match="adapter 'a' is not loaded"):
        engine.adapters.unload("a")


@pytest.fixture
def own_pages() -> Iterator[None]:
    """Whatever is larger than 16 KiB has pages of its own, which come and go with it: else it may lie where something
    lay that a thousand tests before have left, and take no memory that is seen."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        pytest.skip("this C library has no mallopt")
    libc.mallopt(M_MMAP_THRESHOLD, 16 * 1024)
    yield
    libc.mallopt(M_MMAP_THRESHOLD, 128 * 1024)


def test_adapters_do_not_pile_up(tmp_path: Path, tiny_tokenizer: Any, compiled: Any, own_pages: None) -> None:
    """P27: memory grows by each adapter's bytes and returns; A answers the same before B came and after B went."""
    save_llama(tmp_path, hidden_size=512, intermediate_size=1024, num_attention_heads=8, head_dim=64)
    decoder = CompiledDecoder.load(tmp_path)
    engine = Engine(decoder, tiny_tokenizer, Options(max_batch_size=2, max_request_tokens=32))
    places = [save_lora(tmp_path / str(n), tmp_path, seed=n, rank=64, size=0.05) for n in range(20)]
    halves = 64 * 2 * (2 * (512 + 512) + 2 * (512 + 128) + 3 * (512 + 1024)) * 2  # rank × layers × (in + out) × bytes
    # 19 × 2 MB stand far above what else moves the memory of a process that ran a thousand other tests.
    engine.adapters.load("0", places[0])
    before = asked(engine, [("0", TOKENS[:9])])
    gc.collect()
    memory = [resident()]
    for n in range(1, 20):
        grown = engine.adapters.load(str(n), places[n])
        assert halves <= grown < 1.05 * halves
        memory.append(resident())
    assert abs(memory[-1] - memory[0] - 19 * halves) < 0.25 * 19 * halves
    asked(engine, [(str(n), TOKENS[:9]) for n in range(20)])
    for n in range(1, 20):
        assert engine.adapters.unload(str(n)).wait(60)
    gc.collect()
    assert abs(resident() - memory[0]) < 0.25 * 19 * halves
    assert asked(engine, [("0", TOKENS[:9])]) == before


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_targets_are_all_that_there_are(folders: dict[str, Path], tiny: Decoder) -> None:
    assert read(folders["a"], tiny.config).targets == list(ALL)
