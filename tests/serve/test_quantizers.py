"""Quantizers as pure functions, against arithmetic on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.serve.models.decoder import Decoder, Span, reader
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.quantize import prose
from lab.serve.quantize.block import ANSWER, MATRICES, NORMS, STAGES, Block, Stage, norm, rotations
from lab.serve.quantize.gptq import gptq
from lab.serve.quantize.grid import Grid, Quantized, grid_of, nearest
from lab.serve.quantize.scales import Inputs, awq, fitted, smooth, smoothing


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- the grid ----------------------------------------------------------------------------------------------------


def test_int8_by_hand() -> None:
    found = nearest(matrix([-1.27, 0.5, 0.0, 0.012], [0.1, -0.1, 0.05, 0.254]), None)
    assert found.grid.scale[:, 0].tolist() == pytest.approx([0.01, 0.002])
    assert found.codes.tolist() == [[-127, 50, 0, 1], [50, -50, 25, 127]]
    assert found.values[0].tolist() == pytest.approx([-1.27, 0.5, 0.0, 0.01])


def test_int4_by_hand() -> None:
    """Groups of two: [-1, 2] has the scale 3/15 and the zero 5; [0.3, 0.9] reaches down to 0."""
    found = nearest(matrix([-1.0, 2.0, 0.3, 0.9], [0.0, 0.0, -0.14, -0.3]), 2)
    assert found.grid.scale.tolist()[0] == pytest.approx([0.2, 0.06])
    assert found.grid.zero is not None
    assert found.grid.zero.tolist() == [[5, 0], [0, 15]]
    assert found.codes.tolist() == [[0, 15, 5, 15], [0, 0, 8, 0]]
    assert found.values[0].tolist() == pytest.approx([-1.0, 2.0, 0.3, 0.9])


def test_what_is_stored_reads_back_and_lies_two_in_a_byte() -> None:
    found = nearest(random(3, 8), 4)
    stored = found.tensors("m")
    assert stored["m.qweight"].shape == (3, 4)
    assert stored["m.qweight"].dtype == stored["m.zero"].dtype == torch.uint8
    byte = int(stored["m.qweight"][1, 2])
    assert [byte & 15, byte >> 4] == found.codes[1, 4:6].tolist()
    assert Quantized.of(stored, "m").values.equal(found.values)
    eight = nearest(random(3, 7), None)
    assert eight.tensors("m")["m.qweight"].dtype == torch.int8
    assert Quantized.of(eight.tensors("m"), "m").values.equal(eight.values)


@pytest.mark.parametrize("group_size", [None, 4])
def test_a_row_of_zeros_stays_one(group_size: int | None) -> None:
    found = nearest(torch.cat([torch.zeros(1, 8), random(1, 8)]), group_size)
    assert found.values[0].tolist() == [0] * 8
    assert torch.isfinite(found.grid.scale).all()


def test_an_outlier_spoils_its_own_group_only() -> None:
    weights = random(4, 16)
    weights[0, 3] = 1000
    error = (nearest(weights, 8).values - weights).abs()
    assert error[0, :8].max() > 1
    assert error[0, 8:].max() <= float(grid_of(weights, 8).scale[0, 1]) / 2 * 1.0001
    assert error[1:].max() < 0.5


def test_scaled_rows_change_no_code() -> None:
    found, factors = nearest(random(4, 8), 4), torch.tensor([1.0, 0.5, 3.0, 0.01])
    assert found.scaled_rows(factors).values.allclose(found.values * factors[:, None])


# --- GPTQ --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 320])
def test_gptq_on_inputs_that_say_nothing_of_each_other_rounds_to_nearest(width: int) -> None:
    weights = random(8, width)
    grid = grid_of(weights, 16)
    assert gptq(weights, torch.eye(width), grid).codes.equal(grid.round(weights).codes)


def test_gptq_makes_up_for_an_error_by_hand() -> None:
    """Two inputs of correlation 0.9: rounding 0.4 to 0 leaves 0.4 undone, of which the second weight takes over
    0.9 / 1.01 (1 % of damping): 0.3 + 0.356 rounds to 1. On inputs that are nearly equal the sum was 0.7."""
    grid = Grid(torch.ones(1, 1), torch.full((1, 1), 8.0))
    found = gptq(matrix([0.4, 0.3]), matrix([1.0, 0.9], [0.9, 1.0]), grid)
    assert found.values.tolist() == [[0, 1]]
    assert grid.round(matrix([0.4, 0.3])).values.tolist() == [[0, 0]]


def test_gptq_costs_less_at_the_output_than_rounding() -> None:
    x = random(400, 192) @ random(192, 192, seed=1)  # correlated
    weights, seen = random(32, 192, seed=2), Inputs.of(x)
    grid = grid_of(weights, 32)
    found, rounded = gptq(weights, seen.hessian, grid), grid.round(weights)
    assert float(seen.error(found.values - weights)) < 0.5 * float(seen.error(rounded.values - weights))
    direct = (x @ (found.values - weights).T).square().sum(1).mean()
    assert float(seen.error(found.values - weights)) == pytest.approx(float(direct), rel=1e-3)


def test_inputs_that_are_always_zero_or_repeat_are_no_obstacle() -> None:
    x = random(50, 16)
    x[:, 3], x[:, 5] = 0, x[:, 4]
    weights = random(4, 16, seed=1)
    assert torch.isfinite(gptq(weights, Inputs.of(x).hessian, grid_of(weights, 8)).values).all()


# --- AWQ and SmoothQuant -----------------------------------------------------------------------------------------


def free(values: Tensor) -> Tensor:
    return values


def test_awq_widens_the_columns_that_matter() -> None:
    x = random(200, 32)
    x[:, 5] *= 50
    weights, seen = random(16, 32, seed=1), Inputs.of(x)
    factors = awq(weights, seen, 16, free)
    assert int(factors.argmax()) == 5
    scaled = weights * factors
    plain = seen.error(nearest(weights, 16).values - weights)
    assert seen.error(nearest(scaled, 16).values / factors - weights) < 0.5 * plain
    assert seen.error(fitted(scaled, seen.divided(factors), 16).round(scaled).values / factors - weights) < plain


def test_awq_leaves_alone_what_it_cannot_better() -> None:
    weights = matrix([-5.0, 10.0, 0.0, 3.0])  # on its grid already
    assert awq(weights, Inputs.of(random(20, 4)), 4, free).tolist() == [1, 1, 1, 1]


def test_a_fitted_grid_is_never_worse() -> None:
    x, weights = random(200, 32), random(16, 32, seed=1)
    weights[:, 7] *= 4
    for group_size in (8, 32):
        seen = Inputs(torch.diag(x.square().mean(0)), x.abs().mean(0), x.abs().amax(0))  # each group by itself
        found = seen.error(fitted(weights, seen, group_size).round(weights).values - weights)
        assert found < seen.error(nearest(weights, group_size).values - weights)


def test_smoothquant_by_hand() -> None:
    """Inputs up to 16 against weights up to 4: √16 / √4."""
    weights, seen = matrix([4.0, 1.0], [-1.0, 0.25]), Inputs.of(matrix([-16.0, 1.0], [3.0, 0.5]))
    assert smoothing(weights, seen, free, 0.5).tolist() == pytest.approx([2.0, 1.0])
    assert smoothing(weights, seen, free, 1.0).tolist() == pytest.approx([16.0, 1.0])


def test_smoothquant_narrows_inputs_with_outliers_and_leaves_even_ones_alone() -> None:
    """The error of 8 bit on both sides, computed here anew."""

    def error(x: Tensor, weights: Tensor, factors: Tensor) -> float:
        ours = nearest(x / factors, None).values @ nearest(weights * factors, None).values.T
        return float((ours - x @ weights.T).square().mean())

    x, weights = random(500, 64), random(32, 64, seed=1)
    x[:, 9] *= 100
    factors = smooth(weights, x, Inputs.of(x), free)
    assert int(factors.argmax()) == 9
    assert error(x, weights, factors) < 0.2 * error(x, weights, torch.ones(64))
    signs, even = random(500, 64).sign(), random(8, 64, seed=2).sign()  # 8 bit holds them exactly
    assert smooth(even, signs, Inputs.of(signs), free).tolist() == [1] * 64


# --- a block -----------------------------------------------------------------------------------------------------


def tiny_block(tiny: Decoder, tiny_folder: Path, layer: int) -> Block:
    read, prefix = reader(tiny_folder), f"model.layers.{layer}"
    return Block(tiny.config, {name: read(f"{prefix}.{name}.weight").float() for name in (*MATRICES, *NORMS)})


def test_blocks_compute_what_the_decoder_does(tiny: Any, tiny_folder: Path) -> None:
    tokens = list(b"def f(x): return x + 1")
    read = reader(tiny_folder)
    words = read("model.embed_tokens.weight")
    x = words[torch.tensor([tokens, tokens[::-1]])]
    for layer in range(tiny.config.layers):
        x = tiny_block(tiny, tiny_folder, layer)(x, rotations(tiny.config, len(tokens)))
    last = norm(x[:, -1], read("model.norm.weight"), tiny.config.norm_eps) @ words.T
    expected = tiny.prefill([Span(tokens), Span(tokens[::-1])], None)
    assert last.allclose(expected, atol=1e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_factors_folded_upstream_leave_the_outputs_equal(stage: Stage, tiny: Any, tiny_folder: Path) -> None:
    x, turns = random(2, 10, tiny.config.hidden), rotations(tiny.config, 10)
    expected = tiny_block(tiny, tiny_folder, 0)(x, turns)
    looked = []

    def unrounded(block: Block, here: Stage, inputs: Tensor) -> Tensor | None:
        looked.append(here)
        factors = block.tie(here, random(inputs.shape[-1], seed=len(looked)).exp()) if here is stage else None
        weights = block.stacked(here) * (1 if factors is None else factors)
        return block.replace(here, Quantized(weights, Grid(torch.ones(len(weights), 1), None)), factors)

    block = tiny_block(tiny, tiny_folder, 0)
    assert block(x, turns, unrounded).allclose(expected, rtol=1e-3, atol=1e-4)
    assert block(x, turns).allclose(expected, rtol=1e-3, atol=1e-4)
    assert tuple(looked) == STAGES


def test_heads_that_share_a_value_head_share_factors() -> None:
    config = LlamaConfig(1, 8, 8, 4, 2, 2, 10, 10, 1e4, 1e-5, True, frozenset())
    values = Block(config, {}).tie(ANSWER, torch.arange(8.0))
    assert values.tolist() == [1, 2, 1, 2, 5, 6, 5, 6]  # heads 0 and 1, of two inputs each; heads 2 and 3


# --- texts -------------------------------------------------------------------------------------------------------


def runs_of(text: str, words: int) -> set[tuple[str, ...]]:
    found = text.split()
    return {tuple(found[i : i + words]) for i in range(len(found) - words + 1)}


def test_calibration_sees_nothing_that_quality_is_judged_on() -> None:
    calibration, judged = prose.calibration_texts(), prose.judged_texts()
    assert not set(calibration) & set(judged)
    seen = set[tuple[str, ...]]().union(*(runs_of(text, 12) for text in calibration.values()))
    kept = set[tuple[str, ...]]().union(*(runs_of(text, 12) for text in judged.values()))
    assert len(kept) > 3000
    assert not seen & kept


def test_passages_are_of_one_topic_and_one_length(tiny_tokenizer: Any) -> None:
    chosen = prose.passages(prose.calibration_texts(), tiny_tokenizer, 40, 50, seed=3)
    assert len(chosen) == 40
    assert {len(passage.tokens) for passage in chosen} == {50}
    assert len({passage.topic for passage in chosen}) > 10
    assert chosen == prose.passages(prose.calibration_texts(), tiny_tokenizer, 40, 50, seed=3)
    assert chosen != prose.passages(prose.calibration_texts(), tiny_tokenizer, 40, 50, seed=4)
