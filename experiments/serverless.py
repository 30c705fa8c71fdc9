"""Scale to zero: who waits for a cold start, what that does to the tail, and from which rate always on is cheaper.

Requests come at random, a few a minute up to a steady stream, to a runner that starts a worker when none is there and
lets it go once it was idle. Each rate begins with nobody there. Gaps of minutes and hours are not waited for: they come
from a simulation with this run's own cold starts and service times, which is checked on each measured rate, and is
called modelled wherever it is shown. Prices per second, and whose seconds are paid, are choices of the page.

    python -m lab run serverless                           six rates, twice, about 15 minutes
    python -m lab run serverless --quick                   about two minutes, rough figures
    python -m lab run serverless --set serverless.idle_s=30 --set model.name=embedder
    python -m lab run serverless --set serverless.memory_limit_bytes=100000000        a model over its limit
"""

from lab.spec import Experiment, ModelSpec, Poisson, Serverless, Slo, Start, Workload

EXPERIMENT = Experiment(
    id="serverless",
    title="Scale to zero",
    question="Who waits for a cold start, at which rate, and from which rate is an always-on machine cheaper?",
    hypothesis=(
        "Requests further apart than the idle timeout are nearly all cold; a steady stream never is, and is cheaper on "
        "an always-on machine."
    ),
    model=ModelSpec(name="llm"),
    serverless=Serverless(
        idle_s=5, concurrency=4, start=Start(page_cache="warm", compile_cache=True, mapped_weights=True)
    ),
    workload=Workload(arrival=Poisson(rate_rps=1.0), duration_s=60, timeout_s=60, protocol="http"),
    slo=Slo(latency_s=3.0, percentile=0.95),
    factors={"workload.arrival.rate_rps": (0.05, 0.1, 0.2, 0.5, 1.0, 4.0)},
    repeats=2,
    quick={
        "repeats": 1,
        "serverless.idle_s": 2,
        "factors": {"workload.arrival.rate_rps": [0.2, 0.5, 2.0]},
        "workload.duration_s": 30,
    },
)
