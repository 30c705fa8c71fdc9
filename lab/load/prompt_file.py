"""Prompts of one's own for a language model, from a file as other load generators take them.

    {"prompt": "…"}                                          vLLM's custom data set, GuideLLM
    {"text": "…"}, {"text_input": "…"}                       AIPerf, perf_analyzer
    {"messages": [{"role": "user", "content": "…"}]}         a chat, of which the first user's message is asked
    {"conversations": [{"from": "human", "value": "…"}]}     ShareGPT, likewise
    {"input_length": 512}                                    a trace without words: prose of that many tokens

One object a line, or a JSON list of them, also under "data"; a file that ends in .txt holds a prompt a line. Each may
say how long its answer is ("output_length", "output_tokens" or "max_tokens"); what else it says is read over. Nobody
here knows whether a chat's later turns, or a system's words, matter: they are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab import own_file
from lab.errors import InputError

LARGEST_FILE = 256 * 2**20
TEXTS = ("prompt", "text", "text_input")
TURNS = {"messages": ("role", "content", ("user",)), "conversations": ("from", "value", ("human", "user"))}
"""Where turns stand: who spoke, what, and as whom the user does."""
LENGTHS = ("input_length", "input_tokens")
ANSWERS = ("output_length", "output_tokens", "max_tokens")
LONGEST = 1_000_000
ALLOWED = 'allowed: an object a line with "prompt", "text", "messages" or "input_length"'


@dataclass(frozen=True)
class Prompt:
    """`text`, or None with the `tokens` of prose to send in its place. `answer_tokens` None: as the workload says."""

    text: str | None
    tokens: int | None = None
    answer_tokens: int | None = None


@cache
def read(path: Path) -> tuple[Prompt, ...]:
    """The file's prompts, one at least. InputError in one line, with the entry, for what cannot be read as such."""
    where = f"prompts {str(path)!r}"
    text = own_file.read_text(path, "prompts", LARGEST_FILE)
    if path.suffix.lower() == ".txt":
        found = [Prompt(line) for line in text.splitlines() if line.strip()]
    else:
        found = [_prompt(entry, f"{where}, entry {number}") for number, entry in enumerate(_entries(text, where), 1)]
    if not found:
        raise InputError(f"{where} holds no prompt; {ALLOWED}")
    return tuple(found)


def told(count: int) -> str:
    """What sending a file's prompts means for who reads the figures."""
    if count == 1:
        return "The file's one prompt is sent each time: a prefix cache would have it."
    return (
        f"The file's {count:,} prompts are sent in turn, and again from the first: a prefix cache would have those "
        "that come again."
    )


def _entries(text: str, where: str) -> Iterator[Any]:
    """Of a JSON document, or of lines with one each."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("data"), list):
        whole = whole["data"]
    if whole is not None:
        yield from whole if isinstance(whole, list) else [whole]
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{where}, line {number} is no JSON: {line.strip()[:40]}; {ALLOWED}") from None


def _prompt(entry: Any, where: str) -> Prompt:
    if not isinstance(entry, dict):
        raise InputError(f"{where} is no object: {json.dumps(entry)[:40]}; {ALLOWED}")
    answer_tokens = _length(entry, ANSWERS, where)
    text = next((entry[name] for name in TEXTS if entry.get(name)), None) or _first_turn(entry)
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{where} holds half of a surrogate pair; allowed: text that is UTF-8") from None
        return Prompt(text, None, answer_tokens)
    tokens = _length(entry, LENGTHS, where)
    if text is not None or tokens is None:
        raise InputError(f"{where} has no words to send: {json.dumps(entry)[:60]}; {ALLOWED}")
    return Prompt(None, tokens, answer_tokens)


def _first_turn(entry: Mapping[str, Any]) -> Any:
    """What the user said first; None where there are no turns, or none of the user's."""
    for name, (who, what, users) in TURNS.items():
        turns = entry.get(name)
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict) and turn.get(who) in users and (said := _words(turn.get(what))):
                return said
    return None


def _words(content: Any) -> Any:
    """What a turn says; of one in parts those that are text."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def _length(entry: Mapping[str, Any], names: tuple[str, ...], where: str) -> int | None:
    for name in names:
        value = entry.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LONGEST:
            raise InputError(f"{where}: {name} {json.dumps(value)[:20]}; allowed: 1 to {LONGEST:,} tokens")
        return value
    return None
