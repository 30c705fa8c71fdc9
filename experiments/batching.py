"""Does holding requests back, so that they share one pass through the model, pay?

The same requests (same arrivals, same inputs, from one seed) meet the model with dynamic batching off and with four
queue delays, at 10 %, 80 % and 120 % of the rate at which the unbatched model saturates on this machine. A fraction
of the machine's own saturation, not a fixed rate, keeps the three loads light, heavy and too heavy everywhere.

    python -m lab run batching                          the whole experiment, about 12 minutes
    python -m lab run batching --quick                  about a minute, rough figures
    python -m lab run batching --set model.name=embedder
"""

from lab.spec import Batching, Experiment, Judge, ModelSpec, Poisson, Reference, Slo, Workload

EXPERIMENT = Experiment(
    id="batching",
    title="Dynamic batching",
    question="Does dynamic batching serve more requests in time, and what does waiting for company cost?",
    hypothesis="Near and above the unbatched saturation, batching serves more requests within the objective.",
    model=ModelSpec(name="digits"),
    workload=Workload(arrival=Poisson(saturation_fraction=0.8), duration_s=12, warmup_s=2, timeout_s=5),
    slo=Slo(latency_s=0.020, percentile=0.99),
    factors={
        "workload.arrival.saturation_fraction": (0.1, 0.8, 1.2),
        "model.batching": (
            None,
            Batching(max_batch_size=32, max_queue_delay_us=0),
            Batching(max_batch_size=32, max_queue_delay_us=500),
            Batching(max_batch_size=32, max_queue_delay_us=2_000),
            Batching(max_batch_size=32, max_queue_delay_us=5_000),
        ),
    },
    repeats=3,
    reference=Reference(concurrency=32, duration_s=4, warmup_s=1),
    judge=Judge(factor="model.batching", baseline=None, primary="goodput_rps", expect="higher"),
    quick={
        "repeats": 1,
        "workload.duration_s": 2.5,
        "workload.warmup_s": 0.5,
        "reference.duration_s": 1.5,
        "reference.warmup_s": 0.5,
    },
)
