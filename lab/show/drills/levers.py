"""Drills on what makes a model cheaper to serve: batching, KV cache, quantization, and the device."""

from __future__ import annotations

from typing import Any

from lab.measure.words import format_ratio
from lab.show.charts import batching as batching_charts
from lab.show.charts import levels
from lab.show.charts.figure import Chart
from lab.show.drills.drill import Choice, Drill, Number, Points, Values
from lab.show.drills.serving import curve
from lab.show.drills.source import Source

SHARED = 8
USERS, TOKENS_EACH = 8, 1024
BF16_BYTES = 2


def primary_chart(source: Source) -> Chart:
    """Every ratio of the primary metric to the baseline, with its interval."""
    return levels.effects(dict(source.document), source.grid, source.primary, "Against the baseline")


def gain_curve(source: Source) -> Chart:
    """Of the level that serves most at saturation."""
    best = _best(source, "throughput_rps")
    return curve(source, best and best[0])


def delay_curve(source: Source) -> Chart:
    """Of the level that waits longest for company."""
    found = _delay(source)
    return curve(source, None if found is None else str(found["level"]))


def item_cost(source: Source) -> Chart:
    load = source.load(-1) or ""
    summaries = [s for level in source.grid.levels for s in source.grid.at(level, load)]
    return batching_charts.cost_of_one(summaries, source.model)


def _best(source: Source, metric: str) -> tuple[str, float] | None:
    found = [(level, rate) for level in source.grid.others() if (rate := source.saturation(level, metric))]
    return max(found, key=lambda pair: pair[1]) if found else None


def _gain(source: Source) -> Values | None:
    off, best = source.saturation(source.grid.baseline), _best(source, "throughput_rps")
    if not off or best is None:
        return None
    return {"model": source.model, "level": best[0], "baseline": source.grid.baseline, "off_rps": off,
            "on_rps": best[1], "gain_ratio": best[1] / off}  # fmt: skip


def _delay(source: Source) -> Values | None:
    """What the longest queue delay costs at the lightest load."""
    delays = {
        level: raw["max_queue_delay_us"] for level in source.grid.others()
        if isinstance(raw := source.grid.raw(level), dict) and raw.get("max_queue_delay_us")
    }  # fmt: skip
    if not delays:
        return None
    level = max(delays, key=lambda name: delays[name])
    light = source.load(0)
    off = source.at(source.grid.baseline, light, "latency_p50_s", "offered_rps")
    on = source.at(level, light, "latency_p50_s", "batch_mean")
    if off is None or on is None or on["latency_p50_s"] <= off["latency_p50_s"]:
        return None
    return {"model": source.model, "delay_s": delays[level] / 1e6, "level": level, "load": light, "off_s":
            off["latency_p50_s"], "on_s": on["latency_p50_s"], "added_s": on["latency_p50_s"] - off["latency_p50_s"],
            "offered_rps": off["offered_rps"], "batch_mean": on["batch_mean"]}  # fmt: skip


def _sharing(source: Source) -> Values | None:
    """What one request costs alone, and in the largest batch that ran often."""
    spent: dict[int, tuple[float, float]] = {}
    for cell in source.document["cells"]:
        summary = cell["summary"]
        for size, seconds in (summary.get("item_compute_s") or {}).items():
            n = (summary.get("batch_sizes") or {}).get(size, 0)
            total, times = spent.get(int(size), (0.0, 0.0))
            spent[int(size)] = total + seconds * n, times + n
    often = {size: total / times for size, (total, times) in spent.items() if times >= batching_charts.FEW_EXECUTIONS}
    large = [size for size in often if size >= SHARED]
    if 1 not in often or not large:
        return None
    size = min(large)
    return {"model": source.model, "size_n": size, "alone_s": often[1], "each_s": often[size],
            "batch_s": often[size] * size, "apart_s": often[1] * size}  # fmt: skip


def _pays(source: Source) -> Values | None:
    found = _sharing(source)
    return found and {**found, "share_ratio": found["alone_s"] / found["each_s"]}


def _token_bytes(source: Source) -> Values | None:
    config = source.architecture
    if config is None:
        return None
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    each = 2 * layers * heads * width * BF16_BYTES
    return {"model": source.model, "layers_n": layers, "heads_n": heads, "width_n": width, "token_bytes": each,
            "users_n": USERS, "tokens_n": TOKENS_EACH, "cache_bytes": each * USERS * TOKENS_EACH}  # fmt: skip


def _recomputed(source: Source) -> Values | None:
    """Tokens that go through the model for one answer without a cache, and what the cache bought."""
    load = source.load(-1)
    level = source.level(True)
    effect = source.effect(level, load, "output_tokens_per_s")
    raw = dict(source.grid.words_of(load or ""))
    lengths = {path: source.declared["factors"].get(path) for path in raw}
    prompt, answer = (_longest(lengths.get(f"workload.{name}"), source.declared["workload"][name])
                      for name in ("prompt_tokens", "output_tokens"))  # fmt: skip
    if effect is None or not effect["ratio"] or prompt is None or answer is None:
        return None
    with_cache = prompt + answer
    without = answer * prompt + answer * (answer - 1) // 2
    return {"prompt_n": prompt, "answer_n": answer, "with_n": with_cache, "without_n": without,
            "times_ratio": without / with_cache, "measured_ratio": effect["ratio"]}  # fmt: skip


def _longest(levels: Any, declared: Any) -> int | None:
    largest = max(levels, default=None, key=lambda v: v if isinstance(v, int) else 0) if levels else declared
    return largest if isinstance(largest, int) else None


def _weights(source: Source) -> Values | None:
    load = source.load(0)
    wide = source.at(source.level({"precision": "bf16"}), load, "engine_weight_bytes")
    narrow = source.at(source.level({"precision": "int8"}), load, "engine_weight_bytes")
    if wide is None or narrow is None:
        return None
    return {"wide_bytes": wide["engine_weight_bytes"], "narrow_bytes": narrow["engine_weight_bytes"],
            "half_bytes": wide["engine_weight_bytes"] / 2}  # fmt: skip


def _speed(source: Source) -> Values | None:
    """Which format wrote most for one user, with what it lost."""
    load = source.load(0)
    rates = {level: found["output_tokens_per_s"] for level in source.grid.levels
             if (found := source.at(level, load, "output_tokens_per_s"))}  # fmt: skip
    formats = source.document.get("formats") or {}
    if len(rates) < 3 or source.grid.baseline not in rates:
        return None
    shown = [source.grid.baseline, *[level for level in rates if level != source.grid.baseline][:3]]
    best = max(shown, key=lambda level: rates[level])
    quality = (formats.get(best) or {}).get("quality") or {}
    table = "; ".join(f"{level} {format_ratio(rates[level] / rates[source.grid.baseline])}" for level in shown)
    values = {f"option{n}": level for n, level in enumerate(shown)}
    return {**values, "place": shown.index(best), "best": best, "table": table, "load": load,
            "lost": str(quality.get("verdict") or "nothing was evaluated of it").rstrip(".")}  # fmt: skip


def _continuous(source: Source) -> Values | None:
    one = source.saturation(source.level("one"), "output_tokens_per_s")
    many = source.saturation(source.level("continuous"), "output_tokens_per_s")
    static = source.saturation(source.level("static"), "output_tokens_per_s")
    if not one or not many or not static:
        return None
    return {"one_tokens_per_s": one, "many_tokens_per_s": many, "static_tokens_per_s": static,
            "gain_ratio": many / one, "over_static_ratio": many / static}  # fmt: skip


def _device(source: Source) -> Values | None:
    level = next((n for n in source.grid.others() if n.startswith("network")), None)
    load = source.load(-1)
    trees = source.at(source.grid.baseline, load, "throughput_rps", "compute_mean_s", "latency_mean_s")
    network = source.at(level, load, "throughput_rps", "compute_mean_s", "latency_mean_s")
    if trees is None or network is None:
        return None
    return {
        "trees_rps": trees["throughput_rps"], "network_rps": network["throughput_rps"],
        "gain_ratio": network["throughput_rps"] / trees["throughput_rps"], "compute_s": network["compute_mean_s"],
        "latency_s": network["latency_mean_s"], "load": load,
        "compute_fraction": network["compute_mean_s"] / network["latency_mean_s"],
        "most_ratio": 1 / (1 - min(0.999, network["compute_mean_s"] / network["latency_mean_s"])),
    }  # fmt: skip


def _compute(source: Source) -> Values | None:
    return source.some("latency_mean_s", "compute_mean_s")


DRILLS = (
    Drill(
        "batch_gain", "levers", "batching", ("batching",), _gain,
        ask="Asked for all it can, {model} answers {off_rps} with {baseline}. How many times as many with {level}?",
        answer=Number("gain_ratio", "times", near=1.3),
        formula="{on_rps} ÷ {off_rps} = {gain_ratio}",
        why="Batching pays what a call costs anyway once for many. How much that is depends on the model: for one "
        "whose arithmetic fills the cores there is nothing to share, and the factor is 1.",
        source="the run's saturation blocks",
        then="The same for a sentence encoder on a CPU: more or less than that?",
        chart=gain_curve,
    ),
    Drill(
        "batch_delay", "levers", "batching", ("batching",), _delay,
        ask="At {load} ({offered_rps}) a queue delay of {delay_s} holds each request back for company. By how many ms "
        "does p50 rise from {off_s}?",
        answer=Number("added_s", "ms", scale=1e3, near=1.3),
        formula="p50 with {level} − p50 without = {on_s} − {off_s} = {added_s}; the delay is {delay_s}",
        why="At light load nobody comes in time: the mean batch is {batch_mean}, and the wait buys nothing. A delay is "
        "for loads at which company comes anyway, and there the queue makes it by itself.",
        source="the run's own cells; Triton's max_queue_delay_microseconds",
        then="Then why is a delay of 0 with batching on almost always right?",
        chart=delay_curve,
    ),
    Drill(
        "batch_sharing", "levers", "batching", ("batching",), _pays,
        ask="One request alone costs {model} {alone_s} of compute, and {each_s} each in a batch of {size_n}. How "
        "many ms does that batch take?",
        answer=Number("batch_s", "ms", scale=1e3),
        formula="{size_n} × {each_s} = {batch_s}, against {size_n} × {alone_s} = {apart_s} one by one",
        why="Each request in it is {share_ratio} cheaper and waits for all of them: throughput is bought with latency. "
        "Triton counts the compute of a batch for each request in it; divide before you compare.",
        source="Triton's batch statistics (batch_stats)",
        then="Which shape of that curve means that batching does not pay?",
        chart=item_cost,
    ),
    Drill(
        "batch_not", "levers", "batching", ("batching",), _pays,
        ask="When does dynamic batching not pay? Name the cases, and the figure that shows each.",
        answer=Points((
            "Compute per item is flat over the batch size: nothing is shared (here {alone_s} alone, {each_s} in "
            "{size_n}).",
            "The load is light: the mean batch stays near 1, and a delay is only added latency.",
            "The objective is shorter than the delay plus the batch's compute.",
            "Inputs differ in length: a batch pays for its longest (padding).",
            "Something else is the limit: the client, the network, memory bandwidth.",
        )),
        formula="gain = cost alone ÷ cost each in a batch = {alone_s} ÷ {each_s} = {share_ratio}",
        why="The mean executed batch and compute by batch size tell; throughput alone does not say why.",
        source="the run's own counters",
        then="Where is batching done for a language model, and why not in the queue?",
        chart=item_cost,
    ),
    Drill(
        "continuous", "levers", "batching", ("llm_batching",), _continuous,
        ask="One request at a time, the model writes {one_tokens_per_s} at saturation. How many times as many does "
        "continuous batching of up to 8 write, answers being 8 to 128 tokens long?",
        answer=Number("gain_ratio", "times", near=1.3),
        formula="{many_tokens_per_s} ÷ {one_tokens_per_s} = {gain_ratio}; over static batching {over_static_ratio}",
        why="A decoding step reads all weights, for one user or for eight. Static batching runs until its longest "
        "answer ends, so seats stand empty; continuous batching refills them at every token.",
        source="the run's saturation blocks; G.-I. Yu et al., Orca, OSDI 2022",
        then="At which number of users does it stop helping, and what is the limit then?",
        chart=primary_chart,
    ),
    Drill(
        "cache_bytes", "levers", "KV cache", ("kv_cache", "quantization", "llm_batching"), _token_bytes,
        ask="{model} has {layers_n} layers, {heads_n} key/value heads of {width_n}, and a cache in bf16. How many "
        "KiB does one token hold?",
        answer=Number("token_bytes", "KiB", scale=1 / 1024, near=1.05),
        formula="2 (K and V) × {layers_n} × {heads_n} × {width_n} × 2 bytes = {token_bytes}",
        why="Grouped-query attention is in the number of key/value heads: with as many as query heads it would be a "
        "multiple.",
        source="the shape of keys and values (config.json); lab/measure/ledger.py checks it against the engine",
        then="Which three knobs shrink it, and what does each cost?",
    ),
    Drill(
        "cache_users", "levers", "KV cache", ("kv_cache", "quantization", "llm_batching"), _token_bytes,
        ask="A token holds {token_bytes}. How many MiB do {users_n} users hold, each with {tokens_n} tokens of "
        "prompt and answer?",
        answer=Number("cache_bytes", "MiB", scale=1 / 2**20, near=1.05),
        formula="{users_n} × {tokens_n} × {token_bytes} = {cache_bytes}",
        why="It grows with users × length, beside weights that do not: long contexts, not parameters, fill the device.",
        source="the shape of keys and values",
        then="What does paging the cache buy, if not bytes?",
    ),
    Drill(
        "cache_off", "levers", "KV cache", ("kv_cache",), _recomputed,
        ask="A prompt of {prompt_n} tokens, an answer of {answer_n}. Without a cache each new token reads the whole "
        "text before it anew. How many times as many tokens go through the model as with a cache?",
        answer=Number("times_ratio", "times", near=1.15),
        formula="(N·P + N(N − 1)/2) ÷ (P + N) = {without_n} ÷ {with_n} = {times_ratio}",
        why="Measured, the cache writes {measured_ratio} the tokens a second: less than the count, since many tokens "
        "at once use the arithmetic better than one, which waits for memory.",
        source="counting; N tokens of answer, P of prompt",
        then="So when is recomputing cheaper than keeping?",
        chart=primary_chart,
    ),
    Drill(
        "weights_half", "levers", "quantization", ("quantization",), _weights,
        ask="The weights take {wide_bytes} in bf16. How many MiB in int8?",
        answer=Number("narrow_bytes", "MiB", scale=1 / 2**20, near=1.1),
        formula="{wide_bytes} × 8 / 16 = {half_bytes}, and scales beside them: {narrow_bytes} measured",
        why="The file halves; the process does not: runtime, libraries and the KV cache stay as they were.",
        source="what the engine allocated (lab/measure/ledger.py)",
        then="At 4 bit in groups of 32, how many bits does a weight really take?",
    ),
    Drill(
        "format_best", "levers", "quantization", ("quantization",), _speed,
        ask="One user asks ({load}). Which of these formats wrote most tokens a second on this machine?",
        answer=Choice(("{option0}", "{option1}", "{option2}", "{option3}"), lambda values: int(values["place"])),
        formula="against the baseline: {table}",
        why="{best} costs: {lost}. Decoding for one user waits for memory, so fewer bytes are fewer seconds, until "
        "unpacking them costs more than reading them did. Speed without a quality figure is not reviewable.",
        source="the run's own cells, with the quality that was evaluated beside them",
        then="Eight users ask instead of one. Who wins now, and why?",
        chart=primary_chart,
    ),
    Drill(
        "device", "levers", "CPU or GPU", ("engines_cpu_gpu",), _device,
        ask="A small network answers in {latency_s} ({load}), of which {compute_s} are compute. An accelerator makes "
        "the compute free. How many times as many requests at most?",
        answer=Number("most_ratio", "times", near=1.2),
        formula="1 ÷ (1 − compute ÷ latency) = 1 ÷ (1 − {compute_fraction}) = {most_ratio}",
        why="Amdahl: what is not compute stays, and copies to the device come on top. The cheaper step here was "
        "another model: the network serves {gain_ratio} the requests of the trees ({trees_rps}).",
        source="G. M. Amdahl, AFIPS 1967; the run's own compute and latency",
        then="Which models do belong on a GPU, whatever their batch?",
        chart=primary_chart,
    ),
    Drill(
        "device_why", "levers", "CPU or GPU", ("batching", "engines_cpu_gpu"), _compute,
        ask="CPU or GPU for this model? Say what you would measure before you answer.",
        answer=Points((
            "The share of latency that is compute: here {compute_mean_s} of {latency_mean_s} ({cell}).",
            "Bytes and operations a request: does it wait for memory or for arithmetic (roofline)?",
            "The batch that the objective allows: a GPU wants many at once.",
            "Does it fit with its cache, and how many others share the device?",
            "Cost of a million good requests on both, at the load that you have and not at full load.",
        )),
        formula="gain ≤ 1 ÷ (1 − share of compute)",
        why="A GPU that waits for requests costs as much as one that works.",
        source="S. Williams et al., Roofline, CACM 52(4), 2009",
        then="The GPU is at 30 % utilisation. Is that bad?",
    ),
)  # fmt: skip
