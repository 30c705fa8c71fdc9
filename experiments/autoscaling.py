"""Instances that come and go: what an autoscaler saves, and what it costs those who come while one starts.

A day in small: a quiet morning, a steep noon of seven times as many users, an evening. A model whose service time is
known (it sleeps) is served by one instance, by as many as noon needs, and by rules that add and remove instances on
the running server: by requests in the system with a short panic window (Knative's way), by arrival rate with a
tolerance and a stabilisation window (Kubernetes' way), by queue length with a cool-down. A simulator of the same rules
is held against each block.

    python -m lab run autoscaling               the whole experiment, about 10 minutes
    python -m lab run autoscaling --quick       about three minutes, rough figures
"""

from lab.spec import Experiment, Judge, ModelSpec, Scaling, Slo, Steps, Workload, plain

KNATIVE = Scaling(metric="concurrency", target=0.7, most=5, tick_s=1, window_s=10, panic_window_s=1)
KUBERNETES = Scaling(metric="rps", target=3.5, most=5, tick_s=2, window_s=4, tolerance=0.1, down_after_s=10)
QUEUE = Scaling(metric="queue", target=1.0, most=5, tick_s=1, window_s=3, down_after_s=6, cooldown_s=3)


def scaled(rules: Scaling) -> dict[str, object]:
    return {"instances": 1, "scaling": plain(rules)}


ALWAYS = {"instances": 5}
DAY = Steps(rates_rps=(2.0, 3.0, 8.0, 14.0, 14.0, 6.0, 3.0, 2.0), step_s=10)

EXPERIMENT = Experiment(
    id="autoscaling",
    title="Autoscaling",
    question="What does an autoscaler save, and who waits while an instance starts?",
    hypothesis=(
        "Some rules keep the objective with a quarter fewer instance-seconds than as many instances as the peak needs."
    ),
    model=ModelSpec(name="sleeper", instances=5),
    workload=Workload(arrival=DAY, duration_s=80, warmup_s=2, sleep_s=(0.15, 0.2, 0.25), timeout_s=30),
    slo=Slo(latency_s=1.0, percentile=0.9),
    factors={"model": (ALWAYS, {"instances": 1}, scaled(KNATIVE), scaled(KUBERNETES), scaled(QUEUE))},
    repeats=1,
    judge=Judge(
        factor="model",
        baseline=ALWAYS,
        primary="slo_attainment_fraction",
        metrics=("slo_attainment_fraction", "throughput_rps", "latency_p50_s"),
        expect="lower",
        min_effect_fraction=0.1,
    ),
    quick={
        "factors": {"model": [ALWAYS, scaled(KNATIVE), scaled(KUBERNETES)]},
        "workload.arrival": {"kind": "steps", "rates_rps": [3.0, 14.0, 14.0, 3.0], "step_s": 10},
        "workload.duration_s": 40,
    },
)
