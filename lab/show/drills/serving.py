"""Drills on how a model is served: online, in batch, streamed, serverless."""

from __future__ import annotations

from lab.show.charts import batching as batching_charts
from lab.show.charts.figure import Chart
from lab.show.drills.drill import Choice, Drill, Number, Points, Values
from lab.show.drills.measures import ANY, MILLION, TOKENS
from lab.show.drills.source import Source

EVERY_S = 600.0
STAYS_S = 60.0


def curve(source: Source, level: str | None = None) -> Chart:
    """Throughput against latency of the baseline and `level`, without one the level between the others."""
    others = source.grid.others() or source.grid.levels
    pair = (source.grid.baseline, level or others[len(others) // 2])
    return batching_charts.throughput_latency(source.grid, pair, source.declared["slo"].get("latency_s"))


def time_parts(source: Source) -> Chart:
    return batching_charts.where_time_goes(source.grid, source.load(-1) or source.grid.loads[0])


def _nightly(source: Source) -> Values | None:
    levels = [source.grid.baseline, *source.grid.others()]
    rates = {level: rate for level in levels if (rate := source.saturation(level))}
    if not rates:
        return None
    best = max(rates, key=lambda level: rates[level])
    return {"level": best, "model": source.model, "best_rps": rates[best], "night_s": MILLION / rates[best]}


def _place(source: Source) -> Values | None:
    """Which loads met the objective at the baseline; None unless some did and some did not."""
    percentile = source.declared["slo"]["percentile"]
    loads = [source.load(n) for n in range(len(source.grid.loads))]
    met = [source.at(source.grid.baseline, load, "slo_attainment_fraction") for load in loads]
    if len(loads) != 3 or any(m is None for m in met):
        return None
    fits = [m["slo_attainment_fraction"] >= percentile for m in met if m is not None]
    highest = max((n for n, fit in enumerate(fits) if fit), default=-1)
    if highest < 0:
        return None
    names = {f"load{n}": str(load) for n, load in enumerate(loads)}
    shares = {f"share{n}_fraction": m["slo_attainment_fraction"] for n, m in enumerate(met) if m is not None}
    return {**names, **shares, "level": source.grid.baseline, "highest": highest, "goal_fraction": percentile}


def _queue(source: Source) -> Values | None:
    """A single server with a steady queue, where M/D/1 may be tried."""
    for load in (source.load(n) for n in range(len(source.grid.loads))):
        found = source.at(source.grid.baseline, load, "offered_rps", "compute_mean_s", "queue_mean_s")
        if found is None:
            continue
        busy = found["offered_rps"] * found["compute_mean_s"]
        if 0.3 < busy < 0.95:
            wait_s = busy * found["compute_mean_s"] / (2 * (1 - busy))
            return {**found, "busy_fraction": busy, "wait_s": wait_s, "level": source.grid.baseline}
    return None


def _streamed(source: Source) -> Values | None:
    found = source.some("ttft_mean_s", "service_mean_s", fits=lambda s: s["ttft_mean_s"] > 0)
    return found and {**found, "sooner_ratio": found["service_mean_s"] / found["ttft_mean_s"]}


def _cold(source: Source) -> Values | None:
    found = source.some("latency_p50_s")
    if found is None or not source.load_s:
        return None
    first_s = source.load_s + found["latency_p50_s"]
    return {**found, "model": source.model, "ready_s": source.load_s, "cold_s": first_s,
            "cold_ratio": first_s / found["latency_p50_s"]}  # fmt: skip


def _paid(source: Source) -> Values | None:
    found = _cold(source)
    if found is None:
        return None
    busy = found["ready_s"] + found["latency_p50_s"] + STAYS_S
    return {**found, "paid_s": busy, "useful_fraction": found["latency_p50_s"] / busy,
            "always_fraction": busy / EVERY_S}  # fmt: skip


DRILLS = (
    Drill(
        "nightly", "serving", "batch", ("batching", "llm_batching", "quantization"), _nightly,
        ask="Tonight a million items wait for {model} ({level}), which answers {best_rps} when asked for all it can. "
        "How many hours does that take on this machine?",
        answer=Number("night_s", "h", scale=1 / 3600),
        formula="10⁶ ÷ saturation = 10⁶ ÷ {best_rps} = {night_s}",
        why="A batch job has no users who wait: run it at saturation, with the largest batch that memory holds, and "
        "pay for no headroom.",
        source="the run's saturation blocks (a closed loop of many users)",
        then="The job may be interrupted at any time (spot). What must it write down, and how often?",
    ),
    Drill(
        "online", "serving", "online", ("batching", "llm_batching"), _place,
        ask="With {level}, this machine met the objective ({goal_fraction} in time) at some of these loads. Which is "
        "the highest at which you would run it online?",
        answer=Choice(("{load0}", "{load1}", "{load2}"), lambda values: int(values["highest"])),
        formula="share in time: {load0} → {share0_fraction}, {load1} → {share1_fraction}, {load2} → {share2_fraction}",
        why="Capacity is the highest load that meets the objective, not the highest throughput. Above it the queue "
        "grows without end, and what is served late is work for nobody.",
        source="the run's own cells; knee as in N. J. Gunther's “Mind your knees and queues”, here by the objective",
        then="Traffic doubles at eight in the morning. What stands between you and the knee?",
        chart=curve,
    ),
    Drill(
        "queue", "serving", "online", ("batching",), _queue,
        ask="{offered_rps} arrive at random at one instance ({level}) that needs {compute_mean_s} for each. How long "
        "does a request wait in the queue on average, in ms?",
        answer=Number("queue_mean_s", "ms", scale=1e3, near=1.5),
        formula="M/D/1: ρ = λS = {busy_fraction}; W = ρS / (2(1 − ρ)) = {wait_s}; measured: {queue_mean_s}",
        why="The formula knows one server, constant service and Poisson arrivals. What the machine adds (stalls, the "
        "client's cores, a burst) is the difference; near ρ = 1 a little more load is a lot more wait.",
        source="Pollaczek–Khinchine; L. Kleinrock, Queueing Systems I, 1975",
        then="At which ρ would you stop adding traffic, and why is it not 0.95?",
        chart=time_parts,
    ),
    Drill(
        "streaming", "serving", "streaming", TOKENS, _streamed,
        ask="The whole answer took {service_mean_s} on average, the first token {ttft_mean_s} ({cell}). How many times "
        "sooner does a user begin to read when the answer is streamed?",
        answer=Number("sooner_ratio", "times sooner", near=1.15),
        formula="end to end ÷ TTFT = {service_mean_s} ÷ {ttft_mean_s} = {sooner_ratio}",
        why="Streaming makes nothing faster: the last token comes no sooner, and each chunk costs the server a send. "
        "It moves the wait to where the user reads.",
        source="the run's own figures",
        then="Which clients must not be streamed to?",
    ),
    Drill(
        "cold_start", "serving", "cold start", ANY, _cold,
        ask="{model} took {ready_s} from “load” to “ready”, and then answers in {latency_p50_s} (p50, {cell}). How "
        "many times as long as a warm one does the first request of a cold instance take?",
        answer=Number("cold_ratio", "times", near=1.2),
        formula="(ready + p50) ÷ p50 = ({ready_s} + {latency_p50_s}) ÷ {latency_p50_s} = {cold_ratio}",
        why="Real cold starts also fetch the image and the weights: this is the part that even a warm disk keeps. At "
        "one cold request in a hundred the cold start is the p99.",
        source="the run's load events",
        then="Name three ways to make it shorter, and what each costs.",
    ),
    Drill(
        "serverless", "serving", "serverless", ANY, _paid,
        ask="One request every 10 minutes; each wakes the model ({ready_s}), is answered ({latency_p50_s}), and the "
        "instance stays up 60 s in case another comes. You pay by the second it is up. What share of the paid time "
        "answers, in %?",
        answer=Number("useful_fraction", "%", scale=100, near=1.3),
        formula="t ÷ (load + t + idle) = {latency_p50_s} ÷ ({ready_s} + {latency_p50_s} + 60 s) = {useful_fraction}",
        why="It is up {always_fraction} of the time, so scale to zero pays as long as a second costs less than "
        "1 ÷ {always_fraction} of a second of an always-on machine. The share that answers is small either way.",
        source="lab/measure/cost.py, seconds paid a day",
        then="Requests come in bursts of 50. What changes?",
    ),
    Drill(
        "which_way", "serving", "online", ANY, lambda s: s.some("throughput_rps", "latency_p99_s"),
        ask="Someone wants “real time” predictions. What do you ask before you choose between online, batch and "
        "streaming?",
        answer=Points((
            "When is the answer used, and what is it worth if it is late? (Nightly is often enough, and cheapest.)",
            "Do the inputs exist beforehand? Then compute them in batch and look them up.",
            "Requests a second, their bursts, and the objective as a percentile: here p99 was {latency_p99_s} at "
            "{throughput_rps} ({cell}).",
            "Does an answer come piece by piece (tokens, audio)? Then stream, with TTFT and ITL as objectives.",
            "What happens when it is down: a stale answer, a default, an error?",
        )),
        formula="freshness × value of being in time against headroom that is paid for and idle",
        why="The cheapest online prediction is one that was computed last night.",
        source="the usual division: batch, online, streaming inference",
        then="Which of these can share one model file, and what must be equal in all?",
    ),
)  # fmt: skip
