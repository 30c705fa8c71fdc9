"""CPU or GPU, trees or a network? Small models answered by different engines on each device that is here.

Gradient-boosted trees (scikit-learn) and a small network (torch) answer the same question about the same table; the
wider network of `digits` stands beside them as a model with something to compute. One user, then sixteen at a time. On
a machine without a GPU the GPU's side is not measured, and the run says so.

    python -m lab run engines_cpu_gpu                   about 5 minutes on a CPU alone
    python -m lab run engines_cpu_gpu --quick           less than a minute, rough figures
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Slo, Workload

BATCHING = {"max_batch_size": 32}

EXPERIMENT = Experiment(
    id="engines_cpu_gpu",
    title="CPU or GPU, trees or a network",
    question="Which engine on which device answers a small question soonest, and how many such questions a second?",
    hypothesis=(
        "A small network serves at least 20 % more requests than a hundred trees, on a CPU already: for so little "
        "arithmetic it is the way to the model that costs, and a GPU has nothing to add."
    ),
    model=ModelSpec(name="trees"),
    workload=Workload(arrival=ClosedLoop(concurrency=16), duration_s=12, warmup_s=2, timeout_s=5),
    slo=Slo(latency_s=0.02, percentile=0.99),
    factors={
        "workload.arrival.concurrency": (1, 16),
        "model": (
            {"name": "trees", "batching": BATCHING},
            {"name": "network", "batching": BATCHING},
            {"name": "network", "batching": BATCHING, "device": "gpu"},
            {"name": "digits", "batching": BATCHING},
            {"name": "digits", "batching": BATCHING, "device": "gpu"},
        ),
    },
    repeats=2,
    judge=Judge(
        factor="model",
        baseline={"name": "trees", "batching": BATCHING},
        primary="throughput_rps",
        metrics=("throughput_rps", "latency_p50_s", "latency_p99_s"),
        min_effect_fraction=0.2,
    ),
    quick={"repeats": 1, "workload.duration_s": 3, "workload.warmup_s": 0.5},
)
