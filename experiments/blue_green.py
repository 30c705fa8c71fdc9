"""Two environments, and all traffic switched from one to the other and back while it runs.

Blue and green are two Tritons behind a real gateway, both warmed. Predictions and eight streams are under way; after a
third of the time everything goes to green at once, after two thirds back to blue. Green serves the same digits model in
bf16, so that what it answers can be told from blue's. Predictions come at two fifths of what comes through here at all,
which is found first: a rate that a laptop does not carry would measure its load generator.

    python -m lab run blue_green              three times, about two minutes
    python -m lab run blue_green --quick      once, about half a minute
    python -m lab run blue_green --set workload.arrival.rate_rps=200      a rate of yours
"""

from lab.spec import Constant, Experiment, ModelSpec, Reference, Rollout, Slo, Workload

EXPERIMENT = Experiment(
    id="blue_green",
    title="A blue/green switch",
    question="Is anything lost when all traffic is switched at once, and back?",
    hypothesis=(
        "Each request has exactly one answer, streams are finished where they began, and after the way back the "
        "answers are to the letter those of before."
    ),
    model=ModelSpec(name="digits"),
    neighbours=(ModelSpec(name="llm"),),
    rollout=Rollout(way="blue_green", streams=8),
    workload=Workload(arrival=Constant(saturation_fraction=0.4), duration_s=26, warmup_s=2, timeout_s=60),
    slo=Slo(latency_s=0.1, percentile=0.99),
    reference=Reference(concurrency=8, duration_s=6, warmup_s=2),
    repeats=3,
    quick={"repeats": 1, "workload.duration_s": 14},
)
