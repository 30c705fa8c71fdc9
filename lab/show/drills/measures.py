"""Drills on measures: throughput, tail latency, first token, goodput, cost."""

from __future__ import annotations

import math

from lab.measure.percentile import needed
from lab.measure.words import format_ratio, metric_label
from lab.show.charts.figure import Chart
from lab.show.charts.latency import percentiles
from lab.show.drills.drill import Choice, Drill, Number, Points, Values
from lab.show.drills.source import Source

ANY = ("batching", "load", "llm_batching", "quantization", "kv_cache", "multi_model", "engines_cpu_gpu")
TOKENS = ("llm_batching", "quantization", "kv_cache", "load")
FAN_OUT = 10
MILLION = 1e6


def tail(source: Source) -> Chart:
    """The distribution behind a percentile, at the highest load."""
    load = source.load(-1) or source.grid.loads[0]
    shown = (source.grid.baseline, *source.grid.others()[-3:])
    latencies = source.latencies(load, shown)
    return percentiles(latencies, source.grid.baseline, source.declared["slo"].get("latency_s"), load)


def _little(source: Source) -> Values | None:
    """A cell in which the law can be seen: over a short window what is under way at its ends weighs too much."""

    def holds(s: Values) -> bool:
        return bool(0.9 < s["in_flight_mean"] / (s["throughput_rps"] * s["latency_mean_s"]) < 1.1)

    return source.some("throughput_rps", "latency_mean_s", "in_flight_mean", fits=lambda s: s["ok"] > 0 and holds(s))


def _flight(source: Source) -> Values | None:
    found = _little(source)
    return found and {**found, "model": source.model, "product": found["throughput_rps"] * found["latency_mean_s"]}


def _spread(source: Source) -> Values | None:
    found = source.some("latency_p50_s", "latency_p99_s", "latency_mean_s")
    return found and {**found, "tail_ratio": found["latency_p99_s"] / found["latency_p50_s"]}


def _samples(source: Source) -> Values | None:
    found = source.some("latency_n", "throughput_rps")
    return found and {
        **found, "model": source.model, "needed_n": needed(0.99), "has_n": found["latency_n"],
        "after_s": needed(0.99) / found["throughput_rps"],
    }  # fmt: skip


def _fan_out(source: Source) -> Values | None:
    found = source.some("latency_p99_s")
    return found and {**found, "slow_fraction": 1 - 0.99**FAN_OUT}


def _last_token(source: Source) -> Values | None:
    found = source.some("ttft_mean_s", "itl_mean_s", "output_tokens_mean", "service_mean_s")
    if found is None:
        return None
    tokens = round(found["output_tokens_mean"])
    return {**found, "tokens_n": tokens, "whole_s": found["ttft_mean_s"] + (tokens - 1) * found["itl_mean_s"]}


def _reader(source: Source) -> Values | None:
    found = source.some("itl_mean_s", "output_tokens_per_s", "engine_batch_mean")
    return found and {**found, "reader_tokens_per_s": 1 / found["itl_mean_s"]}


def _goodput(source: Source) -> Values | None:
    return source.some(
        "offered_rps", "throughput_rps", "goodput_rps", "slo_attainment_fraction",
        fits=lambda s: 0.02 < s["slo_attainment_fraction"] < 0.9,
    )  # fmt: skip


def _cost(source: Source) -> Values | None:
    found = source.some("goodput_rps", "throughput_rps", fits=lambda s: s["goodput_rps"] > 0)
    if found is None or source.price is None:
        return None
    usd = source.price.usd_per_hour
    return {
        **found,
        "hour_usd": usd,
        "price": source.price.id,
        "million_usd": usd / (found["goodput_rps"] * 3600) * MILLION,
        "idle_usd": usd / (found["goodput_rps"] * 3600) * MILLION / 0.3,
    }


def _token_cost(source: Source) -> Values | None:
    found = source.some("good_tokens_per_s", "output_tokens_per_s", fits=lambda s: s["good_tokens_per_s"] > 0)
    if found is None or source.price is None:
        return None
    usd = source.price.usd_per_hour
    good = found["good_tokens_per_s"]
    return {**found, "hour_usd": usd, "price": source.price.id, "million_usd": usd / (good * 3600) * MILLION}


def _clocks(source: Source) -> Values | None:
    return source.some("latency_p99_s", "service_p99_s", "send_lag_max_s")


def _noise(source: Source) -> Values | None:
    for effect in source.document["verdict"].get("effects", ()):
        low, high, ratio = effect["ci_low"], effect["ci_high"], effect["ratio"]
        if None in (low, high, ratio) or not math.isfinite(high) or high > 100 * low or not effect["verdict"]:
            continue
        lower_is_better = effect["metric"].endswith("_s") and not effect["metric"].endswith("_per_s")
        return {
            "low": low, "high": high, "ratio_words": format_ratio(ratio), "low_words": format_ratio(low),
            "high_words": format_ratio(high), "metric": metric_label(effect["metric"]),
            "level": next((n for n in source.grid.others() if source.grid.raw(n) == effect["level"]), "another level"),
            "better": (ratio < 1) == lower_is_better,
        }  # fmt: skip
    return None


DRILLS = (
    Drill(
        "little", "measures", "throughput", ANY, _flight,
        ask="{model} ({cell}) answers {throughput_rps}, and a request takes {latency_mean_s} on average. How many "
        "requests are in the system at a time?",
        answer=Number("product", "requests"),
        formula="L = λ × W = {throughput_rps} × {latency_mean_s} = {product}",
        why="The run counted {in_flight_mean} in flight. The law needs a steady state and nothing else: no "
        "distribution, no number of servers. A gap between both sides means that something is lost or counted twice.",
        source="J. D. C. Little, A Proof for the Queuing Formula L = λW, Operations Research 9(3), 1961",
        then="Concurrency doubles and throughput stays. What became of latency?",
    ),
    Drill(
        "spread", "measures", "tail latency", ANY, _spread,
        ask="In this run ({cell}) half of the requests were answered within {latency_p50_s}. How many times as long "
        "did the slowest one in a hundred take, at least?",
        answer=Number("tail_ratio", "times p50", near=1.25),
        formula="p99 / p50 = {latency_p99_s} / {latency_p50_s} = {tail_ratio}",
        why="The mean was {latency_mean_s}: it belongs to nobody. A user who makes many requests meets the tail; quote "
        "p99 with its number of samples, and never the mean of two p99.",
        source="the run's own records; percentiles are linear (type 7)",
        then="Why can't you average the p99 of two replicas?",
        chart=tail,
    ),
    Drill(
        "samples", "measures", "tail latency", ANY, _samples,
        ask="How many successful requests must a run have before “99 % are below x” may be said with 99 % confidence, "
        "when none was above x? (This cell, {cell}, has {has_n}.)",
        answer=Number("needed_n", "requests", near=1.02),
        formula="n ≥ ln(1 − 0.99) / ln(0.99) = {needed_n}; at {throughput_rps} that takes {after_s}",
        why="Below that number a p99 is the largest value seen, under another name. For p99.9 it is 4,603.",
        source="MLPerf LoadGen, early stopping (mlcommons/inference)",
        then="You have 200 samples. What may you report?",
    ),
    Drill(
        "fan_out", "measures", "tail latency", ANY, _fan_out,
        ask="A page asks 10 such servers at once and waits for the last. One server has a p99 of {latency_p99_s}. How "
        "many pages in a hundred wait longer than that?",
        answer=Number("slow_fraction", "in a hundred", scale=100),
        formula="1 − 0.99¹⁰ = {slow_fraction}",
        why="The tail of one server is the ordinary case of a page: at 100 servers it is 63 %.",
        source="J. Dean and L. A. Barroso, The Tail at Scale, CACM 56(2), 2013",
        then="What do hedged requests cost, and when do they make it worse?",
        chart=tail,
    ),
    Drill(
        "last_token", "measures", "TTFT", TOKENS, _last_token,
        ask="The first token came after {ttft_mean_s}, then one every {itl_mean_s} (means; {cell}). When was an "
        "answer of {tokens_n} tokens complete, in seconds from the send?",
        answer=Number("whole_s", "s", near=1.15),
        formula="TTFT + (N − 1) × ITL = {ttft_mean_s} + ({tokens_n} − 1) × {itl_mean_s} = {whole_s}",
        why="Measured from the send: {service_mean_s} on average, with answers of unequal length. Prompt and queue "
        "are in TTFT, the length of the answer is in the rest: two objectives, two causes.",
        source="the identity behind TTFT, TPOT and end-to-end latency (MLPerf inference rules, vLLM benchmarks)",
        then="Which of the two gets worse first when load grows?",
    ),
    Drill(
        "reader", "measures", "TTFT", TOKENS, _reader,
        ask="Tokens of one answer came {itl_mean_s} apart ({cell}). How many tokens a second does one user read?",
        answer=Number("reader_tokens_per_s", "tok/s"),
        formula="1 / ITL = 1 / {itl_mean_s} = {reader_tokens_per_s}",
        why="The server wrote {output_tokens_per_s} in the window, {engine_batch_mean} answers sharing a step. What "
        "the server writes and what a user reads are two metrics, and batching trades one for the other.",
        source="the definition of ITL: (last token − first token) ÷ tokens after the first",
        then="Which of the two belongs on a Pareto plot's x axis, and which on its y axis?",
    ),
    Drill(
        "goodput", "measures", "throughput", ANY, _goodput,
        ask="{offered_rps} were offered ({cell}), {throughput_rps} were answered, and {slo_attainment_fraction} of "
        "what was due met the objective. What is the goodput, in requests a second?",
        answer=Number("goodput_rps", "req/s", near=1.2),
        formula="goodput ≈ offered × share in time = {offered_rps} × {slo_attainment_fraction} ≈ {goodput_rps}",
        why="Throughput counts every answer, however late. Under overload it stays high while nobody is served in "
        "time.",
        source="the run's own figures; goodput counts answers within every limit of the objective",
        then="How can a server be made to look good on goodput, and which figure beside it shows that?",
    ),
    Drill(
        "cost", "measures", "cost", ("batching", "load", "engines_cpu_gpu", "multi_model"), _cost,
        ask="An hour of such a machine costs {hour_usd} ({price}), and it serves {goodput_rps} in time ({cell}). "
        "What do a million good requests cost, in dollars?",
        answer=Number("million_usd", "$"),
        formula="$/h ÷ (good requests/s × 3,600) × 10⁶ = {hour_usd} ÷ ({goodput_rps} × 3,600) × 10⁶ = {million_usd}",
        why="Divide by what was served within the objective, at a load that met it. In use for 30 % of the hours, it "
        "is {idle_usd}: idle time is the largest discount that nobody asks for.",
        source="lab/measure/cost.py; $2 an hour at 100 a second is $5.56 a million",
        then="Where does a commitment for a year break even with paying by the hour?",
    ),
    Drill(
        "token_cost", "measures", "cost", TOKENS, _token_cost,
        ask="An hour costs {hour_usd} ({price}), and {good_tokens_per_s} come in time ({cell}). What do a million such "
        "tokens cost, in dollars?",
        answer=Number("million_usd", "$"),
        formula="$/h ÷ (good tok/s × 3,600) × 10⁶ = {hour_usd} ÷ ({good_tokens_per_s} × 3,600) × 10⁶ = {million_usd}",
        why="All tokens came at {output_tokens_per_s}. A price list quotes the cost at full load; yours is the one "
        "at the load where the objective still holds.",
        source="lab/measure/cost.py",
        then="Input and output tokens cost the provider differently. Why?",
    ),
    Drill(
        "open_loop", "measures", "tail latency", ANY, _clocks,
        ask="A server hangs for a second. A client that waits for each answer before it asks again reports one slow "
        "request. Say what is wrong with that, and what this lab does instead.",
        answer=Points((
            "Coordinated omission: the requests that would have arrived meanwhile were never sent, so their wait is "
            "in no figure.",
            "Arrivals are scheduled beforehand (open loop), and latency counts from the scheduled arrival.",
            "Both are shown: here p99 from the schedule {latency_p99_s}, from the send {service_p99_s}; the client's "
            "own wait was at most {send_lag_max_s}.",
            "A closed loop answers another question: how fast for so many users who wait for each other.",
        )),
        formula="latency = answer − scheduled arrival, not answer − send",
        why="Both clocks agree as long as nothing stalls; the difference is the instrument's own doubt.",
        source="G. Tene, How NOT to Measure Latency; wrk2 and MLPerf LoadGen's scheduled time",
        then="Your load test is closed loop and the result looks great. What do you ask first?",
    ),
    Drill(
        "significant", "measures", "throughput", ("batching", "llm_batching", "quantization", "kv_cache"),
        _noise,
        ask="New against old: {ratio_words} ({level}, {metric}), with a 95 % interval from {low_words} to "
        "{high_words}. What do you report?",
        answer=Choice(
            ("It is better.", "It is worse.", "No detectable difference: the interval holds 1."),
            lambda values: 2 if values["low"] <= 1 <= values["high"] else 0 if values["better"] else 1,
        ),
        formula="the interval from {low_words} to {high_words} against 1",
        why="A point estimate alone decides nothing. Equal settings measured twice differ too: that is the noise "
        "floor.",
        source="paired block bootstrap and Student's t on the log ratio (lab/measure/compare.py)",
        then="How many repeats would you need to see half of that difference?",
    ),
)  # fmt: skip
