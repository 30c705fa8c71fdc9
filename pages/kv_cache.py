"""KV cache: keep the keys and values of what was read and written, or compute them anew for each token."""

from lab.show.ui import asking, comparison, findings, frame
from lab.show.ui.topic import Link, Topic


def try_next(model: str) -> list[Link]:
    return [
        Link("pages/try_it.py", "Feel it: one prompt with the cache, and without", ":material/chat:"),
        Link("pages/scheduling.py", "Many users at once: who shares a step?", ":material/view_timeline:"),
        Link("pages/live.py", "Toggle the cache under a load that goes on", ":material/monitoring:"),
    ]


frame.with_app()
comparison.page(
    Topic(
        experiment="kv_cache",
        page="pages/kv_cache.py",
        prefix="k",
        title="Keep it, or compute it anew?",
        bet=(
            "One user asks for the longest answers after the longest prompts. How many tokens a second will the model "
            "write with the cache, compared to without?"
        ),
        counted="Tokens written a second",
        form=asking.kv_cache_form,
        depths="quick: about two minutes, rough. whole: about 20 minutes, two repeats, answers up to 256 tokens.",
        figures={
            "output_tokens_per_s": "Tokens a second",
            "itl_mean_s": "Between tokens, mean",
            "ttft_mean_s": "To the first token, mean",
            "memory_peak_bytes": "Peak host memory (PSS)",
        },
        happened=findings.kv_cache_happened,
        cause=findings.kv_cache_cause,
        why=findings.kv_cache_why,
        compared=("output_tokens_per_s", "itl_mean_s"),
        next=try_next,
    )
)
