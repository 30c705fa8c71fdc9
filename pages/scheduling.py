"""Continuous batching: one request at a time, a batch that runs until its longest answer ends, or one that refills."""

from lab.show.ui import asking, comparison, findings, frame
from lab.show.ui.topic import Link, Topic


def try_next(model: str) -> list[Link]:
    return [
        Link("pages/live.py", "Change the scheduler under a load that goes on", ":material/monitoring:"),
        Link("pages/kv_cache.py", "What makes a step cheap: the KV cache", ":material/memory:"),
        Link("pages/batching.py", "The same question for a model without tokens", ":material/stacks:"),
    ]


frame.with_app()
comparison.page(
    Topic(
        experiment="llm_batching",
        page="pages/scheduling.py",
        prefix="s",
        title="Who shares a step?",
        bet=(
            "At the highest load, more than one request at a time can serve: how many requests will continuous "
            "batching answer within {objective}, compared to one at a time?"
        ),
        counted="Requests answered in time",
        form=asking.scheduling_form,
        depths="quick: about two minutes, rough. whole: about 15 minutes, two repeats at three loads.",
        figures={
            "goodput_rps": "Served in time",
            "output_tokens_per_s": "Tokens a second",
            "ttft_p50_s": "To the first token, p50",
            "itl_mean_s": "Between tokens, mean",
        },
        happened=findings.scheduling_happened,
        cause=findings.scheduling_cause,
        why=findings.scheduling_why,
        compared=("goodput_rps", "output_tokens_per_s"),
        next=try_next,
    )
)
