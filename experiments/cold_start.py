"""From "no process" to the first answer: what a cold start is made of, and what each remedy takes off it.

One process serves one model by itself, as on a serverless platform (in Triton, too, at the end). It is started, asked
once, asked some more for what is usual, and ended; each stage of its start is stamped by itself on one clock. Remedies
are tried one by one and together: compiled code that is kept, weights that are mapped as the kernels read them, a
parent that has imported everything and forks; and the process that is never let go. Each has a price in memory or disk.

    python -m lab run cold_start                  three models in each of their formats, nine ways: about 25 minutes
    python -m lab run cold_start --quick          the language model, plain and with remedies, about two minutes
    python -m lab run cold_start --set 'start=[{},{"compile_cache":true},{"compile_cache":true,"zygote":true}]'
    python -m lab run cold_start --set 'model=[{"name":"llm","family":"llm","precision":"int4"}]'
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Slo, Start, Workload

ALL = {"compile_cache": True, "mapped_weights": True, "zygote": True}
FORMATS = {
    "llm": ("bf16", "int8", "int8_weight", "int4", "fp32"),
    "embedder": ("fp32", "bf16", "int8"),
    "digits": ("fp32", "bf16", "int8"),
}
"""The language model in fp32 is computed by torch, in the others by kernels that are compiled."""

EXPERIMENT = Experiment(
    id="cold_start",
    title="Cold start",
    question="How long does a model take from no process to its first answer, which stages take it, and what helps?",
    hypothesis=(
        "Kept code, mapped weights and a parent that forks leave at most a quarter of a language model's plain cold "
        "start; most of that was compiling kernels."
    ),
    model=ModelSpec(name="llm"),
    start=Start(),
    workload=Workload(arrival=ClosedLoop(concurrency=1), duration_s=1),
    slo=Slo(latency_s=1.0, percentile=0.99),
    factors={
        "model": tuple(
            {"name": family, "family": family, "precision": precision}
            for family, precisions in FORMATS.items()
            for precision in precisions
        ),
        "start": (
            {},
            {"compile_cache": True},
            {"compile_cache": True, "page_cache": "warm"},
            {"compile_cache": True, "mapped_weights": True},
            {"compile_cache": True, "zygote": True},
            ALL,
            {**ALL, "keep_warm": True},
            {"torch_compile": True, "compile_cache": True},
            {"runtime": "triton", "compile_cache": True},
        ),
    },
    repeats=3,
    judge=Judge(
        factor="start",
        baseline={},
        primary="cold_start_s",
        metrics=("cold_start_s",),
        expect="lower",
        min_effect_fraction=0.75,
    ),
    quick={
        "repeats": 2,
        "factors": {
            "model": [{"name": "llm", "family": "llm", "precision": "bf16"}],
            "start": [{}, {"compile_cache": True}, ALL],
        },
    },
)
