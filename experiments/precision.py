"""The precision of a model without tokens: fewer bits and more work, where there is little to read.

A language model's step waits for its weights, so fewer bytes are fewer milliseconds. A small network's weights are in
the processor's cache, and a sentence encoder computes on many tokens at a time: there arithmetic is what takes time,
and 8 bits pay only if their products are quicker than the rounding that they need.

    python -m lab run precision                                 the digits, whole, about five minutes
    python -m lab run precision --quick                         about a minute, rough figures
    python -m lab run precision --set model.name=embedder       a sentence encoder
"""

from lab.spec import Batching, ClosedLoop, Experiment, Judge, ModelSpec, Reference, Slo, Workload

EXPERIMENT = Experiment(
    id="precision",
    title="Precision",
    question="What does a lower precision buy a model that is limited by its arithmetic, and what does it cost?",
    hypothesis="Some lower precision answers at least 1.1 times the requests of fp32 at the same load.",
    model=ModelSpec(name="digits", batching=Batching(max_batch_size=16)),
    workload=Workload(arrival=ClosedLoop(concurrency=1), duration_s=12, warmup_s=2, timeout_s=10),
    slo=Slo(latency_s=0.1, percentile=0.99),
    factors={
        "workload.arrival.concurrency": (1, 16),
        "model.precision": ("fp32", "bf16", "int8"),
    },
    repeats=3,
    reference=Reference(concurrency=32, duration_s=4, warmup_s=1),
    judge=Judge(
        factor="model.precision",
        baseline="fp32",
        primary="throughput_rps",
        metrics=("throughput_rps", "latency_p50_s", "latency_p99_s", "memory_peak_bytes"),
        min_effect_fraction=0.1,
    ),
    quick={
        "repeats": 1,
        "workload.duration_s": 6,
        "workload.warmup_s": 1,
        "reference.duration_s": 2,
        "reference.warmup_s": 0.5,
    },
)
