"""The language model's scheduler, precision, KV cache and instances at once: what each does, and what they do together.

The same design as experiments/factorial.py, with the model that has a cache to switch (2^4): every combination of two
levels of four settings, so that it shows what batching is worth without a cache, or int8 where a core serves twice.
Answers are short, since without a cache every token reads the whole text anew.

    python -m lab run factorial_llm                  about ten minutes
    python -m lab run factorial_llm --quick          about four minutes, rough figures
"""

from lab.spec import ClosedLoop, Experiment, ModelSpec, Slo, Workload

EXPERIMENT = Experiment(
    id="factorial_llm",
    title="Settings together, language model",
    question="What do the scheduler, precision, the KV cache and instances do to tokens a second, alone and together?",
    hypothesis="None: a design that estimates effects and interactions.",
    model=ModelSpec(name="llm"),
    workload=Workload(
        arrival=ClosedLoop(concurrency=4),
        duration_s=14,
        warmup_s=2,
        timeout_s=120,
        prompt_tokens=32,
        output_tokens=16,
    ),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={
        "model.scheduler": ("one", "continuous"),
        "model.precision": ("bf16", "int8"),
        "model.kv_cache": (False, True),
        "model.instances": (1, 2),
    },
    repeats=2,
    quick={"repeats": 1, "workload.duration_s": 8, "workload.warmup_s": 1},
)
