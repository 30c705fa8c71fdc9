"""The KV cache: every token computed once and kept, or the whole text read anew for each next token.

One user asks a language model for answers of 32 and of 256 tokens after prompts of 16 and of 64, with the cache and
without. With it a token costs the same wherever it stands; without it the cost grows with everything that stands
before, and the memory that the cache would take stays free.

    python -m lab run kv_cache                          the whole experiment, about 20 minutes
    python -m lab run kv_cache --quick                  about two minutes, rough figures
    python -m lab run kv_cache --set model.weights=HuggingFaceTB/SmolLM2-360M-Instruct
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Reference, Slo, Workload

EXPERIMENT = Experiment(
    id="kv_cache",
    title="KV cache",
    question="What does keeping keys and values buy, and how much memory does it hold for that?",
    hypothesis="With the cache the time per token stays flat along the answer; without it it grows with the length.",
    model=ModelSpec(name="llm"),
    workload=Workload(
        # Without a cache 256 tokens take most of a minute: a block must outlast an answer.
        arrival=ClosedLoop(concurrency=1),
        duration_s=60,
        warmup_s=2,
        timeout_s=180,
        prompt_tokens=16,
        output_tokens=32,
    ),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={
        "workload.prompt_tokens": (16, 64),
        "workload.output_tokens": (32, 256),
        "model.kv_cache": (False, True),
    },
    repeats=2,
    reference=Reference(concurrency=2, duration_s=8, warmup_s=1),
    judge=Judge(
        factor="model.kv_cache",
        baseline=False,
        primary="output_tokens_per_s",
        metrics=("output_tokens_per_s", "itl_mean_s", "ttft_p50_s"),
    ),
    quick={
        "repeats": 1,
        "factors": {
            "workload.output_tokens": [32, 128],
            "model.kv_cache": [False, True],
        },
        "workload.duration_s": 15,
        "workload.warmup_s": 1,
        "reference.duration_s": 3,
        "reference.warmup_s": 0.5,
    },
)
