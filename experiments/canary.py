"""Four version 2s, one after the other, each beside the same version 1 while users are served.

A real gateway in front of a real Triton. Version 2 gets the share of each step; the gateway's guard compares errors,
latency and quality with the champion's over the same window, and promotes it or rolls it back by itself. Every answer
is scored against its label.

    python -m lab run canary                                 the whole experiment, about 6 minutes
    python -m lab run canary --quick                         a bit over a minute: larger steps, wider tolerances
    python -m lab run canary --set rollout.challenger=errs   only the one that errs
"""

from lab.spec import Experiment, ModelSpec, Poisson, Rollout, Slo, Tolerance, Workload

EXPERIMENT = Experiment(
    id="canary",
    title="A canary with its guard",
    question="Does the guard tell a version 2 that is as good from one that is slower, errs, or is wrong more often?",
    hypothesis="The version that is as good is promoted, and the three with a fault are rolled back.",
    model=ModelSpec(name="digits"),
    rollout=Rollout(way="canary", steps=(0.01, 0.05, 0.25, 1.0), tolerance=Tolerance(latency=0.25, quality=0.03)),
    workload=Workload(arrival=Poisson(rate_rps=200), duration_s=120, warmup_s=5, timeout_s=10),
    slo=Slo(latency_s=0.1, percentile=0.99),
    factors={"rollout.challenger": ("good", "slower", "errs", "worse")},
    repeats=1,
    quick={
        "rollout.steps": [0.25, 0.5, 1.0],
        "rollout.tolerance": {"errors": 0.01, "latency": 0.5, "quality": 0.04},
        "workload.arrival.rate_rps": 150,
        "workload.duration_s": 30,
        "workload.warmup_s": 2,
    },
)
