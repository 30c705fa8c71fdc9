"""Evaluations of a tiny model, against transformers and against what is known of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.__main__ import main
from lab.errors import InputError
from lab.measure.quality import NO_LOSS
from lab.run import evaluation, exam, quality, quality_text
from lab.serve import quantized, weights
from lab.serve.models.decoder import Decoder, Span
from lab.serve.models.quantized_reader import WeightsFolder
from lab.serve.quantize import prose
from lab.serve.quantize.build import build
from lab.serve.quantize.recipe import Recipe
from lab.spec import ModelSpec

pytestmark = [pytest.mark.llm, pytest.mark.usefixtures("kernels")]

FEW = 6
"""Of everything that is asked."""


def quiet(label: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What processes would have been started for, done here instead, with little to do, in a LAB_HOME of the test's
    own."""
    done: list[str] = []

    def do(module: str, wanted: dict[str, Any], progress: Any) -> Any:
        done.append(module)
        if module == "lab.run.evaluation":
            return evaluation.work(wanted, progress)
        return build(Path(wanted["source"]), Path(wanted["folder"]), Recipe(**wanted["recipe"]), progress)

    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("lab.serve.job.do", do)
    monkeypatch.setattr(evaluation, "PASSAGES", FEW)
    monkeypatch.setattr(evaluation, "ANSWER_TOKENS", 8)
    for name in ("CLOZE", "FACTS", "PROMPTS"):
        monkeypatch.setattr(exam, name, getattr(exam, name)[:FEW])
    return done


def spec(folder: Path, precision: str = "bf16", **fields: Any) -> ModelSpec:
    sized = {"group_size": 16} if precision == "int4" else {}
    return ModelSpec(name="llm", weights=str(folder), precision=precision, **sized, **fields)


def test_a_format_is_evaluated_once_against_its_baseline(tiny_folder: Path, jobs: list[str]) -> None:
    eight = spec(tiny_folder, "int8")
    assert quality.known(eight) is None
    found = quality.evaluate(eight, quiet)
    assert jobs == ["lab.run.evaluation", "lab.serve.quantize", "lab.run.evaluation"]
    assert quality.evaluate(eight, quiet) == found == quality.known(eight)
    assert len(jobs) == 3
    assert (found.format, found.baseline, found.is_baseline) == ("int8", "bf16", False)
    counts = {m.name: m.n for m in found.measures}
    assert counts == dict.fromkeys(counts, FEW)
    assert set(counts) == {
        *("perplexity", "cloze", "facts", "agreement", "kl_nats", "answer_tokens_equal", "answer_drift_tokens")
    }
    divergence = found.measure("kl_nats")
    assert divergence is not None and 0 < divergence.value < 0.1
    for answer in found.answers:
        assert len(answer.pieces) == len(answer.baseline_pieces) == 8
    base = quality.known(spec(tiny_folder))
    assert base is not None and base.is_baseline
    assert base.verdict == "The baseline."
    assert base.measures[0].value == found.measures[0].baseline
    lines = quality_text.table([base, found])
    assert lines[0].split()[:3] == ["format", "perplexity", "same"]
    assert lines[1].startswith("bf16  ")


def test_the_same_arithmetic_again_is_no_loss(tiny_folder: Path, jobs: list[str]) -> None:
    """A/A: the cache's own precision, given by name, is what it is anyway."""
    twin = spec(tiny_folder, kv_cache_precision="bf16", kv_cache=True)
    seen = evaluation.language_model(twin, spec(tiny_folder), quiet)
    assert seen["kl_nats"] == [0] * FEW
    assert seen["agreed"] == seen["tokens"]
    found = quality.judge(seen, evaluation.language_model(spec(tiny_folder), None, quiet))
    assert {m.verdict for m in found if m.loss is not None} == {NO_LOSS}


def test_another_cache_is_another_evaluation(tiny_folder: Path, jobs: list[str]) -> None:
    places = {
        quality._place(each)
        for each in (spec(tiny_folder), spec(tiny_folder, kv_cache_precision="int8"), spec(tiny_folder, "fp32"))
    }
    assert len(places) == 3
    assert quality._place(spec(tiny_folder, scheduler="one", max_batch_size=2)) in places
    assert quality._place(spec(tiny_folder, kv_cache_precision="bf16")) in places


# --- against transformers ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth(tiny_folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_folder).eval()


def reference(truth: Any, row: Any) -> torch.Tensor:
    with torch.inference_mode():
        return truth(torch.tensor([list(row)])).logits[0].log_softmax(-1)


def test_prose_costs_what_transformers_says(tiny_folder: Path, truth: Any, jobs: list[str]) -> None:
    reader = evaluation.Reader(spec(tiny_folder, "fp32"), 128)
    seen = evaluation._prose(reader, None, quiet)
    chosen = prose.passages(prose.judged_texts(), reader.tokenizer, FEW, 128, seed=0)
    for nats, tokens, passage in zip(seen["nats"], seen["tokens"], chosen, strict=True):
        row = torch.tensor([passage.tokens])
        with torch.inference_mode():
            loss = float(truth(row, labels=row).loss)  # the mean of the 127 tokens after the first
        assert tokens == 127
        assert nats / tokens == pytest.approx(loss, abs=1e-4)


def test_the_likeliest_way_is_the_answer(tiny_folder: Path, truth: Any, jobs: list[str]) -> None:
    """Ways of several tokens (this tokenizer has one a byte), each scored by transformers as a text of its own."""
    reader = evaluation.Reader(spec(tiny_folder, "fp32"), 128)
    questions = [*exam.CLOZE, *exam.FACTS]
    expected = []
    for question in questions:
        start = reader.tokenizer.encode(question.beginning).ids
        scores = []
        for way in question.ways:
            ids = reader.tokenizer.encode(f" {way}").ids
            logs = reference(truth, [*start, *ids])
            scores.append(sum(float(logs[len(start) + i - 1, token]) for i, token in enumerate(ids)))
        expected.append(max(scores) == scores[0])
    assert evaluation._answered(reader, questions) == expected


@pytest.mark.parametrize("kv_cache", [True, False])
def test_greedy_answers_are_transformers_own(kv_cache: bool, tiny_folder: Path, truth: Any, jobs: list[str]) -> None:
    reader = evaluation.Reader(spec(tiny_folder, "fp32", kv_cache=kv_cache), 64)
    prompts = [list(range(40, 40 + length)) for length in (3, 9, 5, 4, 7, 3, 8, 6, 2, 11)]  # more than go together
    for prompt, answer in zip(prompts, reader.greedy(prompts, 6), strict=True):
        likeliest = reference(truth, [*prompt, *answer]).argmax(-1)  # after each token, given all before it
        assert answer == likeliest[len(prompt) - 1 : -1].tolist()


# --- blocks ------------------------------------------------------------------------------------------------------


def test_a_block_alone_costs_what_the_decoder_says(tiny_folder: Path, jobs: list[str]) -> None:
    wanted = spec(tiny_folder, "int4")
    assert quality.known_blocks(wanted) is None
    found = quality.evaluate_blocks(wanted, quiet)
    assert [block.block for block in found] == [0, 1]
    assert quality.known_blocks(wanted) == found
    place = weights.folder(wanted)
    assert place is not None
    plain, mixed = (Decoder.load(tiny_folder, torch.float32) for _ in range(2))
    mixed.layers[1] = Decoder(plain.config, WeightsFolder(place), torch.float32).layers[1]
    tokenizer = evaluation.Reader(spec(tiny_folder, "fp32"), 8).tokenizer
    rows = [p.tokens for p in prose.passages(prose.judged_texts(), tokenizer, 8, 128, seed=0)]
    change = []
    for row in rows:
        following = torch.tensor(row[1:])[:, None]
        ours, base = (
            decoder.prefill([Span(row)], None, every_token=True)[:-1].log_softmax(-1).gather(1, following).mean()
            for decoder in (mixed, plain)
        )
        change.append(float(base - ours))
    expected = math.expm1(sum(change) / len(change))
    assert found[1].perplexity_loss == pytest.approx(expected, rel=0.05, abs=1e-3)


def test_only_what_was_quantized_has_such_blocks(tiny_folder: Path, jobs: list[str]) -> None:
    with pytest.raises(InputError, match="blocks of fp32: nothing was quantized here"):
        quality.evaluate_blocks(spec(tiny_folder, "fp32"), quiet)


# --- the command line --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["quality", "--model", "null"], "quality of family null: it has none"),
        (["quality", "--set", "workload.seed=1"], "--set workload.seed: there is only a model here"),
        (["quality", "--blocks"], "blocks of bf16: nothing was quantized here"),
        (["quantize"], "quantize: llm in bf16 has no weights of its own"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: list[str], told: str, tiny_folder: Path, jobs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--set", f"model.weights={tiny_folder}"] if "--model" not in words else words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "null"],
        ["--model", "null", "--all"],
        ["--set", "model.weights=/etc"],
        ["--set", "model.weights=/etc", "--all", "--blocks"],
        ["--set", "model.weights="],
        ["--set", "model.weights=TINY", "--set", "model.precision=int4", "--set", "model.group_size=48"],
    ],
)
def test_what_cannot_be_does_not_wait_for_its_turn(
    words: list[str], tiny_folder: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.run.lock.MeasureLock.acquire", lambda *_: pytest.fail("it waits"))
    assert main(["quality", *(word.replace("TINY", str(tiny_folder)) for word in words)]) == 2
    assert not jobs


def test_quantize_and_quality_print_json(
    tiny_folder: Path, jobs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--set", f"model.weights={tiny_folder}", "--set", "model.precision=int4", "--set", "model.group_size=16"]
    assert main(["quantize", *chosen, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Path(document["folder"], "quantization.json").is_file()
    assert main(["quality", *chosen, "--blocks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["format"] for each in found["formats"]] == ["int4 RTN, group size 16"]
    assert {"perplexity", "facts"} < {measure["name"] for measure in found["formats"][0]["measures"]}
    assert [block["block"] for block in found["blocks"]] == [0, 1]


# --- the others --------------------------------------------------------------------------------------------------


def test_digits_are_judged_on_their_held_out_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelSpec(name="digits")
    weights.prepare(model)
    seen = evaluation.digits(model, None, quiet)["images"]
    assert len(seen) == 449
    assert sum(seen) / 449 > 0.95


def test_what_has_no_quality_is_refused() -> None:
    assert quality.known(ModelSpec(name="null")) is None
    with pytest.raises(InputError, match="quality of family null: it has none; allowed: llm, embedder, digits"):
        quality.evaluate(ModelSpec(name="null"))


def test_formats_are_all_of_the_family_the_baseline_first(tiny_folder: Path, jobs: list[str]) -> None:
    labels = [quality.format_label(each) for each in quality.formats(spec(tiny_folder, "int4"))]
    assert labels[0] == "bf16"
    assert {"fp32", "int8", "int4 GPTQ, group size 16"} <= {*labels}
    assert len(labels) == len({*labels}) == 9
    assert [each.precision for each in quality.formats(ModelSpec(name="digits", precision="int8"))] == [
        *("fp32", "bf16", "int8")
    ]


def test_the_exam_has_enough_questions_that_can_be_answered() -> None:
    for questions in (exam.CLOZE, exam.FACTS):
        assert len({question.beginning for question in questions}) == len(questions) >= 60
        assert all(len(set(question.ways)) == 4 for question in questions)


def test_smollm2_was_4_bit_before(jobs: list[str]) -> None:
    notes = quality._notes(ModelSpec(name="llm", precision="int4"))
    assert any("4 bit (Q4_1, groups of 32) before they were bf16" in note for note in notes)
    assert quality._notes(ModelSpec(name="llm", precision="int8")) == ()
    assert quantized.document(ModelSpec(name="llm", precision="int4")) is None
