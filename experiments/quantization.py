"""Weights in fewer bits: what each format buys in speed, and what it costs in memory and quality.

A language model in seven formats, for one user at a time and for eight: a format is a precision and how its weights
were found. int8 is weights and activations in 8 bits, int4 weights in 4 and activations in 8, int8_weight weights only;
rtn rounds to the nearest, gptq and awq look at calibration texts first. Fewer bits are fewer bytes to read, which is
what one user waits for, and more work to undo them, which is what eight users wait for: so the order of the formats
changes with the load.

The quality of each format is evaluated once, which takes about a minute each, and kept for later runs.

    python -m lab run quantization                      the whole experiment, about 15 minutes
    python -m lab run quantization --quick              about three minutes, rough figures, four formats
    python -m lab run quantization --set 'model=[{"precision": "bf16"}, {"precision": "int8"}]'
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Reference, Slo, Workload

EXPERIMENT = Experiment(
    id="quantization",
    title="Quantization",
    question="What does each format of the weights buy in speed, and what does it cost in memory and quality?",
    hypothesis="Some format writes at least 1.5 times the tokens of bf16 at the same load.",
    model=ModelSpec(name="llm", max_batch_size=16, max_request_tokens=256),
    workload=Workload(
        arrival=ClosedLoop(concurrency=1),
        duration_s=12,
        warmup_s=2,
        timeout_s=60,
        prompt_tokens=32,
        output_tokens=64,
    ),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={
        "workload.arrival.concurrency": (1, 8),
        "model": (
            {"precision": "bf16"},
            {"precision": "fp32"},
            {"precision": "int8"},
            {"precision": "int8_weight"},
            {"precision": "int4", "quantizer": "rtn"},
            {"precision": "int4", "quantizer": "gptq"},
            {"precision": "int4", "quantizer": "awq"},
        ),
    },
    repeats=3,
    reference=Reference(concurrency=16, duration_s=10, warmup_s=2),
    judge=Judge(
        factor="model",
        baseline={"precision": "bf16"},
        primary="output_tokens_per_s",
        metrics=("output_tokens_per_s", "ttft_p50_s", "itl_mean_s", "memory_peak_bytes"),
        min_effect_fraction=0.5,
    ),
    quick={
        "repeats": 1,
        "factors": {
            "workload.arrival.concurrency": [1, 8],
            "model": [
                {"precision": "bf16"},
                {"precision": "int8"},
                {"precision": "int4", "quantizer": "rtn"},
                {"precision": "int4", "quantizer": "gptq"},
            ],
        },
        "workload.duration_s": 8,
        "workload.warmup_s": 1,
        "reference.duration_s": 5,
        "reference.warmup_s": 1,
    },
)
