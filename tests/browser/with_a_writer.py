"""Streamlit with a language model that needs no server: a numbered word four times a second, until it is stopped.

`python -m tests.browser.with_a_writer run asgi.py …` takes Streamlit's own arguments. A file beside Streamlit's log
holds what it was asked and when it was let go, a line each, so that a test can tell a page that stops the model from
one that only stops showing it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamlit.web import cli

from lab.run import conversation
from lab.run.conversation import Piece
from lab.spec import ModelSpec

WORDS = 10_000
EVERY_S = 0.25


def heard() -> Path:
    return Path(os.environ["LAB_HOME"]) / "writer.log"


def say(prompt: str, **_: Any) -> Iterator[Piece]:
    with heard().open("a", buffering=1) as log:
        print(f"asked {prompt}", file=log)
        sent_ns = time.perf_counter_ns()
        try:
            for n in range(1, WORDS + 1):
                time.sleep(EVERY_S)
                yield Piece(f"w{n} ", 1, sent_ns, time.perf_counter_ns(), "length" if n == WORDS else None, 9, n)
        finally:
            print("let go", file=log)


def _nothing_against(spec: ModelSpec) -> None:
    return None


def _at_once(spec: ModelSpec) -> str:
    return "127.0.0.1:1"


if __name__ == "__main__":
    conversation.lacking, conversation.prepare, conversation.say = _nothing_against, _at_once, say
    cli.main(prog_name="streamlit")
