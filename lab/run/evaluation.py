"""The process that evaluates a model's quality with the very code that serves it; see lab/run/quality.py for its owner.

    {"spec": {…}, "baseline": {…} | null, "blocks": false} → what was seen, as lab.measure.quality.judge reads it
    {"spec": {…}, "baseline": {…}, "blocks": true}         → what each block costs alone, see sensitivity.py

A language model is read by the decoder that Triton would load, with its cache: every passage of held-out prose token
by token (teacher-forced), questions by the likelihood of each way to go on, and greedy answers written in batches of
eight. digits and embedder are loaded as Triton loads them, from a model folder, and asked through `execute`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lab.run import exam
from lab.run.sensitivity import of_blocks
from lab.run.served import Served
from lab.serve import job, weights
from lab.serve.models.decoder import Span, decoder_of
from lab.serve.quantize import prose
from lab.spec import ModelSpec, parse

PASSAGES = 64
ANSWER_TOKENS = 64
SLOTS = 8
"""Sequences read or written together."""
TOGETHER_TOKENS = 256
NEAREST = 5
"""Texts that a query is answered with."""
LEAST_OF_A_TOPIC = 8
"""Texts that a topic needs so that its queries have something to find."""
TEXTS = 400

Progress = Callable[[str, int, int], None]
Seen = dict[str, list[Any]]


# --- language model ----------------------------------------------------------------------------------------------


class Reader:
    """A decoder and a cache, as the spec would have them served."""

    def __init__(self, spec: ModelSpec, slot_tokens: int) -> None:
        place, device = weights.folder(spec), "cuda" if spec.device == "gpu" else "cpu"
        assert place is not None  # noqa: S101  prepared by the owner
        threads = os.cpu_count() or 1
        self.decoder = decoder_of(place, spec.precision, device, threads, spec.kv_cache_precision)
        torch.set_num_threads(threads)  # the decoder's own wait while torch looks at what came out
        self.tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
        self.cache: Any = self.decoder.cache(SLOTS, slot_tokens) if spec.kv_cache else None

    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        """Of every next token after every token of each row [tokens, vocabulary]."""
        for together in _batches(rows):
            spans = [Span(row, slot) for slot, row in enumerate(together)]
            logits = self.decoder.prefill(spans, self.cache, every_token=True).float().cpu()
            for part in torch.split(logits, [len(row) for row in together]):
                yield part.log_softmax(-1)

    def greedy(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """The likeliest answers of `tokens` tokens, past any end token."""
        found = []
        for together in _batches(prompts):
            logits = self.decoder.prefill([Span(row, slot) for slot, row in enumerate(together)], self.cache)
            answers = [[int(token)] for token in logits.argmax(-1)]
            for step in range(1, tokens):
                if self.cache is None:
                    rows = [Span([*prompt, *answer]) for prompt, answer in zip(together, answers, strict=True)]
                    logits = self.decoder.prefill(rows, None)
                else:
                    at = [len(prompt) + step - 1 for prompt in together]
                    logits = self.decoder.decode([answer[-1] for answer in answers], at, self.cache)
                for answer, token in zip(answers, logits.argmax(-1).tolist(), strict=True):
                    answer.append(token)
            found += answers
        return found


def language_model(spec: ModelSpec, baseline: ModelSpec | None, progress: Progress) -> Seen:
    """nats, tokens, agreed, kl_nats, cloze, facts, answers; and the texts behind the answers."""
    longest = prose.PASSAGE_TOKENS + ANSWER_TOKENS
    reader = Reader(spec, longest)
    other = None if baseline is None else Reader(baseline, longest)
    seen = _prose(reader, other, progress)
    for name, questions in (("cloze", exam.CLOZE), ("facts", exam.FACTS)):
        seen[name] = _answered(reader, questions)
        progress(f"asking {len(questions)} questions ({name})", len(questions), len(questions))
    prompts = [reader.tokenizer.encode(prompt).ids for prompt in exam.PROMPTS]
    seen["answers"] = reader.greedy(prompts, ANSWER_TOKENS)
    seen["pieces"] = [[reader.tokenizer.decode([token]) for token in answer] for answer in seen["answers"]]
    progress(f"writing {len(prompts)} answers", len(prompts), len(prompts))
    return seen


def _prose(reader: Reader, other: Reader | None, progress: Progress) -> Seen:
    length = min(prose.PASSAGE_TOKENS, reader.decoder.config.context_tokens)
    chosen = prose.passages(prose.judged_texts(), reader.tokenizer, PASSAGES, length, seed=0)
    rows = [passage.tokens for passage in chosen]
    seen: Seen = {"nats": [], "tokens": []} | ({} if other is None else {"agreed": [], "kl_nats": []})
    theirs = other.log_probabilities(rows) if other else iter([None] * len(rows))
    for done, (row, ours, base) in enumerate(zip(rows, reader.log_probabilities(rows), theirs, strict=True), start=1):
        ours, following = ours[:-1], torch.tensor(row[1:])
        seen["nats"].append(-float(ours.gather(1, following[:, None]).double().sum()))
        seen["tokens"].append(len(following))
        if base is not None:
            base = base[:-1]
            seen["agreed"].append(int((ours.argmax(-1) == base.argmax(-1)).sum()))
            seen["kl_nats"].append(float((base.exp() * (base - ours)).sum(-1).double().sum()))
        progress("reading held-out prose", done, len(rows))
    return seen


def _answered(reader: Reader, questions: Sequence[exam.Question]) -> list[bool]:
    """Whether the right way to go on is the likeliest. A way of several tokens counts as all of them together."""
    beginnings = [reader.tokenizer.encode(question.beginning).ids for question in questions]
    ways = [
        [reader.tokenizer.encode(f" {way}", add_special_tokens=False).ids for way in question.ways]
        for question in questions
    ]
    # Ways of one token share the reading of their beginning.
    rows = dict.fromkeys(
        (*beginning, *way[:-1]) for beginning, choices in zip(beginnings, ways, strict=True) for way in choices
    )
    # Of each row only what follows its beginning is asked for.
    first = min(map(len, beginnings)) - 1
    found = {row: part[first:] for row, part in zip(rows, reader.log_probabilities(list(rows)), strict=True)}
    right = []
    for beginning, choices in zip(beginnings, ways, strict=True):
        scores = []
        for way in choices:
            part = found[(*beginning, *way[:-1])]
            at = len(beginning) - 1 - first
            scores.append(sum(float(part[at + i, token]) for i, token in enumerate(way)))
        right.append(scores[0] > max(scores[1:]))
    return right


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Up to SLOTS rows at a time, and no more than so many tokens that their logits fit well into memory."""
    together: list[Sequence[int]] = []
    for row in rows:
        if together and (len(together) == SLOTS or sum(map(len, together)) + len(row) > TOGETHER_TOKENS):
            yield together
            together = []
        together.append(row)
    if together:
        yield together


# --- the other families ------------------------------------------------------------------------------------------


def embedder(spec: ModelSpec, baseline: ModelSpec | None, progress: Progress) -> Seen:
    """recall, cosine"""
    texts = [(topic, text) for topic, found in prose.paragraphs().items() for text in found]
    texts = [(topic, text) for topic, text in texts if sum(t == topic for t, _ in texts) >= LEAST_OF_A_TOPIC][:TEXTS]
    vectors = _embed(spec, [text for _, text in texts], progress)
    topics = [topic for topic, _ in texts]
    near = vectors @ vectors.T
    near.fill_diagonal_(-torch.inf)
    recall = []
    for i, found in enumerate(near.topk(NEAREST).indices.tolist()):
        recall.append(sum(topics[j] == topics[i] for j in found) / NEAREST)
    seen: Seen = {"recall": recall}
    if baseline is not None:
        theirs = _embed(baseline, [text for _, text in texts], progress)
        seen["cosine"] = torch.cosine_similarity(vectors, theirs).tolist()
    return seen


def _embed(spec: ModelSpec, texts: Sequence[str], progress: Progress) -> Tensor:
    import numpy as np

    parts = []
    with Served(spec) as model:
        for together in (texts[i : i + SLOTS] for i in range(0, len(texts), SLOTS)):
            asked = np.array([[text.encode()] for text in together], dtype=object)
            parts.append(torch.from_numpy(model.ask({"TEXT": asked})["EMBEDDING"]))
            progress(f"embedding texts in {spec.precision}", sum(map(len, parts)), len(texts))
    return torch.cat(parts)


def digits(spec: ModelSpec, baseline: ModelSpec | None, progress: Progress) -> Seen:
    """images"""
    from lab.serve.models.digits_training import split

    _, _, images, labels = split()
    with Served(spec) as model:
        found = model.ask({"IMAGE": images})["LOGITS"].argmax(-1)
    progress("classifying held-out images", len(labels), len(labels))
    return {"images": (found == labels).tolist()}


EVALUATE: dict[str, Callable[[ModelSpec, ModelSpec | None, Progress], Seen]] = {
    "llm": language_model,
    "embedder": embedder,
    "digits": digits,
}


def work(wanted: dict[str, Any], progress: Progress) -> Any:
    spec = parse(ModelSpec, wanted["spec"])
    baseline = None if wanted["baseline"] is None else parse(ModelSpec, wanted["baseline"])
    if wanted["blocks"]:
        source, place = weights.folder(baseline) if baseline else None, weights.folder(spec)
        assert source is not None and place is not None  # noqa: S101  prepared by the owner
        torch.set_num_threads(os.cpu_count() or 1)
        return of_blocks(source, place, progress)
    return EVALUATE[spec.family](spec, baseline, progress)


if __name__ == "__main__":
    sys.exit(job.serve(work))
