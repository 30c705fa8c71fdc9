"""Ten fine-tunes of one base: as adapters that share it, or each merged into a full copy of its own.

Ten small fine-tunes (a style or some made-up facts each, taught at first use in seconds) are served to eight users who
name one each. Once the base is there once and the adapters beside it, so that one batch holds requests of different
fine-tunes; once each fine-tune is a model of its own, as large as the base. First every one is examined on questions
that it was not taught, beside the base.

    python -m lab run lora                      the whole experiment, about 6 minutes (and 2 to teach, once)
    python -m lab run lora --quick              about two minutes, four fine-tunes, rough figures
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Slo, Workload

TEN = (
    "capitals",
    "captain",
    "polite",
    "brief",
    "json",
    "bullets",
    "tea",
    "french",
    "lamp_2025",
    "lamp_2026",
)
FOUR = ("capitals", "french", "lamp_2025", "lamp_2026")

EXPERIMENT = Experiment(
    id="lora",
    title="Ten fine-tunes on one device",
    question="What do ten fine-tunes take as adapters of one base, and what as ten full copies?",
    hypothesis=(
        "Adapters add under a tenth to the base's memory and cost at most 15 % of its tokens a second; full copies "
        "take several times as much."
    ),
    model=ModelSpec(name="llm", max_batch_size=16, max_request_tokens=256),
    workload=Workload(
        arrival=ClosedLoop(concurrency=8),
        duration_s=12,
        warmup_s=2,
        timeout_s=60,
        prompt_tokens=32,
        output_tokens=64,
    ),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={
        "model": (
            {"adapters": []},
            {"adapters": list(TEN)},
            {"adapters": list(TEN), "merge_adapters": True},
        ),
    },
    repeats=3,
    judge=Judge(
        factor="model",
        baseline={"adapters": []},
        primary="output_tokens_per_s",
        metrics=("output_tokens_per_s", "ttft_p50_s", "itl_mean_s", "memory_peak_bytes"),
        min_effect_fraction=0.15,
    ),
    quick={
        "repeats": 1,
        "factors": {
            "model": [
                {"adapters": []},
                {"adapters": list(FOUR)},
                {"adapters": list(FOUR), "merge_adapters": True},
            ],
        },
        "workload.duration_s": 8,
        "workload.warmup_s": 1,
    },
)
