"""Reading values from plain data, and changing them field by field at dotted paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from lab.errors import InputError
from lab.refusal import nearest, one_line

V = TypeVar("V", bound=BaseModel)


def parse(kind: type[V], data: Any) -> V:
    """`kind` built from plain data; InputError with one line when it does not fit."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(one_line(error, kind)) from None


def set_path(value: V, path: str, new: Any) -> V:
    """A copy of `value` with the field at a dotted path replaced; fields that were left to their default stay so
    (model.family follows a new model.name). InputError when the path or the value does not fit."""
    return set_paths(value, [(path, new)])


def set_paths(value: V, changes: Sequence[tuple[str, Any]]) -> V:
    """The same for several paths, checked once all are set: they need to fit together, not one by one."""
    data = written(value)
    for path, new in changes:
        data = replaced(data, path.split("."), plain(new), path, type(value))
    return parse(type(value), data)


def parse_setting(text: str) -> tuple[str, Any]:
    """("model.name", "embedder") from "model.name=embedder". The right side is JSON where it parses as JSON."""
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise InputError(f"--set {text!r}: allowed is PATH=VALUE, such as workload.duration_s=5")
    try:
        return path, json.loads(raw)
    except (ValueError, RecursionError):  # not JSON, or JSON that no setting of the lab looks like
        return path, raw


def plain(value: Any) -> Any:
    """Values as the dicts, lists, numbers and strings that JSON knows."""
    return written(value) if isinstance(value, BaseModel) else value


def written(value: BaseModel) -> dict[str, Any]:
    # exclude_unset keeps "left to the default" apart from "set to the default's value"; the discriminator of an
    # arrival is a default that must survive the trip.
    data = value.model_dump(exclude_unset=True)
    for name in type(value).model_fields:
        inner = getattr(value, name)
        if isinstance(inner, BaseModel) and name in data:
            data[name] = written(inner)
    if "kind" in type(value).model_fields:
        data["kind"] = value.kind  # type: ignore[attr-defined]  # it has one, says the line above
    return data


def replaced(
    data: dict[str, Any], parts: list[str], new: Any, path: str, kind: type[BaseModel] | None = None
) -> dict[str, Any]:
    head, *rest = parts
    if kind is not None and head not in kind.model_fields:
        raise InputError(f"{path}: there is no field {head!r}{nearest(head, kind.model_fields)}")
    if not rest:
        if head in ("rate_rps", "saturation_fraction"):
            # One rate replaces the other: whoever sets a rate means "instead".
            data = {k: v for k, v in data.items() if k not in ("rate_rps", "saturation_fraction")}
        return {**data, head: new}
    inner = data.get(head)
    if inner is None:
        inner = {}
    if not isinstance(inner, dict):
        raise InputError(f"{path}: {head!r} holds {inner!r}, which has no fields")
    return {**data, head: replaced(inner, rest, new, path)}
