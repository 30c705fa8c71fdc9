"""In which order models are started, and what a model has not."""

import itertools

import pytest

from lab.run.catalogue import experiment
from lab.run.cold import why_not
from lab.run.plan import cell_blocks
from lab.spec import Experiment, ModelSpec, Start


def order(declared: Experiment) -> list[tuple[str, int, int]]:
    """(model, repeat, which of its ways)."""
    ways = len(declared.factors["start"])
    return [
        (f"{block.model.name} {block.model.precision}", block.repeat, block.cell % ways)
        for block in cell_blocks(declared, whole_groups=True)
    ]


def test_all_starts_of_a_model_come_before_the_next_ones_forwards_then_backwards() -> None:
    found = order(experiment("cold_start"))
    assert len(found) == 11 * 9 * 3 == len(set(found))
    models = [model for model, _, _ in found]
    assert len(dict.fromkeys(models)) == 11 == 1 + sum(a != b for a, b in itertools.pairwise(models))
    first = [way for model, _, way in found if model == "llm bf16"]
    assert first == [*range(9), *reversed(range(9)), *range(9)]


def test_the_order_is_that_of_every_experiment_otherwise() -> None:
    declared = experiment("cold_start").when_quick()
    assert order(declared) == [("llm bf16", r, way) for r, ways in enumerate(([0, 1, 2], [2, 1, 0])) for way in ways]


@pytest.mark.parametrize(
    ("family", "precision", "how", "said"),
    [
        ("llm", "bf16", {"torch_compile": True}, "llm is no network of torch's that torch.compile could take"),
        ("llm", "fp32", {"mapped_weights": True}, "llm in fp32 has no packed weights that could be mapped"),
        ("llm", "int4", {"mapped_weights": True}, ""),
        ("embedder", "fp32", {"torch_compile": True, "mapped_weights": True}, ""),
    ],
)
def test_what_a_model_has_not_is_said(family: str, precision: str, how: dict, said: str) -> None:
    assert why_not(ModelSpec(name=family, family=family, precision=precision), Start(**how)) == said
