"""Versions of what is served, in MLflow's model registry: weights, the ModelSpec that serves them, how good they are.

    registry = Registry()                                   LAB_HOME/mlflow/mlflow.db, or the URI in LAB_MLFLOW_URI
    two = registry.register("digits", spec, source="…", run="20261130-…", quality={"accuracy": 0.97})
    registry.alias("digits", "challenger", two.version)
    registry.promote("digits", two.version, instead_of="1")     the champion, if it still is version 1

A version points at files that are held by content (sources.py) and at the run it came from. An alias stands at one
version; a version that has one cannot be deleted, which MLflow itself would do without a word. A database that another
process holds locked is asked again for PATIENCE_S. MLflow takes 1.5 s to import and may wait for a lock: never call it
where somebody is being served or a page is drawn.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lab.errors import InputError, LabError, RunError
from lab.home import home, locked
from lab.serve import weights
from lab.spec import ModelSpec, nearest, parse
from lab.track import mlflow_export
from lab.track.sources import Held, Progress, bring

PATIENCE_S = 60.0
"""MLflow itself waits 20 s for a lock before it fails."""
SQLITE, GLANCE_S = "sqlite:///", 0.2
CHAMPION, CHALLENGER = "champion", "challenger"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ALIAS = re.compile(r"(?!latest$)(?!v\d+$)[a-z][a-z0-9-]{0,39}")

T = TypeVar("T")


@dataclass(frozen=True)
class Registered:
    """One version. `spec` serves it, its files are `held`; `run` is the lab's run it comes from, `quality` what it was
    evaluated at, by name. `aliases` as of when it was read."""

    name: str
    version: str
    spec: ModelSpec
    held: Held
    source: str
    created_utc_ms: int
    run: str | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        held = {**asdict(self.held), "path": str(self.held.path)}
        return {**asdict(self), "spec": self.spec.model_dump(mode="json"), "held": held, "quality": dict(self.quality)}


def names_at_hand(uri: str | None = None) -> list[str] | None:
    """The registered names, read from MLflow's own sqlite file in a moment; None where only MLflow can say, which takes
    seconds to import and longer to lay out a new database."""
    uri = uri or os.environ.get("LAB_MLFLOW_URI") or mlflow_export.tracking_uri()
    if not uri.startswith(SQLITE):
        return None
    path = Path(uri.removeprefix(SQLITE))
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=GLANCE_S)) as database:
            return sorted(str(name) for (name,) in database.execute("SELECT name FROM registered_models"))
    except sqlite3.Error:  # locked, or laid out otherwise
        return None


def known_name(name: str, known: Sequence[str]) -> None:
    """InputError for one that is not registered."""
    if name not in known:
        raise InputError(f"model {name!r}: none of that name is registered{nearest(name, known)}")


class Registry:
    """RunError in one line when MLflow is missing, locked for too long, or refuses."""

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri or os.environ.get("LAB_MLFLOW_URI") or mlflow_export.tracking_uri()
        self._lock = home() / "mlflow" / "registry.lock"
        try:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            from mlflow import MlflowClient
        except ImportError:
            raise RunError(mlflow_export.MISSING) from None
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with locked(self._lock):  # two processes that lay out a new database at once spoil it
            self._client: Any = self._ask(lambda: MlflowClient(tracking_uri=self.uri, registry_uri=self.uri))
            self._ask(lambda: self._client.search_registered_models(max_results=1))

    # --- versions -----------------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        spec: ModelSpec,
        source: str,
        *,
        run: str | None = None,
        quality: Mapping[str, float] | None = None,
        judge: Callable[[ModelSpec, Held], Mapping[str, float]] | None = None,
        progress: Progress = lambda file, done, of: None,
    ) -> Registered:
        """A new version of `name`, with the files of `source` (sources.py) fetched and kept. Without a
        `quality`, it is what `judge` says of them. InputError for a name, a source or a family that cannot be
        registered."""
        if not NAME.fullmatch(name):
            raise InputError(f"name {name!r}: allowed: 1 to 100 letters, digits and ._-, beginning with none of these")
        if spec.family not in weights.FAMILIES:
            allowed = ", ".join(weights.FAMILIES)
            raise InputError(f"model {spec.name}: family {spec.family} reads no files; allowed: {allowed}")
        held = bring(source, progress)
        if quality is None and judge is not None:
            quality = judge(spec, held)
        tags = {
            "lab.spec": spec.model_dump_json(exclude_unset=True),
            "lab.held": json.dumps({"sha256": held.sha256, "size_bytes": held.size_bytes}),
            "lab.source": source,
            "lab.quality": json.dumps(dict(quality or {})),
            **({"lab.run": run} if run else {}),
        }
        if name not in self._names():
            try:
                self._ask(lambda: self._client.create_registered_model(name))
            except RunError as error:
                if "already exists" not in str(error):
                    raise
        made = self._ask(
            lambda: self._client.create_model_version(
                name, source=held.path.as_uri(), tags=tags, await_creation_for=None
            )
        )
        return self._registered(made, ())

    def versions(self, name: str | None = None, text: str = "") -> list[Registered]:
        """Newest first; of one name, and only those whose spec, source, run or aliases hold `text`."""
        if name is not None:
            self._known(name)
        found = []
        for one in [name] if name is not None else self._names():
            aliases = self._aliases(one)
            for entry in self._entries(one):
                own = tuple(sorted(alias for alias, version in aliases.items() if version == str(entry.version)))
                if "lab.spec" in entry.tags:  # others may keep theirs in the same database
                    found.append(self._registered(entry, own))
        found = [one for one in found if text.lower() in json.dumps(one.to_dict()).lower()]
        return sorted(found, key=lambda one: (one.name, -int(one.version)))

    def version(self, name: str, version_or_alias: str) -> Registered:
        """InputError for one that there is not."""
        every = self.versions(name)
        for one in every:
            if version_or_alias in (one.version, *one.aliases):
                return one
        known = [*(one.version for one in every), *(alias for one in every for alias in one.aliases)]
        raise InputError(f"version {version_or_alias!r} of {name}: there is none{nearest(version_or_alias, known)}")

    def delete(self, name: str, version: str) -> None:
        """InputError while an alias stands at it. Its files stay in LAB_HOME/registry: other versions may have the
        same, and what is served may read them."""
        with locked(self._lock):
            one = self.version(name, version)
            if one.aliases:
                raise InputError(
                    f"version {one.version} of {name} is {', '.join(one.aliases)}; give the alias away first"
                )
            self._ask(lambda: self._client.delete_model_version(name, one.version))

    def diff(self, name: str, a: str, b: str) -> list[tuple[str, Any, Any]]:
        """(what, in `a`, in `b`) of everything that differs: fields of the spec, files, size, quality, source, run."""
        first, second = (_flat(self.version(name, version)) for version in (a, b))
        names = sorted({*first, *second})
        return [(what, first.get(what), second.get(what)) for what in names if first.get(what) != second.get(what)]

    # --- aliases ------------------------------------------------------------------------------------------------

    def alias(self, name: str, alias: str, version: str | None) -> None:
        """Put the alias at a version, or take it away for None. InputError for a version that there is not."""
        if not ALIAS.fullmatch(alias):
            raise InputError(f"alias {alias!r}: allowed: small letters, digits and -, but not latest or v and a number")
        with locked(self._lock):
            self._set(name, alias, version)

    def promote(self, name: str, version: str, *, instead_of: str | None) -> None:
        """Make `version` the champion, if the champion now is `instead_of` (None: none yet): of two who promote
        at once, one does and the other is told. A challenger's alias is given up by its version."""
        with locked(self._lock):
            aliases = self._aliases(name)
            if aliases.get(CHAMPION) != instead_of:
                raise InputError(
                    f"champion of {name} is version {aliases.get(CHAMPION) or 'none'}, not {instead_of or 'none'} any "
                    "more; look again"
                )
            self._set(name, CHAMPION, version)
            if aliases.get(CHALLENGER) == version:
                self._set(name, CHALLENGER, None)

    def _set(self, name: str, alias: str, version: str | None) -> None:
        if version is None:
            self._known(name)
            self._ask(lambda: self._client.delete_registered_model_alias(name, alias))
        else:
            wanted = self.version(name, version).version
            self._ask(lambda: self._client.set_registered_model_alias(name, alias, wanted))

    # --- inside -------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        names: list[str] = []
        token: str | None = None
        while True:  # MLflow gives a hundred at a time
            page = self._ask(partial(self._client.search_registered_models, page_token=token))
            names += [str(model.name) for model in page]
            if not (token := page.token):
                return sorted(names)

    def _known(self, name: str) -> None:
        known_name(name, self._names())

    def _entries(self, name: str) -> Sequence[Any]:
        found: Sequence[Any] = self._ask(lambda: self._client.search_model_versions(f"name = '{name}'"))
        return found

    def _aliases(self, name: str) -> dict[str, str]:
        """From the registered model: a search of versions comes without them."""
        found = self._ask(lambda: self._client.get_registered_model(name)).aliases
        return {str(alias): str(version) for alias, version in found.items()}

    def _registered(self, entry: Any, aliases: Sequence[str]) -> Registered:
        tags = entry.tags
        held = json.loads(tags["lab.held"])
        return Registered(
            name=str(entry.name),
            version=str(entry.version),
            spec=parse(ModelSpec, json.loads(tags["lab.spec"])),
            held=Held(home() / "registry" / held["sha256"], held["sha256"], held["size_bytes"]),
            source=tags["lab.source"],
            created_utc_ms=int(entry.creation_timestamp),
            run=tags.get("lab.run"),
            quality=json.loads(tags["lab.quality"]),
            aliases=tuple(aliases),
        )

    def _ask(self, call: Callable[[], T]) -> T:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except LabError:
                raise
            except Exception as error:  # noqa: BLE001  whatever MLflow and its database raise becomes one line of ours
                said = " ".join(str(error).split())[:300]
                if "database is locked" not in said:
                    raise RunError(f"MLflow refused: {said}") from None
                if time.monotonic() > until_s:
                    raise RunError(
                        f"MLflow's database was locked by another process for {PATIENCE_S:g} s; close it and try again"
                    ) from None
                time.sleep(0.2)


def _flat(one: Registered) -> dict[str, Any]:
    found: dict[str, Any] = {f"spec.{name}": value for name, value in one.spec.model_dump(mode="json").items()}
    found |= {f"quality.{name}": value for name, value in one.quality.items()}
    return {
        **found,
        "files": one.held.sha256[:12],
        "size_bytes": one.held.size_bytes,
        "source": one.source,
        "run": one.run,
    }
