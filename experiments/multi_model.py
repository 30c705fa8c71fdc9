"""Many models on one device: what fits, who slows whom, and what happens when not all of them fit.

The models are loaded one by one: memory, load time and first answer of each. Then two at a time, one asked lightly and
the other at work. Then 64 users, who think for half a second after each answer, ask models drawn by Zipf's law, from
two models up to ten where the budget has room for four; whoever is not loaded is loaded when asked, in place of the one
that was not asked for longest. So many users, because a miss that many wait for is one swap, and its tail needs many.

    python -m lab run multi_model                       the whole experiment, about 15 minutes
    python -m lab run multi_model --quick               about two minutes, rough figures
    python -m lab run multi_model --set fleet.budget_bytes=800000000
"""

from lab.spec import ClosedLoop, Experiment, Fleet, Judge, ModelSpec, Slo, Workload

EXPERIMENT = Experiment(
    id="multi_model",
    title="Many models, one device",
    question="How many models share a device before swapping ruins it, and who slows whom?",
    hypothesis=(
        "As long as the models that are asked fit, their number costs nothing; with one more than fits, throughput "
        "falls off a cliff."
    ),
    model=ModelSpec(name="digits"),
    fleet=Fleet(
        others=(ModelSpec(name="embedder"), ModelSpec(name="sleeper")), fit=4, wait_s=60, pair_s=8, pair_answers=459
    ),
    workload=Workload(
        arrival=ClosedLoop(concurrency=64, think_s=0.5),
        duration_s=40,
        warmup_s=5,
        timeout_s=60,
        protocol="http",
    ),
    slo=Slo(latency_s=0.1, percentile=0.99),
    factors={"workload.models": (2, 4, 5, 7, 10)},
    repeats=2,
    judge=Judge(
        factor="workload.models",
        baseline=4,
        primary="throughput_rps",
        metrics=("throughput_rps", "goodput_rps", "latency_p50_s"),
        expect="lower",
        min_effect_fraction=0.5,
    ),
    quick={
        "repeats": 1,
        "factors": {"workload.models": [2, 4, 5, 8]},
        "workload.duration_s": 12,
        "workload.warmup_s": 2,
        "fleet.pair_s": 2,
        "fleet.pair_answers": 0,
    },
)
