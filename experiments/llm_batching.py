"""From one request to continuous batching: who decides which requests share a step of a language model?

A step reads all weights whether it writes a token for one request or for eight. Scheduler "one" serves a request at a
time; "static" fills a batch and runs it until its last member ends, so that short answers wait for the longest;
"continuous" lets requests join and leave between any two tokens. Answers are 8 to 128 tokens long, drawn evenly, so
that the waiting shows. The loads are fractions of what scheduler "one" can serve on this machine.

    python -m lab run llm_batching                      the whole experiment, about 15 minutes
    python -m lab run llm_batching --quick              about two minutes, rough figures
"""

from lab.spec import Experiment, Judge, ModelSpec, Poisson, Reference, Slo, Workload

EXPERIMENT = Experiment(
    id="llm_batching",
    title="Continuous batching",
    question="How much more does a language model serve when requests share its steps, and when they join and leave?",
    hypothesis="Above what one request at a time can serve, continuous batching serves more requests in time.",
    model=ModelSpec(name="llm", max_batch_size=8),
    workload=Workload(
        arrival=Poisson(saturation_fraction=0.5),
        duration_s=40,
        warmup_s=5,
        timeout_s=30,
        prompt_tokens=32,
        output_tokens=(8, 128),
    ),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={
        "workload.arrival.saturation_fraction": (0.5, 1.5, 3.0),
        "model.scheduler": ("one", "static", "continuous"),
    },
    repeats=2,
    reference=Reference(concurrency=16, duration_s=20, warmup_s=3),
    judge=Judge(
        factor="model.scheduler",
        baseline="one",
        primary="goodput_rps",
        metrics=("goodput_rps", "output_tokens_per_s", "ttft_p50_s", "itl_mean_s", "latency_p50_s"),
    ),
    quick={
        "repeats": 1,
        "factors": {
            "workload.arrival.saturation_fraction": [2.0],
            "model.scheduler": ["one", "static", "continuous"],
        },
        "workload.duration_s": 15,
        "workload.warmup_s": 2,
        "workload.timeout_s": 15,
        "reference.duration_s": 6,
        "reference.warmup_s": 1,
    },
)
