"""Drills on many models on one device: what fits, what swapping costs, and adapters."""

from __future__ import annotations

from typing import Any

from lab.show.drills.drill import Drill, Number, Points, Values
from lab.show.drills.levers import BF16_BYTES, primary_chart
from lab.show.drills.measures import ANY
from lab.show.drills.source import Source

RANK = 8
ADAPTERS = 20


def _fleet(source: Source) -> dict[str, Any]:
    found = source.document.get("fleet")
    return found if isinstance(found, dict) else {}


def _fits(source: Source) -> Values | None:
    fleet = _fleet(source)
    filled = [m for m in fleet.get("filled", ()) if m.get("own_bytes") and m.get("alone_bytes")]
    budget = fleet.get("budget_bytes")
    if not filled or not budget:
        return None
    first = filled[0]
    shared = first["alone_bytes"] - first["own_bytes"]
    count = int((budget - shared) // first["own_bytes"])
    return {"family": first["family"], "budget_bytes": budget, "alone_bytes": first["alone_bytes"],
            "own_bytes": first["own_bytes"], "shared_bytes": shared, "fit_n": count,
            "naive_n": int(budget // first["alone_bytes"])} if count > 0 else None  # fmt: skip


def _swap(source: Source) -> Values | None:
    cells = [c for c in _fleet(source).get("cells", ()) if isinstance(c, dict)]
    for cell in reversed(cells):
        load, unload = cell.get("load_median_s"), cell.get("unload_median_s")
        if load and unload:
            return {
                "load_s": load,
                "unload_s": unload,
                "swap_s": load + unload,
                "misses_rps": 1 / (load + unload),
                "per_minute": 60 / (load + unload),
            }
    return None


def _cliff(source: Source) -> Values | None:
    over, load = source.level(5), source.grid.loads[0] if source.grid.loads else None
    fit = source.at(source.level(4), load, "throughput_rps")
    broken = source.at(over, load, "throughput_rps", "latency_p50_s")
    if fit is None or broken is None or not broken["throughput_rps"]:
        return None
    return {"fit_rps": fit["throughput_rps"], "over_rps": broken["throughput_rps"], "p50_s": broken["latency_p50_s"],
            "fall_ratio": fit["throughput_rps"] / broken["throughput_rps"]}  # fmt: skip


def _adapter(source: Source) -> Values | None:
    """A LoRA adapter of rank RANK on the query and value projections of the run's own model, in bf16."""
    config = source.architecture
    found = source.some("engine_weight_bytes")
    if config is None or found is None:
        return None
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    query = config["num_attention_heads"] * width
    value = (config.get("num_key_value_heads") or config["num_attention_heads"]) * width
    each = RANK * (hidden + query + hidden + value) * layers * BF16_BYTES
    base = found["engine_weight_bytes"]
    return {"rank_n": RANK, "hidden_n": hidden, "query_n": query, "value_n": value, "layers_n": layers,
            "adapter_bytes": each, "base_bytes": base, "adapters_n": ADAPTERS, "together_bytes": base + ADAPTERS * each,
            "apart_bytes": base * ADAPTERS, "saved_ratio": base * ADAPTERS / (base + ADAPTERS * each)}  # fmt: skip


DRILLS = (
    Drill(
        "fit", "models", "multi-model", ("multi_model",), _fits,
        ask="A budget of {budget_bytes}. One {family} process holds {alone_bytes}, of which {shared_bytes} are pages "
        "that a second one shares. How many such models fit?",
        answer=Number("fit_n", "models", near=1.01),
        formula="⌊(budget − shared) ÷ own⌋ = ⌊({budget_bytes} − {shared_bytes}) ÷ {own_bytes}⌋ = {fit_n}",
        why="Dividing by what one process shows ({alone_bytes}) says {naive_n}: shared pages are counted once, or the "
        "device looks full when it is not.",
        source="proportional and private set sizes of the processes (lab/watch/smaps.py)",
        then="What does each of them need besides, once requests come?",
    ),
    Drill(
        "swap", "models", "multi-model", ("multi_model",), _swap,
        ask="A request for a model that is not loaded waits until one is unloaded ({unload_s}) and it is loaded "
        "({load_s}); swaps run one after the other. How many are there a minute at most, however many wait for each?",
        answer=Number("misses_rps", "a minute", scale=60, near=1.15),
        formula="60 s ÷ (load + unload) = 60 s ÷ {swap_s} = {per_minute}",
        why="However fast the model is: once each request misses, the swap is the server. Users who wait in a closed "
        "loop then ask for nothing else, and throughput falls for the models that are loaded too.",
        source="the run's own swaps",
        then="Which eviction rule helps when users ask a few models often and many seldom?",
        chart=primary_chart,
    ),
    Drill(
        "cliff", "models", "multi-model", ("multi_model",), _cliff,
        ask="Four models fit, and {fit_rps} are served. A fifth is asked, less than any other. By what factor does "
        "throughput fall?",
        answer=Number("fall_ratio", "times less", near=2.0),
        formula="{fit_rps} ÷ {over_rps} = {fall_ratio}; p50 is then {p50_s}",
        why="It is a cliff and no slope: one model too many makes each miss evict what the next request needs. Leave "
        "room for one more than you have, or refuse by name.",
        source="the run's own cells, the same users in a closed loop",
        then="How would you see the cliff coming in production?",
        chart=primary_chart,
    ),
    Drill(
        "neighbours", "models", "multi-model", ("multi_model",), _cliff,
        ask="Two models share a device. How do you find out who slows whom, and what do you do about it?",
        answer=Points((
            "Measure each alone, then each pair, at the load that the slower one had alone: p99 of the victim is the "
            "figure.",
            "Tell apart what they share: cores, memory bandwidth, the device's queue, the cache.",
            "Limit: instances, threads, priorities, a rate limiter, or a device of its own (MIG, another node).",
            "Say which objective gives way; not both can have the rest of the machine.",
            "Once more than fits is asked, nothing of this matters: {fit_rps} became {over_rps}.",
        )),
        formula="interference = p99 beside ÷ p99 alone",
        why="Averages over both hide the victim, which is usually the small one.",
        source="the run's pairs (who slows whom on the page Multi-model memory)",
        then="Would you rather share one process, or one device?",
    ),
    Drill(
        "lora_size", "models", "LoRA", ("quantization", "llm_batching", "kv_cache"), _adapter,
        ask="A LoRA adapter of rank {rank_n} on queries ({hidden_n} → {query_n}) and values ({hidden_n} → {value_n}) "
        "of {layers_n} layers, in bf16. How many KiB?",
        answer=Number("adapter_bytes", "KiB", scale=1 / 1024, near=1.05),
        formula="r × Σ(in + out) × layers × 2 bytes = {adapter_bytes}",
        why="The base takes {base_bytes}: an adapter is two thin matrices beside each wide one.",
        source="E. Hu et al., LoRA, ICLR 2022: W + BA, B out × r, A r × in",
        then="Rank doubles. What doubles with it, and what does not?",
    ),
    Drill(
        "lora_fleet", "models", "LoRA", ("quantization", "llm_batching", "kv_cache"), _adapter,
        ask="{adapters_n} customers, each with an own adapter of {adapter_bytes} on one base of {base_bytes}. How many "
        "times less memory than {adapters_n} merged copies?",
        answer=Number("saved_ratio", "times less"),
        formula="{adapters_n} × base ÷ (base + {adapters_n} × adapter) = {apart_bytes} ÷ {together_bytes} = "
        "{saved_ratio}",
        why="Memory is nearly free; batching is the harder part: requests of different adapters share a step only if "
        "the server computes base and adapters apart.",
        source="arithmetic; Y. Sheng et al., S-LoRA, and L. Chen et al., Punica, 2023",
        then="When is merging the adapter into the base right all the same?",
    ),
    Drill(
        "budget", "models", "multi-model", ANY, lambda s: s.some("memory_peak_bytes"),
        ask="Someone says: “the model is 250 MB, the machine has 16 GB, so 64 copies fit.” What is missing?",
        answer=Points((
            "The runtime: a process of the framework holds more than small weights do. This run peaked at "
            "{memory_peak_bytes} ({cell}).",
            "What requests need: activations, the KV cache, buffers for the largest batch.",
            "Fragmentation, and what does not come back after unloading.",
            "Room for loading the next version beside the present one.",
            "Whether memory is the limit at all: cores and bandwidth are shared by all copies.",
        )),
        formula="peak = runtime + weights + what is under way + what is left behind",
        why="Predict it part by part, measure it, and believe the sum only when both agree.",
        source="lab/measure/ledger.py",
        then="How do you find a leak of 20 MiB a reload?",
    ),
)  # fmt: skip
