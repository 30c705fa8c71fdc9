"""A question as the turn of a user, in ChatML: how the instructed SmolLM2 was trained to see it."""

from __future__ import annotations

# SmolLM2's own.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END = "<|im_end|>"


def as_turn(prompt: str, system: str = SYSTEM) -> str:
    """`system` "": without such a line, which is most of a short question's tokens."""
    first = f"<|im_start|>system\n{system}{END}\n" if system else ""
    return f"{first}<|im_start|>user\n{prompt}{END}\n<|im_start|>assistant\n"
