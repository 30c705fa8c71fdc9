"""The engine: which requests run in the next step, and what became of them. `Engine.step` is the whole of serving.

    waiting ──admit──▶ running (row r of the batch = slot r of the cache) ──finish──▶ gone
       ▲                  │
       └────preempt───────┘   the cache is full: the youngest gives its place up and is read anew later

Schedulers: "one" serves a request at a time; "static" fills a batch and lets nobody in until its last member ends,
computing the rows of those that ended as padding, as transformers' generate() does; "continuous" lets requests join
and leave between any two steps. Admission is first come, first served: a request
that does not fit yet is not overtaken. Rows stay dense: when a request leaves, the last row moves into its place.

`kv_cache=False` keeps no keys and values: every step reads every running request from its first token.

Synchronous and single-threaded; engine_thread.py runs it for callers in other threads. Knows nothing of Triton.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from .adapters import Adapters
from .decoder import Decoder, Span
from .request import Counters, Output, Request
from .sampling import Sampling, pick
from .text_stream import TextStream

if TYPE_CHECKING:
    from .compiled_decoder import CompiledDecoder

LORA_NAME = "lora_name"
"""As Triton's vLLM backend calls it."""

Scheduler = Literal["one", "static", "continuous"]


@dataclass(frozen=True)
class Options:
    """`max_tokens_in_cache` bounds the tokens that all running requests hold together; None, or more than fit the
    slots: as many as do, so that nothing is ever preempted. `max_request_tokens` (prompt and answer) is the length of
    a slot and at most the model's context. A prompt is read `prefill_tokens` at a time, so that it holds up the others
    no longer. `max_adapters` may be loaded at a time; None: as many as memory holds."""

    scheduler: Scheduler = "continuous"
    kv_cache: bool = True
    max_batch_size: int = 8
    max_request_tokens: int = 2048
    max_tokens_in_cache: int | None = None
    prefill_tokens: int = 512
    max_adapters: int | None = None

    def __post_init__(self) -> None:
        if self.scheduler not in ("one", "static", "continuous"):
            raise ValueError(f"scheduler {self.scheduler!r}; allowed: one, static, continuous")
        for name in ("max_batch_size", "max_request_tokens", "max_tokens_in_cache", "prefill_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}; allowed: 1 or more")


@dataclass
class Engine:
    decoder: Decoder | CompiledDecoder
    tokenizer: Tokenizer
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        options, context = self.options, self.decoder.config.context_tokens
        self.slots = 1 if options.scheduler == "one" else options.max_batch_size
        self.limit = min(options.max_request_tokens, context)
        self.cache: Any = None  # the decoder's own kind
        self.counters = Counters()
        if options.kv_cache:
            slots_hold = self.slots * self.limit
            room = min(options.max_tokens_in_cache or slots_hold, slots_hold)
            self.limit = min(self.limit, room)
            self.cache = self.decoder.cache(self.slots, self.limit)
            self.counters.cache_tokens_used, self.counters.cache_tokens_total = 0, room
        self.adapters = Adapters(self.decoder.config, self.decoder.adapter, options.max_adapters)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._requests: dict[str, Request] = {}  # waiting and running
        self._cancelled: dict[str, Request] = {}
        self._arrivals = 0
        self._batch = 0  # rows that a step computes at least: the size of the static batch

    # --- what callers do ------------------------------------------------------------------------------------------

    def request(self, id: str, prompt: str | Sequence[int], parameters: Mapping[str, Any]) -> Request:
        """A checked request, not yet added; changes nothing, so any thread may call it. `parameters` are those of
        Sampling and `lora_name`, the adapter that answers it.

        ValueError in one line when it is wrong or can never fit, with the numbers.
        """
        sampling = Sampling.parse({name: value for name, value in parameters.items() if name != LORA_NAME})
        name = parameters.get(LORA_NAME)
        adapter = None if name is None else self.adapters.get(name)
        tokens = list(self.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt)
        if not tokens:
            raise ValueError("prompt is empty; allowed: one token or more")
        if not all(0 <= token < self.decoder.config.vocabulary for token in tokens):
            raise ValueError(f"prompt holds a token outside 0 to {self.decoder.config.vocabulary - 1}")
        if len(tokens) + sampling.max_tokens > self.limit:
            raise ValueError(
                f"prompt of {len(tokens)} tokens and max_tokens {sampling.max_tokens} make "
                f"{len(tokens) + sampling.max_tokens}; allowed: {self.limit} together"
            )
        text = TextStream(self.tokenizer, sampling.stop)
        random = np.random.default_rng(sampling.seed)
        return Request(id, tokens, len(tokens), sampling, text, random, adapter=adapter)

    def add(self, request: Request) -> None:
        """Queues it behind all others. ValueError when a request of that id is still there."""
        if request.id in self._requests:
            raise ValueError(f"id {request.id!r} is in use")
        self._requests[request.id] = request
        self._arrivals += 1
        request.number = self._arrivals
        self.waiting.append(request)

    def cancel(self, id: str) -> None:
        """Ends the request at the start of the next step, before another token. An unknown id has ended already."""
        if request := self._requests.get(id):
            self._cancelled[id] = request

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Output]:
        """One token for every running request whose prompt is read, and a piece of the prompts that are not."""
        began = time.perf_counter_ns()
        outputs = self._drop_cancelled()
        self._preempt()
        self._admit()
        outputs += self._write_tokens() + self._read_prompts() if self.cache else self._recompute()
        self._count(began)
        return outputs

    def abandon(self, error: str) -> list[Output]:
        """Ends every request with an error, after a step has failed; the engine is as new."""
        outputs = [self._end(request, "error", error) for request in list(self._requests.values())]
        self.running.clear()
        self.waiting.clear()
        self._cancelled.clear()
        return outputs

    # --- who runs -------------------------------------------------------------------------------------------------

    def _drop_cancelled(self) -> list[Output]:
        gone, self._cancelled = list(self._cancelled.values()), {}
        for request in gone:
            if request in self.running:
                self._leave(request)
            else:
                self.waiting.remove(request)
        self.counters.cancelled += len(gone)
        return [self._end(request, "cancelled") for request in gone]

    def _preempt(self) -> None:
        """Makes room for the token that each running request is about to store. The oldest always stays."""
        while self.cache and sum(len(request.tokens) for request in self.running) > self._room:
            youngest = max(self.running, key=lambda request: request.number)
            self._leave(youngest)
            self.waiting.appendleft(youngest)
            self.counters.preemptions += 1

    def _admit(self) -> None:
        if self.running and self.options.scheduler != "continuous":
            return
        while self.waiting and len(self.running) < self.slots and self._fits(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        self._batch = len(self.running) if self.options.scheduler == "static" else 0

    def _fits(self, request: Request) -> bool:
        """Whether all its tokens do and, with company, one more for everybody: else the first step would preempt."""
        held = sum(len(other.tokens) + 1 for other in self.running)
        return not self.cache or held + len(request.tokens) + (1 if self.running else 0) <= self._room

    @property
    def _room(self) -> int:
        return self.counters.cache_tokens_total or 0

    def _leave(self, request: Request) -> None:
        """Out of the batch. The last row moves into its place: attention then reads no holes."""
        row, last = self.running.index(request), self.running.pop()
        if last is not request:
            self.running[row] = last
            if self.cache:
                self.cache.move(len(self.running), row, last.cached)
        request.cached = 0

    # --- what is computed -----------------------------------------------------------------------------------------

    def _write_tokens(self) -> list[Output]:
        """Decode: the newest token of each request goes in, the next one comes out."""
        began = time.perf_counter_ns()
        ready = [row for row, request in enumerate(self.running) if request.pending == 1]
        if not ready:
            return []
        # A row among them whose prompt is still being read computes along: what it stores is overwritten by the
        # prompt's next piece, and its logits are not looked at.
        rows = self.running[: max(ready[-1] + 1, self._batch)]
        tokens, positions = [request.tokens[-1] for request in rows], [request.cached for request in rows]
        padding, adapters = max(0, self._batch - len(rows)), [request.adapter for request in rows]
        assert self.cache is not None  # noqa: S101
        logits = self.decoder.decode(tokens + [0] * padding, positions + positions[-1:] * padding, self.cache, adapters)
        requests = [rows[row] for row in ready]
        for request in requests:
            request.cached += 1
        outputs = self._take(requests, logits if len(ready) == len(logits) else logits[ready])
        self.counters.decode_s += (time.perf_counter_ns() - began) / 1e9
        return outputs

    def _read_prompts(self) -> list[Output]:
        """Prefill: at most `prefill_tokens` of the prompts, oldest first; a prompt read to its end gives a token."""
        began = time.perf_counter_ns()
        budget, spans, requests = self.options.prefill_tokens, [], []
        for request in sorted(self.running, key=lambda request: request.number):
            if request.pending > 1 and budget:  # one pending token is written, not read
                take = min(request.pending, budget)
                piece = request.tokens[request.cached : request.cached + take]
                spans.append(Span(piece, self.running.index(request), request.cached, request.adapter))
                requests.append(request)
                request.cached += take
                budget -= take
        if not spans:
            return []
        logits = self.decoder.prefill(spans, self.cache)
        self.counters.prefill_tokens += self.options.prefill_tokens - budget
        self.counters.prefill_steps += 1
        done = [i for i, request in enumerate(requests) if request.pending == 0]
        outputs = self._take([requests[i] for i in done], logits[done]) if done else []
        self.counters.prefill_s += (time.perf_counter_ns() - began) / 1e9
        return outputs

    def _recompute(self) -> list[Output]:
        """A step without a cache: everything from the first token on."""
        if not self.running:
            return []
        began = time.perf_counter_ns()
        spans = [Span(request.tokens, adapter=request.adapter) for request in self.running]
        outputs = self._take(list(self.running), self.decoder.prefill(spans, None))
        self.counters.prefill_tokens += sum(len(span.tokens) for span in spans)
        self.counters.decode_s += (time.perf_counter_ns() - began) / 1e9
        return outputs

    def _take(self, requests: list[Request], logits: Tensor) -> list[Output]:
        """Chooses each one's next token from its row of `logits` and lets those go that are through."""
        wishes, generators = [r.sampling for r in requests], [r.random for r in requests]
        tokens = pick(logits, wishes, generators)
        return [self._accept(request, token) for request, token in zip(requests, tokens, strict=True)]

    def _accept(self, request: Request, token: int) -> Output:
        sampling = request.sampling
        request.tokens.append(token)
        self.counters.output_tokens += 1
        text, reason = "", None
        if token in self.decoder.config.eos_tokens and not sampling.ignore_eos:
            text, reason = request.text.finish(), "stop"
        else:
            text, stopped = request.text.push(token)
            if stopped:
                reason = "stop"
            elif request.output_tokens == sampling.max_tokens:
                text, reason = text + request.text.finish(), "length"
        if reason is None:
            return Output(request.id, token, text, None, request.prompt_tokens, request.output_tokens)
        self._leave(request)
        self.counters.finished += 1
        return self._end(request, reason, token=token, text=text)

    def _end(
        self, request: Request, reason: Any, error: str | None = None, token: Any = None, text: str = ""
    ) -> Output:
        del self._requests[request.id]
        request.adapter = None  # one that is unloaded waits for this
        return Output(request.id, token, text, reason, request.prompt_tokens, request.output_tokens, error)

    def _count(self, began: int) -> None:
        counters = self.counters
        counters.running, counters.waiting = len(self.running), len(self.waiting)
        if self.cache:
            counters.cache_tokens_used = sum(request.cached for request in self.running)
        counters.steps += 1
        counters.step_s = (time.perf_counter_ns() - began) / 1e9


def run_to_end(engine: Engine, requests: Iterable[Request]) -> dict[str, list[Output]]:
    """Adds the requests and steps until all are through; outputs by id. For tests and measurements."""
    outputs: dict[str, list[Output]] = {}
    for request in requests:
        engine.add(request)
        outputs[request.id] = []
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
    return outputs
