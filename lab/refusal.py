"""Why a value does not fit the vocabulary, in one line: the field, its value, and what is allowed.

pydantic finds out *that* a value does not fit; its own words ("Input should be greater than 0") name neither field nor
value and tell a union by its branches. So what is allowed is read from the field's annotation instead, the same way
for every kind of mistake:

    model.instances 0: allowed: a whole number from 1 to 16
    workload.arrival.concurrency: kind "poisson" has no such field, kind "closed" has; set workload.arrival whole …

A complaint of the vocabulary's own validators stands as they say it. Knows pydantic, and no model of the lab.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

SHOWN_LIMIT = 60
"""Characters of a value that a line repeats."""

PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def nearest(word: str, allowed: Iterable[str]) -> str:
    """'; did you mean "batching"?' or the list of what is allowed."""
    names = sorted(allowed)
    if not names:
        return "; there is none yet"
    close = difflib.get_close_matches(word, names, n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; allowed: {', '.join(names)}"


def one_line(error: ValidationError, kind: type[BaseModel]) -> str:
    """The complaint of pydantic's report on a `kind` that says most: a field that does not exist before one that is
    missing, since a misspelt field is both; else the first."""
    complaints = error.errors(include_url=False)
    first = next((found for found in complaints if found["type"] == "extra_forbidden"), complaints[0])
    place, value = _find(kind, first["loc"]), first["input"]
    match first["type"]:
        case "extra_forbidden":
            return _no_such_field(place, value)
        case "missing":
            return f"{place.path} is missing; allowed: {allowed(place.annotation)}"
        case "union_tag_not_found" | "union_tag_invalid" if isinstance(value, Mapping):
            tags = _tagged(place.annotation)
            given = value.get("kind")
            if given is None:
                return f"{place.path}.kind is missing; allowed: {', '.join(tags)}"
            return f"{place.path}.kind {_shown(given)}: there is no such kind{nearest(str(given), tags)}"
        case "value_error":
            whole = isinstance(value, Mapping | BaseModel)  # the complaint names the fields that do not go together
            said = first["msg"].removeprefix("Value error, ")
            return f"{place.path or kind.__name__}{'' if whole else f' {_shown(value)}'}: {said}"
        case "string_type" if value is None:
            hint = f"the text null needs quotes: --set '{place.path}=\"null\"'"
            return f"{place.path} null: allowed: {allowed(place.annotation)}; {hint}"
        case _:
            return f"{place.path or kind.__name__} {_shown(value)}: allowed: {allowed(place.annotation)}"


def allowed(annotation: Any) -> str:
    """What a field of that annotation takes, in words: "a number above 0, or null"."""
    bare, limits, described = _unwrapped(annotation)
    if described:
        return described
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is Literal:
        return _either([str(value) for value in arguments])
    if tags := _tagged(bare):
        return f"an object whose kind is {_either(list(tags))}"
    if origin in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(allowed(argument) for argument in arguments))
    if origin in (tuple, list):
        if arguments[-1:] == (...,) or origin is list:
            return f"a list, each {allowed(arguments[0])}"
        return f"[{', '.join(allowed(argument) for argument in arguments)}]"
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return f"an object with {', '.join(bare.model_fields)}"
    if origin is dict:
        return "an object"
    return PLAIN.get(bare, "any value") + _bounds(limits)


# --- where a complaint is -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """`path` is dotted, as a user writes it. `holder` is the model that has or lacks the last field, `kinds` the models
    by tag that it is one of, where it is."""

    path: str
    annotation: Any
    holder: type[BaseModel] | None
    kinds: Mapping[str, type[BaseModel]]


def _find(kind: type[BaseModel], loc: tuple[int | str, ...]) -> _Place:
    """pydantic's location as a path: it also names the tag or the branch of a union, which no user ever wrote."""
    path: list[str] = []
    here: Any = kind
    holder: type[BaseModel] | None = None
    kinds: dict[str, type[BaseModel]] = {}
    chosen_from: dict[str, type[BaseModel]] = {}
    for part in loc:
        bare, _, _ = _unwrapped(here)
        branches = [b for b in get_args(bare) if b is not type(None)] if _is_union(bare) else []
        if len(branches) > 1:
            chosen_from = _tagged(bare)
            here = chosen_from.get(str(part), here)
            continue
        if branches:
            bare, _, _ = _unwrapped(branches[0])
        kinds, chosen_from = chosen_from, {}
        path.append(str(part))
        holder = bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None
        here = _inside(bare, part)
    return _Place(".".join(path), here, holder, kinds)


def _inside(here: Any, part: int | str) -> Any:
    """The annotation of one field of a model, one member of a list or a pair, one value of a dict."""
    if isinstance(here, type) and issubclass(here, BaseModel):
        field = here.model_fields.get(str(part))
        return Any if field is None else Annotated[field.annotation, field]
    inner = [argument for argument in get_args(here) if argument is not ...] or [Any]
    return inner[part] if isinstance(part, int) and part < len(inner) else inner[-1]


def _no_such_field(place: _Place, value: Any) -> str:
    above, _, name = place.path.rpartition(".")
    fields = place.holder.model_fields if place.holder else {}
    having = [f'"{tag}"' for tag, model in place.kinds.items() if name in model.model_fields]
    if having:
        own = fields["kind"].default
        have = f"kind {having[0]} has" if len(having) == 1 else f"kinds {', '.join(having)} have"
        said = f'{place.path}: kind "{own}" has no such field, {have}; set {above} whole to change its kind'
        return f"{said}{_such_as(above, place.kinds, name, value)}"
    return f"{place.path}: there is no such field{nearest(name, fields)}"


def _such_as(above: str, kinds: Mapping[str, type[BaseModel]], name: str, value: Any) -> str:
    """ ", such as workload.arrival={"kind": "closed", "concurrency": 8}" of the first kind that needs no more."""
    for tag, model in kinds.items():
        if name in model.model_fields:
            whole = {"kind": tag, name: value}
            try:
                model.model_validate(whole)
            except ValidationError:
                continue
            return f", such as {above}={_shown(whole)}"
    return ""


# --- annotations --------------------------------------------------------------------------------------------------


def _unwrapped(annotation: Any) -> tuple[Any, list[Any], str]:
    """(the bare annotation, its constraints, its description) of an Annotated, however deep."""
    constraints: list[Any] = []
    described = ""
    while get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        for mark in marks:
            constraints += mark.metadata if isinstance(mark, FieldInfo) else [mark]
            described = described or (mark.description or "" if isinstance(mark, FieldInfo) else "")
    return annotation, constraints, described


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _tagged(annotation: Any) -> dict[str, type[BaseModel]]:
    """The models of a union whose members are told apart by their field `kind`, by its value; {} for anything else."""
    bare, _, _ = _unwrapped(annotation)
    members = get_args(bare) if _is_union(bare) else ()
    if not members or not all(isinstance(m, type) and issubclass(m, BaseModel) for m in members):
        return {}
    return {m.model_fields["kind"].default: m for m in members if "kind" in m.model_fields}


def _bounds(constraints: list[Any]) -> str:
    found = {name: getattr(c, name) for c in constraints for name in ("ge", "gt", "le", "lt") if hasattr(c, name)}
    words = {"ge": "from", "gt": "above", "le": "to" if "ge" in found else "up to", "lt": "and below"}
    return "".join(f" {word} {found[name]:,}" for name, word in words.items() if name in found)


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(value: Any) -> str:
    """The value as it is written in JSON, which is how a user gives it."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN_LIMIT else text[: SHOWN_LIMIT - 1] + "…"
