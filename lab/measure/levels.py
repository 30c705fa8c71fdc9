"""When two levels of a factor are the same, whatever wrote them: as values, plain, through JSON, by hand or by a page.

A level that sets several fields of a model leaves the others as they are, so a field of None, an empty one and one at
its default say no more than a field left out: {"precision": "bf16"} and {"precision": "bf16", "quantizer": "rtn"} are
one level.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lab.spec import ModelSpec, plain

DEFAULTS = {name: field.default for name, field in ModelSpec.model_fields.items()}


def same(a: Any, b: Any) -> bool:
    return key(a) == key(b)


def unique(levels: Iterable[Any]) -> list[Any]:
    """Each level once, in the order of its first appearance."""
    return list({key(level): level for level in reversed(list(levels))}.values())[::-1]


def key(level: Any) -> str:
    """Equal for equal levels, and for equal {path: level} of several."""
    return json.dumps(_said(plain(level)), sort_keys=True, default=str)


def _said(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    defaults = DEFAULTS if value.keys() <= DEFAULTS.keys() else {}
    return {
        name: _said(inner)
        for name, inner in value.items()
        if inner not in (None, [], ()) and (name not in defaults or inner != defaults[name])
    }
