"""Batching, precision and instances at once: what each does, and what they do to each other.

Changing one setting at a time cannot see that two of them only work together. Here every combination of two levels of
three settings is measured (2^3), so each effect is found at the average of the others, and each pair shows whether the
one changes what the other does. Repeats run forwards and backwards, each combination loaded anew.

    python -m lab run factorial                      about three minutes
    python -m lab run factorial --quick              about a minute, rough figures
    python -m lab run factorial --set model.precision='["fp32", "bf16"]'

The language model has a cache to switch too: experiments/factorial_llm.py.
"""

from lab.spec import Batching, ClosedLoop, Experiment, ModelSpec, Slo, Workload

EXPERIMENT = Experiment(
    id="factorial",
    title="Settings together",
    question="What do batching, precision and instances do to throughput, alone and together?",
    hypothesis="None: a design that estimates effects and interactions.",
    model=ModelSpec(name="digits"),
    workload=Workload(arrival=ClosedLoop(concurrency=16), duration_s=6, warmup_s=1),
    slo=Slo(latency_s=0.02),
    factors={
        "model.batching": (None, Batching(max_batch_size=32)),
        "model.precision": ("fp32", "int8"),
        "model.instances": (1, 2),
    },
    repeats=2,
    quick={"repeats": 1, "workload.duration_s": 3, "workload.warmup_s": 0.5},
)
