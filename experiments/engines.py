"""Engines beside each other: the same prompts to the lab's own and to others that run already, such as vLLM.

Each is asked in turns, with the same seed and so the same prompts and lengths; then each is asked the same questions
greedily, and its words are held against the first engine's. Which engines there are only their user knows, so they are
named on the command line, or on the page "Your server":

    python -m lab engines --engine openai+http://127.0.0.1:8100=NAME --engine torchserve+http://127.0.0.1:18080=NAME
    python -m lab engines --engine grpc://HOST:8001=llm --no-own --quick
"""

from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Slo, Workload

OWN = {"url": None}

EXPERIMENT = Experiment(
    id="engines",
    title="Engines beside each other",
    question="How fast does each engine answer the same prompts on this machine, and in the same words?",
    hypothesis="Some other engine writes more tokens a second than the first.",
    model=ModelSpec(name="llm"),
    workload=Workload(
        arrival=ClosedLoop(concurrency=4),
        duration_s=20,
        warmup_s=4,
        timeout_s=120,
        prompt_tokens=32,
        output_tokens=64,
    ),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={"workload": (OWN,)},
    repeats=2,
    judge=Judge(
        factor="workload",
        baseline=OWN,
        primary="output_tokens_per_s",
        metrics=("output_tokens_per_s", "throughput_rps", "ttft_p50_s", "itl_mean_s", "latency_p50_s"),
    ),
    quick={"repeats": 1, "workload.duration_s": 8, "workload.warmup_s": 2},
)
