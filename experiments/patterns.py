"""One model, one kind of request, three ways of serving it: online, streaming, and as a batch job.

Online, each request comes when it comes and its whole answer is promised within seconds; streaming, the first token is,
and a pace after it; a batch job has all its rows at once and promises the last one in hours, so it may keep the machine
full. Each way is held to all three promises. The load of the batch job is what `lab batch` puts on the server: twice as
many rows under way as the engine takes together.

    python -m lab run patterns                  the whole experiment, about 8 minutes
    python -m lab run patterns --quick          about two minutes, rough figures
"""

from lab.spec import Experiment, Judge, ModelSpec, Poisson, Reference, Slo, Workload

WHOLE = {"latency_s": 4.0, "percentile": 0.95}
READING = {"ttft_s": 1.0, "itl_s": 0.1, "percentile": 0.95}
BY_MORNING = {"latency_s": 4 * 3600.0, "percentile": 0.99}


def online(fraction: float) -> dict[str, object]:
    arrival = {"kind": "poisson", "saturation_fraction": fraction}
    return {"pattern": "online", "arrival": arrival, "stream": False, "slo": WHOLE}


def streaming(fraction: float) -> dict[str, object]:
    return {**online(fraction), "pattern": "streaming", "stream": True, "slo": READING}


BATCH = {"pattern": "batch", "arrival": {"kind": "closed", "concurrency": 64}, "stream": False, "slo": BY_MORNING}

EXPERIMENT = Experiment(
    id="patterns",
    title="Online, streaming, batch",
    question="Which way of serving suits which promise, and what does a good item cost in each?",
    hypothesis=(
        "A batch job, for which nobody waits, makes at least half as much again of the machine as online serving that "
        "keeps its promise; streaming changes how long a reader waits, not how much is made."
    ),
    model=ModelSpec(name="llm", max_batch_size=32, max_request_tokens=256),
    workload=Workload(
        arrival=Poisson(saturation_fraction=0.5),
        duration_s=30,
        warmup_s=5,
        timeout_s=120,
        prompt_tokens=(16, 96),
        output_tokens=(8, 96),
    ),
    slo=Slo(latency_s=4.0, percentile=0.95),
    factors={"workload": (online(0.5), online(0.8), streaming(0.5), streaming(0.8), BATCH)},
    repeats=2,
    reference=Reference(concurrency=64, duration_s=12, warmup_s=3),
    judge=Judge(
        factor="workload",
        baseline=online(0.5),
        primary="output_tokens_per_s",
        metrics=("output_tokens_per_s", "throughput_rps", "latency_p50_s"),
        min_effect_fraction=0.5,
    ),
    quick={
        "repeats": 1,
        "factors": {"workload": [online(0.5), streaming(0.5), BATCH]},
        "workload.duration_s": 15,
        "workload.warmup_s": 3,
        "reference.duration_s": 9,
    },
)
