"""A conversation as the text that a model was trained to see: the chat template of its tokenizer_config.json.

Templates are programs in Jinja that come with weights from anywhere, so they run in Jinja's sandbox, as transformers
runs them: without access to anything but the messages, and to the special tokens that the file names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lab.errors import InputError
from lab.gateway.refusals import wrong

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
LONGEST = 2**20
"""Characters of a prompt that a template may make."""


class ChatTemplate:
    """InputError when `folder` has none, or one that is no template."""

    def __init__(self, folder: Path) -> None:
        place = folder / "tokenizer_config.json"
        try:
            config = json.loads(place.read_text())
            source = config.get("chat_template")
            if source is None and (folder / "chat_template.jinja").is_file():
                source = (folder / "chat_template.jinja").read_text()
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{place}: cannot be read ({error})") from None
        if isinstance(source, list):  # several, by name
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        if not isinstance(source, str):
            raise InputError(f"{place}: no chat_template; the model takes completions, not chats")
        self._tokens = {name: _text(config.get(name)) for name in SPECIAL if config.get(name) is not None}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _complain
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InputError(f"{place}: chat_template is no template: {error}") from None

    def prompt(self, messages: Sequence[dict[str, str]]) -> str:
        """The text that ends where the assistant's answer begins. Refusal for messages that the template refuses."""
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, **self._tokens
            )
        except TemplateError as error:
            raise wrong(f"messages: the model's chat template refuses them: {error}", "messages") from None
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise wrong(f"messages: the model's chat template fails on them: {error}", "messages") from None
        if len(text) > LONGEST:
            raise wrong(f"messages: {len(text)} characters; allowed: {LONGEST}", "messages")
        return text


def _complain(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    """As transformers has it: Jinja's own escapes what HTML would stumble over."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _text(token: Any) -> str:
    """A special token is a text, or an object that holds one."""
    return str(token["content"]) if isinstance(token, dict) else str(token)
