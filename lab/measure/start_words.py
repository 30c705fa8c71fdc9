"""A way to start, and a stage of it, in words: "plain start", "kept code, mapped weights", "torch imported"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STAGES = {
    "server": "Triton comes up",
    "process": "process starts",
    "import_torch": "imports torch",
    "import_model": "imports the model's code",
    "read": "reads the weights",
    "convert": "converts and packs",
    "compile": "compiles or loads kernels",
    "runtime": "tokenizer, cache, server",
    "warm_up": "warms up",
    "first_answer": "first answer",
}
"""In the order in which they happen; what a start has not is left out."""

REMEDIES = {
    "compile_cache": "kept code",
    "mapped_weights": "mapped weights",
    "zygote": "forked from a parent",
    "keep_warm": "kept warm",
}
ALL = ("compile_cache", "mapped_weights", "zygote")
"""That leave nothing running but a parent."""


def stage_label(name: str, start: Mapping[str, Any]) -> str:
    """Of one way to start: with kept code "loads kernels", without "compiles kernels"."""
    if name == "compile":
        return "loads kernels" if start.get("compile_cache") else "compiles kernels"
    return STAGES[name]


def start_label(level: Mapping[str, Any]) -> str:
    """Of a level of the factor "start", or of a whole Start as plain data."""
    words = []
    if level.get("runtime") == "triton":
        words.append("in Triton")
    if level.get("torch_compile"):
        words.append("torch.compile")
    if level.get("page_cache") == "warm":
        words.append("weights in the page cache")
    if all(level.get(name) for name in ALL):
        words.append("all remedies")
        words += [said for name, said in REMEDIES.items() if level.get(name) and name not in ALL]
    else:
        words += [said for name, said in REMEDIES.items() if level.get(name)]
    return ", ".join(words) or "plain start"
