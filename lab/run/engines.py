"""The same prompts to several engines: the lab's own in Triton, and whatever URLs are given; one table, with quality.

Each engine is measured by a run of its own, with the same seed and so the same prompts and lengths, one after the
other; then each is asked the same questions greedily, and its words are held against the first engine's. Equal words
are no proof of equal quality and different ones no proof of worse: in bf16 two words can be so close that the last
digits decide. So how far they agree is told, in tokens, and nothing is judged.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from lab.errors import InputError, LabError, ServerError
from lab.home import home
from lab.load.payload import requests_for
from lab.load.targets.openai import CHAT, endpoint
from lab.run import conversation, given, results, runner
from lab.run.bench import at
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.serve import weights
from lab.serve.address import address
from lab.serve.triton import Server
from lab.spec import ClosedLoop, Experiment, ModelSpec, Workload

Report = Callable[[str], None]

QUESTIONS, ANSWER_TOKENS, ANSWER_LIMIT_S = 8, 32, 120.0
FIGURES = ("output_tokens_per_s", "ttft_p50_s", "itl_mean_s", "latency_p50_s", "error_fraction")


@dataclass(frozen=True)
class Engine:
    """`url` None is the lab's own in Triton; `model` is what the engine calls it."""

    name: str
    url: str | None
    model: str

    @classmethod
    def read(cls, text: str) -> Engine:
        """From "URL=MODEL"; InputError for anything else."""
        url, equals, model = text.rpartition("=")
        if not equals or not url or not model:
            raise InputError(f"--engine {text!r}: allowed is URL=MODEL, such as openai+http://127.0.0.1:8100=NAME")
        there = address(url)
        return cls(f"{model} at {there.host}:{there.port}", url, model)


OWN = Engine("the lab's engine", None, "llm")


def measure(
    engines: Sequence[Engine], load: Mapping[str, Any], settings: Sequence[str], stop: runner.Stop, report: Report
) -> dict[str, Any]:
    """{"engines": [{"name", "run", "figures" or "error", "agreement"}], "questions", "tokens"}. An engine that fails is
    in the table with its reason; the others are measured."""
    with _server(engines):
        return _measure(engines, load, settings, stop, report)


@contextmanager
def _server(engines: Sequence[Engine]) -> Iterator[None]:
    """A Triton for the lab's own engine that outlives its run, so that it can be asked for its words afterwards."""
    if any(engine.url is None for engine in engines) and Server.attach() is None:
        with Server.start(repository=home() / "repository", log=home() / "triton.log"):
            yield
    else:
        yield


def _measure(
    engines: Sequence[Engine], load: Mapping[str, Any], settings: Sequence[str], stop: runner.Stop, report: Report
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    said: list[list[str] | None] = []
    for engine in engines:
        report(f"{engine.name}:")
        row: dict[str, Any] = {"name": engine.name, "run": None, "figures": dict.fromkeys(FIGURES), "error": None}
        words: list[str] | None = None
        try:
            experiment = _experiment(engine, load, settings)
            folder = runner.create(
                experiment, new_run_id("engines"), quick=False, settings=list(settings), url=engine.url
            )
            row["run"] = folder.run_id
            runner.run(experiment, folder, stop=stop, report=report, url=engine.url)
            summary = results.document(RunFolder.open(folder.run_id))["cells"][0]["summary"]
            row["figures"] = {name: summary[name] for name in FIGURES}
            words = answers(engine, experiment.model, experiment.workload)
        except LabError as error:
            row["error"] = str(error)
            report(f"  {error}")
        rows.append(row)
        said.append(words)
        if stop():
            break
    first = next((words for words in said if words is not None), None)
    for row, words in zip(rows, said, strict=True):
        row["agreement"] = None if words is None or first is None else agreement(first, words)
    return {"engines": rows, "questions": QUESTIONS, "tokens": ANSWER_TOKENS}


def _experiment(engine: Engine, load: Mapping[str, Any], settings: Sequence[str]) -> Experiment:
    if engine.url is None:
        return single({"name": "llm"}, dict(load), settings, name="engines")
    plan = given.of_url(engine.url, engine.model, given.Wishes())
    return single(plan.model, {**load, **plan.workload}, settings, name="engines")


def answers(engine: Engine, model: ModelSpec, workload: Workload) -> list[str]:
    """What the engine writes to each question, greedily. ServerError when it does not answer."""
    asked = workload.model_copy(
        update={"output_tokens": ANSWER_TOKENS, "arrival": ClosedLoop(concurrency=1), "stream": False}
    )
    place = weights.tokenizer(ModelSpec(name="llm"))
    questions = requests_for(
        ModelSpec(name="llm"), asked, QUESTIONS, place if place is not None and place.is_file() else None
    )
    if engine.url is None or address(engine.url).speaks_triton:
        server = Server.attach() if engine.url is None else Server.at(engine.url)
        if server is None:
            raise ServerError("the lab's Triton ended before it could be asked for its words")
        with server:
            return [_of_triton(server.grpc_url, model.name, question) for question in questions]
    with at(engine.url) as other_server:
        base = other_server.http_url
    return [_of_http(engine, base, question) for question in questions]


def _of_triton(grpc_url: str, model: str, question: Mapping[str, Any]) -> str:
    return "".join(piece.text for piece in conversation.stream(grpc_url, model, question))


def _of_http(engine: Engine, base: str, question: Mapping[str, Any]) -> str:
    text = question["text_input"].item().decode()
    fields = json.loads(question["sampling_parameters"].item())
    assert engine.url is not None  # noqa: S101
    if address(engine.url).scheme.startswith("torchserve"):
        return _post(f"{base}/predictions/{engine.model}", {"prompt": text, **fields}).decode(errors="replace")
    url = endpoint(base)
    body = {"model": engine.model, **fields}
    body |= {"messages": [{"role": "user", "content": text}]} if url.endswith(CHAT) else {"prompt": text}
    try:
        choice = json.loads(_post(url, body))["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ServerError(f"{engine.name} gave an answer that is not OpenAI's") from None


def _post(url: str, body: Mapping[str, Any]) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    try:
        with opener.open(asked, timeout=ANSWER_LIMIT_S) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url} answered {error.code}: {error.read()[:200].decode(errors='replace')}") from None
    except OSError as error:
        raise ServerError(f"{url}: {getattr(error, 'reason', error)}") from None


def agreement(first: Sequence[str], other: Sequence[str]) -> dict[str, Any]:
    """{"equal": answers that are the same, "of": how many, "tokens": the median number of tokens before they part, of
    those that do}. Tokens are words where the model's tokenizer is not on this machine."""
    apart = [_common(a, b) for a, b in zip(first, other, strict=False) if a != b]
    return {
        "equal": sum(a == b for a, b in zip(first, other, strict=False)),
        "of": min(len(first), len(other)),
        "tokens": sorted(apart)[len(apart) // 2] if apart else None,
    }


def _common(a: str, b: str) -> int:
    x, y = _tokens(a), _tokens(b)
    return next((n for n, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))


def _tokens(text: str) -> list[Any]:
    found = _tokenizer()
    return text.split() if found is None else list(found.encode(text, add_special_tokens=False).ids)


@cache
def _tokenizer() -> Any:
    place = weights.tokenizer(ModelSpec(name="llm"))
    if place is None or not place.is_file():
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(place))
