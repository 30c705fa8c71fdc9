"""Runs of a language model, made without one: an engine is simulated step by step and written as a runner writes it.

A step costs `STEP_S` for the weights and `MEMBER_S` for each answer in it; without a cache it costs `ANEW_S` for every
token that is computed anew. A prompt is read at `READ_S` a token before its first token. So the cache keeps the time
per token flat, and a static batch waits for its longest answer, as with the real thing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lab.measure.formats import change_answers, distinct, format_label
from lab.measure.quality import Answer as Written
from lab.measure.quality import Quality, first_difference, judge
from lab.measure.records import OK, TELEMETRY, TIMEOUT
from lab.run import catalogue
from lab.run.folder import RunFolder
from lab.run.plan import Block, cell_blocks, level_blocks, settle, with_rate
from lab.spec import ClosedLoop, ModelSpec, Workload, parse_setting
from tests.show.synthetic import MIB, SECOND, Author

STEP_S, MEMBER_S, ANEW_S, READ_S = 0.016, 0.0012, 0.00018, 0.0004
STEP_OF = {"fp32": 0.032, "int8": 0.008, "int8_weight": 0.0085, "int4": 0.0065}
"""Instead of STEP_S: the fewer bytes, the shorter; MEMBER_OF likewise, by what is multiplied."""
MEMBER_OF = {"fp32": 0.003, "int8": 0.0004, "int8_weight": 0.0014, "int4": 0.0016}
TOKEN_BYTES = 23_040
RUNTIME_MIB, LIBRARIES_MIB = 398.0, 166.0
WEIGHTS_MIB = {"fp32": 513.1, "bf16": 256.6, "int8": 129.2, "int8_weight": 129.2, "int4": 90.6}
SCALES_MIB = {"int8": 0.78, "int8_weight": 0.78, "int4": 12.8}
"""Of WEIGHTS_MIB, by precision."""
CONFIG = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
MACHINE = {
    "read_bandwidth_bytes_s": 20e9,
    "matmul_bf16_flop_s": 170e9,
    "matmul_fp32_flop_s": 60e9,
    "matmul_int8_op_s": 400e9,
}
LOST = {"int8": 0.002, "int8_weight": 0.001, "int4 RTN": 0.11, "int4 GPTQ": 0.05, "int4 AWQ": 0.06}
"""Of the baseline's perplexity, by format; 0 for the others."""


@dataclass
class Answer:
    """One request, in seconds from the block's start."""

    due_s: float
    prompt: int
    length: int
    tokens_s: list[float] = field(default_factory=list)

    @property
    def held(self) -> int:
        return self.prompt + len(self.tokens_s)


@dataclass
class Engine:
    """What an engine did. `samples`: (time, running, waiting, tokens held, and the counters of `COUNTERS`)."""

    answers: list[Answer]
    samples: list[tuple[float, ...]] = field(default_factory=list)


COUNTERS = ("steps", "decode_seconds", "prefill_seconds", "prefill_tokens", "output_tokens")


def simulate(model: ModelSpec, workload: Workload, seconds: float, rng: np.random.Generator) -> Engine:
    """`seconds` of load; what is due by then is answered, unless it takes longer than the workload's timeout."""
    made = iter(_arrivals(workload, seconds, rng))
    users = workload.arrival.concurrency if isinstance(workload.arrival, ClosedLoop) else 0
    due: deque[Answer] = deque(next(made) for _ in range(users)) if users else deque(made)
    slots = 1 if model.scheduler == "one" else model.max_batch_size
    engine, waiting, running = Engine([]), deque[Answer](), list[Answer]()
    now, counters = 0.0, dict.fromkeys(COUNTERS, 0.0)
    while due or waiting or running:
        while due and due[0].due_s <= now:
            waiting.append(due.popleft())
            engine.answers.append(waiting[-1])
        if not waiting and not running:
            now = due[0].due_s
            continue
        late = [answer for answer in (*running, *waiting) if now - answer.due_s > workload.timeout_s]
        running = [answer for answer in running if answer not in late]
        waiting = deque(answer for answer in waiting if answer not in late)
        free = 0 if model.scheduler == "static" and running else slots - len(running)
        for _ in range(min(free, len(waiting))):
            running.append(waiting.popleft())
            now += READ_S * running[-1].prompt
            counters["prefill_seconds"] += READ_S * running[-1].prompt
            counters["prefill_tokens"] += running[-1].prompt
        anew = 0 if model.kv_cache else sum(answer.held for answer in running)
        weights_s, member_s = STEP_OF.get(model.precision, STEP_S), MEMBER_OF.get(model.precision, MEMBER_S)
        step = weights_s + member_s * len(running) + ANEW_S * anew + float(rng.gamma(2.0, 0.0002))
        now += step
        counters["steps"] += 1
        counters["decode_seconds"] += step
        counters["output_tokens"] += len(running)
        for answer in running:
            answer.tokens_s.append(now + float(rng.uniform(0, 0.0006)))
        for answer in [a for a in running if len(a.tokens_s) == a.length]:
            running.remove(answer)
            if users and now < seconds and (following := next(made, None)):
                following.due_s = answer.tokens_s[-1] + 0.0005
                due.append(following)
        if not engine.samples or now - engine.samples[-1][0] >= 0.25:
            held = sum(answer.held for answer in running) if model.kv_cache else 0
            engine.samples.append((now, len(running), len(waiting), held, *counters.values()))
    return engine


def _arrivals(workload: Workload, seconds: float, rng: np.random.Generator) -> list[Answer]:
    def drawn(lengths: int | tuple[int, int]) -> int:
        return lengths if isinstance(lengths, int) else int(rng.integers(lengths[0], lengths[1] + 1))

    if isinstance(workload.arrival, ClosedLoop):
        times = np.zeros(5000)
    else:
        gaps = rng.exponential(1 / workload.arrival.rate_rps, int(3 * workload.arrival.rate_rps * seconds) + 20)
        times = np.cumsum(gaps)
        times = times[times < seconds]
    return [Answer(float(t), drawn(workload.prompt_tokens), drawn(workload.output_tokens)) for t in times]


class LlmAuthor(Author):
    """Writes a run of a language model's experiment, block by block."""

    loaded: ModelSpec | None = None
    most = 0.0

    def llm_block(self, index: int, block: Block) -> None:
        model, workload = block.model, block.workload
        self.load(model)
        start_ns, seconds = self.now_ns, workload.duration_s
        engine = simulate(model, workload, seconds, np.random.default_rng([block.repeat, block.cell // 2]))
        end_ns = start_ns + int(seconds * SECOND)
        self.folder.event(
            "block_start", block=index, role=block.role, cell=block.cell, repeat=block.repeat,
            planned=None if isinstance(workload.arrival, ClosedLoop) else len(engine.answers),
            workload=workload.model_dump(mode="json"), model=model.model_dump(mode="json"),
            start_ns=start_ns, measured_from_ns=start_ns + int(workload.warmup_s * SECOND), end_ns=end_ns,
            t_ns=start_ns,
        )  # fmt: skip
        self.answers(index, start_ns, engine, workload.timeout_s)
        for t_s, running, waiting, held, *counted in engine.samples:
            room = model.kv_cache * model.max_batch_size * model.max_request_tokens
            values = {
                "engine_running": running,
                "engine_waiting": waiting,
                "engine_cache_tokens_used": held,
                "engine_cache_tokens_total": room,
                "engine_weight_bytes": WEIGHTS_MIB[model.precision] * MIB,
                **({"engine_scale_bytes": scales * MIB} if (scales := SCALES_MIB.get(model.precision)) else {}),
                "engine_preemptions": 0.0,
                "engine_cache_bytes": room * TOKEN_BYTES,
            }
            values |= {f"engine_{name}": value for name, value in zip(COUNTERS, counted, strict=True)}
            self.scrape(start_ns + int(t_s * SECOND), model.name, values)
        self.memory(start_ns, engine, model)
        self.note_memory("held", 6 + self.most * TOKEN_BYTES / MIB)
        self.folder.event("block_end", block=index, planned=None, end_ns=end_ns, t_ns=end_ns)
        last_s = max([seconds, *(t for answer in engine.answers for t in answer.tokens_s[-1:])])
        self.now_ns = start_ns + int((last_s + 0.2) * SECOND)

    def answers(self, index: int, start_ns: int, engine: Engine, timeout_s: float) -> None:
        """The requests of a block; timeouts keep the tokens that arrived."""
        whole = [len(answer.tokens_s) == answer.length for answer in engine.answers]
        stamps = [[start_ns + int(t * SECOND) for t in answer.tokens_s] for answer in engine.answers]
        due = [start_ns + int(answer.due_s * SECOND) for answer in engine.answers]
        self.write(
            {
                "block": [index] * len(due),
                "request": list(range(len(due))),
                "due_ns": due,
                "sent_ns": [t + 60_000 for t in due],
                "done_ns": [
                    s[-1] + 90_000 if ok else t + int(timeout_s * SECOND)
                    for s, t, ok in zip(stamps, due, whole, strict=True)
                ],
                "outcome": [OK if ok else TIMEOUT for ok in whole],
                "detail": [None if ok else "given up" for ok in whole],
                "prompt_tokens": [answer.prompt for answer in engine.answers],
                "output_tokens": [len(s) for s in stamps],
                "chunk_ns": stamps,
                "chunk_tokens": [[1] * len(s) for s in stamps],
                "reasoning_chunks": [0] * len(due),
            }
        )

    def load(self, model: ModelSpec) -> None:
        """As the bench does: only where another configuration is in force."""
        if model == self.loaded:
            return
        self.loaded, self.most = model, 0.0
        self.folder.event("loaded", model=model.model_dump(mode="json"), seconds=1.0, t_ns=self.now_ns)
        self.note_memory("idle", 0.0)

    def note_memory(self, kind: str, grown_mib: float) -> None:
        assert self.loaded is not None
        own = (RUNTIME_MIB - LIBRARIES_MIB + WEIGHTS_MIB[self.loaded.precision] + grown_mib) * MIB
        files = LIBRARIES_MIB * MIB
        self.folder.event(kind, model=self.loaded.name, own_bytes=own, file_bytes=files, t_ns=self.now_ns)

    def memory(self, start_ns: int, engine: Engine, model: ModelSpec) -> None:
        """Memory of the model's process: what a token took stays until the model is loaded anew."""
        rows = []
        for t_s, _, _, held, *_ in engine.samples:
            self.most = max(self.most, held)
            mib = (
                RUNTIME_MIB + WEIGHTS_MIB[model.precision] + 6 + self.most * TOKEN_BYTES / MIB + self.rng.normal(0, 0.2)
            )
            rows.append((start_ns + int(t_s * SECOND), "model:llm", "memory_bytes", mib * MIB, None))
        columns = dict(zip(TELEMETRY.names, map(list, zip(*rows, strict=True)), strict=True))
        self.folder.append("telemetry", pa.table(columns, TELEMETRY))


def run(name: str, run_id: str, *settings: str, saturation_rps: float = 0.8, state: str = "done") -> RunFolder:
    """The experiment of that name as `--quick` has it, with `--set` settings applied. Another `state` than done stops
    after the third cell."""
    experiment = settle(catalogue.experiment(name), [parse_setting(s) for s in settings], quick=True)
    first, then = level_blocks(experiment), cell_blocks(experiment)
    blocks = [with_rate(block, saturation_rps) for block in first + then]
    if state != "done":
        blocks = blocks[: len(first) + 3]
    author = LlmAuthor(experiment, run_id, seconds=sum(b.workload.duration_s + 10 for b in blocks))
    author.folder.event("limits", weights=None, config=CONFIG, machine=MACHINE)
    if change_answers(experiment):
        for model in distinct(cell.model for cell in experiment.cells()):
            found = quality(format_label(model)).to_dict()
            author.folder.event("quality", format=found["format"], quality=found, reason=None)
    levels = [{"level": b.level, "differing": 0, "max_abs_difference": None, "equal": True} for b in first]
    if not change_answers(experiment):
        author.folder.event("answers", requests=8, precision="bf16", tolerance=None, levels=levels)
    for index, block in enumerate(blocks):
        author.llm_block(index, block)
    return author.end(state, {"failed": "the server died while the load ran: signal 9"}.get(state, ""))


def quality(label: str) -> Quality:
    """As an evaluation would have it: 40 passages of 100 tokens, of which a format loses LOST on average."""
    rng = np.random.default_rng(11)
    tokens = [100] * 40
    base = list(100 * rng.normal(2.5, 0.3, 40))
    worse = [
        nats + 100 * np.log1p(LOST.get(label, 0.0) + x) for nats, x in zip(base, rng.normal(0, 0.004, 40), strict=True)
    ]
    seen = {"nats": base if label == "bf16" else worse, "tokens": tokens, "cloze": [True] * 60 + [False] * 20}
    theirs = ("The", " sky", " is", " blue", " because", " of", " light", ".")
    ours = theirs if LOST.get(label, 0.0) < 0.01 else (*theirs[:4], " since", " air", " scatters", *theirs[6:])
    return Quality(
        format=label,
        baseline="bf16",
        is_baseline=label == "bf16",
        measures=judge(seen, None if label == "bf16" else {**seen, "nats": base}),
        answers=()
        if label == "bf16"
        else (Written("Why is the sky blue?", ours, theirs, first_difference(ours, theirs)),),
        notes=("The base weights were 4 bits before.",) if "int4" in label else (),
        evaluated_s=60.0,
    )


def load_run(run_id: str, seconds: float = 60.0, *, kv_cache: bool = True, rate_rps: float = 1.6) -> RunFolder:
    """One load on the language model, watched and finished."""
    workload = {
        "arrival": {"kind": "poisson", "rate_rps": rate_rps},
        "duration_s": seconds,
        "output_tokens": [8, 128],
        "timeout_s": 20,
    }
    experiment = catalogue.single({"name": "llm", "kv_cache": kv_cache}, workload, [])
    author = LlmAuthor(experiment, run_id, quick=False, seconds=seconds + 10)
    author.folder.event("limits", weights=None, config=CONFIG, machine=MACHINE, t_ns=author.now_ns)
    author.llm_block(0, cell_blocks(experiment)[0])
    return author.end("done")
