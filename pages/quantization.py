"""Quantization: fewer bits a weight, what they buy in speed and what they cost in memory and quality."""

from lab.show.ui import comparison, formats, frame
from lab.show.ui.topic import Link, Topic


def try_next(model: str) -> list[Link]:
    return [
        Link("pages/try_it.py", "Read what a format writes: one prompt, your own words", ":material/chat:"),
        Link("pages/live.py", "Change the format under a load that goes on", ":material/monitoring:"),
        Link("pages/kv_cache.py", "What else a step reads: the KV cache", ":material/memory:"),
    ]


frame.with_app()
comparison.page(
    Topic(
        experiment="quantization",
        page="pages/quantization.py",
        prefix="q",
        title="How many bits does a weight need?",
        bet=(
            "Eight users ask a language model whose weights have 4 or 8 bits instead of 16. How many tokens a second "
            "will the fastest format write, compared to bf16?"
        ),
        counted="Tokens written a second",
        form=formats.form,
        depths=(
            "quick: about three minutes for four formats, rough. whole: about 15 minutes for all, three repeats. The "
            "quality of each format is evaluated once, which takes about a minute more."
        ),
        figures={
            "output_tokens_per_s": "Tokens a second",
            "ttft_p50_s": "To the first token, p50",
            "itl_mean_s": "Between tokens, mean",
            "memory_peak_bytes": "Peak host memory (PSS)",
        },
        happened=formats.happened,
        cause=formats.cause,
        why=formats.why,
        beside=formats.answers,
        unmeasured=formats.unmeasured,
        compared=("output_tokens_per_s", "itl_mean_s", "ttft_p50_s"),
        next=try_next,
    )
)
formats.related()
