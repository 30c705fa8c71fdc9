"""Where a language model's memory goes, predicted from its config; reconcile.py has it beside what was measured.

    weights      elements × bits of the served precision; in integer formats embedding and head take 8 bits, norms 32
    scales       float32, one a row in 8 bits, one a group of a row in 4
    zero-points  of 4 bits; they lie in the lowest bits of their scales and take no room of their own
    adapters     rank × (in + out) of each projection that one changes, 16 bits each
    KV cache     2 × layers × key heads × head size × bytes × tokens, in the cache's own precision
    activations  what the largest step holds at a time besides
    workspace    tables of rotations, and logits
    runtime      what an idle process has written besides its weights: Python, torch, and the allocator's slack
    libraries    pages of their files that the process has read, which other processes may have too

So 4 bits are not an eighth of 32: a group's scale adds a bit a weight, the embedding keeps 8, and cache, runtime and
libraries do not shrink at all. Key heads, not query heads: with grouped-query attention these are fewer (a third in
SmolLM2). Memory is host memory: what of the model's own process is in memory. That of libraries is counted whole, while
a PSS counts it by its share, which changes with every other process that comes and goes. On a GPU 4 bits have a zero
beside each scale, both bfloat16, and rows are filled up to whole thousands (lab/serve/models/torchao_linear.py).

Instances share nothing that they write: each is a process of its own, which packs the weights for itself and has its
own cache, step and runtime. Only pages of files are there once for all of them. Triton hands requests to whichever
instance is idle, so each is taken to meet its even share of them at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lab.measure.words import format_count
from lab.spec import ClosedLoop, ModelSpec, Precision, Workload

BITS: Mapping[Precision, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8, "int8_weight": 8, "int4": 4}
"""Of a weight in the matrices of the layers."""
INTEGER = ("int8", "int8_weight", "int4")
HEAD_BITS = 8
"""Of a weight of embedding and head in the integer formats."""
SCALE_BYTES = 4
PREFILL_TOKENS = 512
"""Tokens of prompts that the engine reads in one step (lab/serve/models/engine.py: Options.prefill_tokens)."""
THREADS = 2
"""Unless the model says how many (lab/serve/models/llm.py)."""
GPU_COLUMNS, GPU_GROUPS = 1024, (32, 64, 128, 256)
"""On a GPU a row in 4 bits takes multiples of so many columns, in groups of one of these sizes."""
MIB = 2**20
PAGE_BYTES, BLOCK = 4096, 32
"""In which the compiled engine's cache takes memory, and rows of its blocks."""
RUNTIME_BYTES, COMPILER_BYTES = 209 * MIB, 33 * MIB
LIBRARY_BYTES, COMPILER_LIBRARY_BYTES = 98 * MIB, 68 * MIB
"""Measured once, with the versions that the lab pins: what Python and torch write when they are loaded, pages of their
libraries, and those of numba and LLVM, which the compiled engine brings (lab/serve/models/compiled_decoder.py). The
first load on a machine also compiles, which leaves up to 200 MiB more in that process."""


@dataclass(frozen=True)
class Predicted:
    """One row: `size_bytes`, and the arithmetic in words."""

    name: str
    size_bytes: float
    formula: str


@dataclass(frozen=True)
class Ledger:
    """`kv_bytes_per_token`: keys and values of one token, whether or not a cache keeps them. `elements` of all
    matrices that a step reads, embedding and head once where they are one. `held_tokens`: the most that the load
    can have in the cache at a time; `taken_at_once`: bytes of what a load uses that the idle process has already. All
    are of `instances` together, but for `elements`: a step is one instance's."""

    rows: tuple[Predicted, ...]
    kv_bytes_per_token: float
    elements: int
    held_tokens: int
    taken_at_once: float = 0.0
    instances: int = 1

    def __getitem__(self, name: str) -> Predicted:
        return next(row for row in self.rows if row.name == name)


def cache_precision(spec: ModelSpec) -> Precision:
    """Of the keys and values that are kept."""
    return spec.kv_cache_precision or ("fp32" if spec.precision == "fp32" else "bf16")


def kv_bytes_per_token(config: Mapping[str, Any], precision: Precision) -> int:
    """`config`: the contents of a Llama's config.json. In 8 bits each head's key and value has a scale of its own."""
    heads = 2 * int(config["num_hidden_layers"]) * _kv_heads(config)
    scales = SCALE_BYTES if precision == "int8" else 0
    return heads * (_head_dim(config) * BITS[precision] // 8 + scales)


def predict(
    config: Mapping[str, Any], spec: ModelSpec, workload: Workload | None = None, adapter_bytes: float | None = None
) -> Ledger:
    """What serving `spec` with the weights of a Llama's `config` (config.json as a dict) takes under `workload`, whose
    requests fill as much of the cache as they can hold together; without one, all places with full requests.
    `adapter_bytes`: of its adapters, which are no matter of the config; None where it has none."""
    integer, bits, count = spec.precision in INTEGER, BITS[spec.precision], spec.instances
    layers, head, norms, rows = _elements(config)
    compiled, filled = is_compiled(spec), _filled(config, spec)
    head_bits = HEAD_BITS if integer else bits
    norm_bits = 32 if compiled else 16 if integer else bits
    groups = filled // spec.group_size if spec.precision == "int4" else rows
    scales = groups + head // config["hidden_size"] if integer else 0
    slots = 1 if spec.scheduler == "one" else spec.max_batch_size
    room = min(spec.max_request_tokens, config["max_position_embeddings"], spec.max_tokens_in_cache or 10**9)
    per_token = kv_bytes_per_token(config, cache_precision(spec))
    users, prompt, longest = _asked(workload, slots, room, count)
    # torch writes its zeros at once, the compiled engine's cache takes memory as tokens come.
    held = (users * longest if compiled else slots * room) if spec.kv_cache else 0
    read = min(PREFILL_TOKENS, users * prompt) if spec.kv_cache else users * longest
    tables, logits = _tables(config), 2 * users * config["vocab_size"] * 4
    in_use = _pages_of_the_cache(config, spec, users, longest) if compiled else slots * room * per_token
    wide, wide_formula = _activations(config, spec)
    cache_formula = (
        f"{format_count(per_token)} bytes: 2 × {config['num_hidden_layers']} layers × {_kv_heads(config)} key heads "
        f"(of {config['num_attention_heads']} heads) × {_kv_of_a_head(config, spec)}"
    )
    rows_of_one = (
        Predicted(
            "weights",
            (filled * bits + head * head_bits + norms * norm_bits) / 8,
            f"{format_count(filled)} × {bits} bits{_filling(spec)}, "
            f"embedding and head {format_count(head)} × {head_bits} bits, "
            f"norms {format_count(norms)} × {norm_bits} bits",
        ),
        Predicted(
            "scales",
            scales * SCALE_BYTES,
            f"{format_count(scales)} × {SCALE_BYTES} bytes: one a "
            + (f"group of {spec.group_size} weights, one a row of the embedding" if bits == 4 else "row")
            if integer
            else "nothing is quantized",
        ),
        *(
            [Predicted("adapters", adapter_bytes, f"{len(spec.adapters)} of them, A and B × 2 bytes")]
            if adapter_bytes is not None
            else []
        ),
        Predicted("zero-points", 0, _zero_points(spec)),
        Predicted(
            "KV cache, room",
            slots * room * per_token if spec.kv_cache else 0,
            f"{format_count(slots * room)} tokens × {cache_formula}" if spec.kv_cache else "no cache",
        ),
        Predicted(
            "KV cache, in use",
            in_use if spec.kv_cache else 0,
            f"{format_count(held)} tokens × {format_count(per_token)} bytes, "
            + (f"in pages of {PAGE_BYTES:,}" if compiled else "all at once")
            if held
            else "no cache",
        ),
        Predicted("activations", read * wide, f"{format_count(read)} tokens × {wide_formula}"),
        Predicted("workspace", tables + logits, f"rotations, and logits of {users}, twice: to pick a token from"),
        _once("runtime", RUNTIME_BYTES, COMPILER_BYTES if compiled else 0),
        _once("libraries", LIBRARY_BYTES, COMPILER_LIBRARY_BYTES if compiled else 0),
    )
    return Ledger(
        tuple(_of_all(row, count) for row in rows_of_one),
        per_token,
        layers + head,
        count * held,
        taken_at_once=count * (tables + (0.0 if compiled or not spec.kv_cache else in_use)),
        instances=count,
    )


def _of_all(row: Predicted, instances: int) -> Predicted:
    if instances == 1 or not row.size_bytes:
        return row
    if row.name == "libraries":
        return replace(row, formula=f"{row.formula}; {instances} instances read the same files, counted once")
    return Predicted(row.name, instances * row.size_bytes, f"{instances} instances × ({row.formula})")


def is_compiled(spec: ModelSpec) -> bool:
    """Whether the compiled engine serves it, and not the one to read."""
    return spec.device == "cpu" and spec.precision in ("bf16", *INTEGER)


def _is_filled(spec: ModelSpec) -> bool:
    return spec.device == "gpu" and spec.precision == "int4" and spec.group_size in GPU_GROUPS


def _filled(config: Mapping[str, Any], spec: ModelSpec) -> int:
    """Weights of the layers' matrices as they lie in memory."""
    columns_of = GPU_COLUMNS if _is_filled(spec) else 1
    layer = sum(rows * -(-columns // columns_of) * columns_of for rows, columns in _matrices(config))
    return int(config["num_hidden_layers"]) * layer


def _filling(spec: ModelSpec) -> str:
    return f" (rows filled up to a multiple of {GPU_COLUMNS})" if _is_filled(spec) else ""


def _zero_points(spec: ModelSpec) -> str:
    if spec.precision != "int4":
        return "none in this format"
    return "half of the scales' bytes, as bfloat16" if _is_filled(spec) else "in the lowest 4 bits of their scales"


def _once(name: str, torch_bytes: int, compiler_bytes: int) -> Predicted:
    words = f"as measured once: Python and torch {torch_bytes // MIB} MiB"
    compiler = f", numba and LLVM {compiler_bytes // MIB} MiB" if compiler_bytes else ""
    return Predicted(name, torch_bytes + compiler_bytes, words + compiler)


def _asked(workload: Workload | None, slots: int, room: int, instances: int) -> tuple[int, int, int]:
    """(requests at a time of an instance, tokens of a prompt, tokens of a prompt and its answer), at the most."""
    if workload is None:
        return slots, room, room
    prompt, output = (
        lengths if isinstance(lengths, int) else lengths[1]
        for lengths in (workload.prompt_tokens, workload.output_tokens)
    )
    users = -(-workload.arrival.concurrency // instances) if isinstance(workload.arrival, ClosedLoop) else slots
    return min(users, slots), prompt, min(prompt + output, room)


def _matrices(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(rows, columns) of a layer's four matrices; those that read the same input are one."""
    hidden, mlp, queries = config["hidden_size"], config["intermediate_size"], _queries(config)
    return [
        (queries + 2 * _kv_heads(config) * _head_dim(config), hidden),
        (hidden, queries),
        (2 * mlp, hidden),
        (hidden, mlp),
    ]


def layer_elements(config: Mapping[str, Any]) -> int:
    """Weights that each token of a prompt is multiplied with: the layers'. The head sees only the last one."""
    return _elements(config)[0]


def _elements(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """(weights of the layers' matrices, of embedding and head, of the norms, rows of the layers' matrices)."""
    hidden, count, matrices = config["hidden_size"], config["num_hidden_layers"], _matrices(config)
    layers = count * sum(rows * columns for rows, columns in matrices)
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    return layers, embeddings, (2 * count + 1) * hidden, count * sum(rows for rows, _ in matrices)


def _activations(config: Mapping[str, Any], spec: ModelSpec) -> tuple[int, str]:
    """(bytes of a token that is read, the same in words)."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    queries = _queries(config)
    if not is_compiled(spec):
        # At its widest a layer holds x, its normed copy, gate and up, and their product.
        wide, size = 2 * hidden + 3 * mlp, 4 if spec.precision == "fp32" else 2
        return wide * size, f"{format_count(wide)} × {size} bytes"
    threads, longest = spec.threads or THREADS, max(hidden, queries, mlp)
    floats = hidden + queries + 2 * _kv_heads(config) * _head_dim(config)
    halves = queries + mlp + threads * (longest + longest // 4)  # of each thread its own, see forward.Space
    words = f"({format_count(floats)} × 4 + {format_count(halves)} × 2 bytes)"
    return 4 * floats + 2 * halves, words


def _pages_of_the_cache(config: Mapping[str, Any], spec: ModelSpec, users: int, tokens: int) -> float:
    """Bytes of pages that `tokens` of each of `users` touch: keys lie one token after the other, values in blocks of 32
    dimensions, each of which begins anew (lab/serve/models/forward.py: Cache)."""
    size, dim = BITS[cache_precision(spec)] // 8, _head_dim(config)
    keys = _pages(tokens * (dim * size + (SCALE_BYTES if size == 1 else 0)))
    values = -(-dim // BLOCK) * _pages(tokens * BLOCK * size) + (_pages(tokens * SCALE_BYTES) if size == 1 else 0)
    return float(users * int(config["num_hidden_layers"]) * _kv_heads(config) * (keys + values))


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _tables(config: Mapping[str, Any]) -> int:
    """Bytes of the cosines and sines of all positions, float32."""
    return int(config["max_position_embeddings"]) * _head_dim(config) * 4


def _kv_of_a_head(config: Mapping[str, Any], spec: ModelSpec) -> str:
    precision = cache_precision(spec)
    words = f"{_head_dim(config)} × {BITS[precision] // 8} byte{'' if BITS[precision] == 8 else 's'}"
    return f"({words} and a scale of {SCALE_BYTES})" if precision == "int8" else words


def _queries(config: Mapping[str, Any]) -> int:
    """Columns of all query heads."""
    return int(config["num_attention_heads"]) * _head_dim(config)


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
