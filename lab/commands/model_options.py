"""One model, named on the command line: --model NAME --set model.FIELD=VALUE."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lab.errors import InputError

if TYPE_CHECKING:
    from lab.spec import ModelSpec


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="llm", metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="model.FIELD=VALUE", dest="settings")


def model(options: argparse.Namespace) -> ModelSpec:
    """The model that these options describe; InputError where they describe none."""
    from lab.spec import ModelSpec, parse, parse_setting

    fields: dict[str, Any] = {"name": options.model}
    for path, value in map(parse_setting, options.settings):
        if not path.startswith("model."):
            raise InputError(f"--set {path}: there is only a model here; allowed: model.FIELD=VALUE")
        fields[path.removeprefix("model.")] = value
    return parse(ModelSpec, fields)
