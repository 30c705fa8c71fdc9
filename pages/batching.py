"""Dynamic batching: a question, a bet, a run of A against B, what happened, and why."""

from lab.show.ui import asking, comparison, findings, frame
from lab.show.ui.topic import Link, Topic


def try_next(model: str) -> list[Link]:
    other = "embedder" if model == "digits" else "digits"
    return [
        Link(
            "pages/batching.py",
            f"Bet on {other}: does batching pay there?",
            ":material/stacks:",
            (("b_model", other),),
        ),
        Link("pages/live.py", "Toggle batching under a load that goes on", ":material/monitoring:"),
        Link("pages/system.py", "Read the config.pbtxt that did it", ":material/dns:"),
    ]


frame.with_app()
comparison.page(
    Topic(
        experiment="batching",
        page="pages/batching.py",
        prefix="b",
        title="Does waiting for company pay?",
        bet=(
            "At more load than the unbatched model can take, how many requests will batching serve within {objective}, "
            "compared to batching off?"
        ),
        counted="Requests served in time",
        form=asking.batching_form,
        depths="quick: about a minute and a half, rough. whole: about 12 minutes, three repeats.",
        figures={
            "goodput_rps": "Served in time",
            "latency_p50_s": "p50 latency",
            "latency_p99_s": "p99 latency",
            "batch_mean": "Mean batch",
        },
        happened=findings.batching_happened,
        cause=findings.batching_cause,
        why=findings.batching_why,
        compared=("goodput_rps", "latency_p99_s"),
        next=try_next,
    )
)
