"""The KV cache in 8 bits: the same tokens held in about half the memory, and what that does to speed and quality.

Eight users with long prompts, so that the cache counts: at 832 tokens each it takes half as much as the weights. A key
or value of 8 bits has a scale for each head besides, so it is not quite a half of 16; a step reads fewer bytes, and
turns them back.

    python -m lab run kv_precision                      the whole experiment, about eight minutes
    python -m lab run kv_precision --quick              about two minutes, rough figures
    python -m lab run kv_precision --set model.precision=int8
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Reference, Slo, Workload

EXPERIMENT = Experiment(
    id="kv_precision",
    title="KV cache precision",
    question="What does a KV cache in 8 bits save, and what does it cost in speed and quality?",
    hypothesis="The model's process takes at least a tenth less memory with the cache in 8 bits.",
    model=ModelSpec(name="llm", max_batch_size=8, max_request_tokens=1024),
    workload=Workload(
        arrival=ClosedLoop(concurrency=8),
        duration_s=20,
        warmup_s=4,
        timeout_s=60,
        prompt_tokens=768,
        output_tokens=64,
    ),
    slo=Slo(ttft_s=5.0, itl_s=0.2, percentile=0.9),
    factors={
        "workload.prompt_tokens": (64, 768),
        "model.kv_cache_precision": ("bf16", "int8"),
    },
    repeats=3,
    reference=Reference(concurrency=8, duration_s=8, warmup_s=2),
    judge=Judge(
        factor="model.kv_cache_precision",
        baseline="bf16",
        primary="memory_peak_bytes",
        metrics=("memory_peak_bytes", "output_tokens_per_s", "itl_mean_s"),
        expect="lower",
        min_effect_fraction=0.1,
    ),
    quick={
        "repeats": 1,
        "workload.duration_s": 12,
        "reference.duration_s": 4,
        "reference.warmup_s": 1,
    },
)
