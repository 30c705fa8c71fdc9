"""Which version of a model a request goes to: weights, stickiness, override, shadow traffic, replicas.

    Route      one served name: its versions with their weights, and how replicas of a version share the requests
    choose     the version for one request: the one it asks for, else by its key, else by lot
    Routes     LAB_HOME/gateway/routes.json, the one place where routes stand: replaced whole, so a reader sees the old
               or the new ones; whoever changes them (page, command line, guard) does so under a lock, and a gateway
               reads them again within WATCH_S, at its start too

A key sticks to a version by weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase
hit rates", 1998; weights: Schindelhauer and Schomaker, SPAA 2005): when weights change, keys move only to versions
whose weight grew. Knows no HTTP and no Triton.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lab.errors import FolderError, InputError
from lab.home import home, locked
from lab.measure.guard import Tolerance
from lab.spec import Value, nearest, parse

LAB = "lab"
WATCH_S = 0.05
STEPS = (0.01, 0.05, 0.25, 1.0)

Move = Literal["advance", "promote", "roll_back", "hold", "go_on"]
Balance = Literal["round_robin", "least_outstanding", "power_of_two"]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$", description="1 to 40 letters, digits, ._-")]
ServedName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$", description="1 to 100 letters, digits, ._/-")
]


class Replica(Value):
    """One place that serves a version: `model` at `url`, which is grpc://HOST:PORT of a Triton, openai+http://HOST:PORT,
    or "lab" for the lab's own Triton, wherever it listens."""

    url: Annotated[
        str,
        Field(
            pattern=r"^(lab|grpc://[^\s/]+:\d+|openai\+https?://[^\s/]+(/v1)?)$",
            description="grpc://HOST:PORT, openai+http://HOST:PORT or lab",
        ),
    ]
    model: str


class Version(Value):
    """`weight`: the share of the requests that are drawn."""

    version: Label
    weight: Fraction
    replicas: Annotated[tuple[Replica, ...], Field(min_length=1)]


class Mirror(Value):
    """A copy of this share of the requests goes to `version` too; nobody waits for its answers."""

    version: Label
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0


class Canary(Value):
    """A rollout under way: how far `challenger` has come beside `champion`. `state` "held" was stopped by hand; ended
    ones stay to be read. `begun` names this rollout in the audit log."""

    champion: Label
    challenger: Label
    steps: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = STEPS
    step: Annotated[int, Field(ge=0)] = 0
    state: Literal["going", "held", "promoted", "rolled_back"] = "going"
    tolerance: Tolerance = Tolerance()
    begun: str = ""

    @model_validator(mode="after")
    def _steps_ascend(self) -> Canary:
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"steps {list(self.steps)}; allowed: shares that ascend, such as {list(STEPS)}")
        if self.step >= len(self.steps):
            raise ValueError(f"step {self.step} of {len(self.steps)} steps; allowed: 0 to {len(self.steps) - 1}")
        if self.champion == self.challenger:
            raise ValueError(f"challenger {self.challenger!r} is the champion; allowed: another version")
        return self

    @property
    def share(self) -> float:
        return self.steps[self.step]


class Route(Value):
    """What stands behind the name `model`."""

    model: ServedName
    versions: Annotated[tuple[Version, ...], Field(min_length=1)]
    balance: Balance = "least_outstanding"
    mirror: Mirror | None = None
    canary: Canary | None = None

    @model_validator(mode="after")
    def _weights_are_shares(self) -> Route:
        names = [version.version for version in self.versions]
        if len(set(names)) < len(names):
            raise ValueError(f"versions {names}: one of them stands there twice; allowed: each once")
        total = sum(version.weight for version in self.versions)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"weights {[version.weight for version in self.versions]} make {total:g}; allowed: 1")
        named = {self.mirror.version} if self.mirror else set()
        named |= {self.canary.champion, self.canary.challenger} if self.canary else set()
        if unknown := sorted(named - set(names)):
            raise ValueError(f"version {unknown[0]!r} is none of this route{nearest(unknown[0], names)}")
        return self

    def version(self, name: str) -> Version:
        for version in self.versions:
            if version.version == name:
                return version
        names = [version.version for version in self.versions]
        raise InputError(f"version {name!r} of {self.model}: there is none{nearest(name, names)}")

    def weighing(self, weights: Mapping[str, float], **changes: Any) -> Route:
        """The same route with these weights; versions that are not named get none."""
        for name in weights:
            self.version(name)
        versions = [
            {**version.model_dump(mode="json"), "weight": weights.get(version.version, 0.0)}
            for version in self.versions
        ]
        written = {**self.model_dump(mode="json"), "versions": versions}
        return parse(Route, {**written, **changes})


def choose(route: Route, key: str | None, asked: str | None, dice: random.Random) -> tuple[Version, float | None]:
    """The version of one request, and the share of the challenger in the draw: None where nothing was drawn, because
    the request asked for a version by name. InputError for one that there is not."""
    if asked is not None:
        return route.version(asked), None
    if len(route.versions) == 1:
        return route.versions[0], None
    share = _share(route)
    if key is None:
        (drawn,) = dice.choices(route.versions, [version.weight for version in route.versions])
        return drawn, share
    return max(route.versions, key=lambda version: _score(route.model, version, key)), share


def _share(route: Route) -> float | None:
    """Of the challenger against the champion."""
    canary = route.canary
    if canary is None:
        return None
    challenger, champion = route.version(canary.challenger).weight, route.version(canary.champion).weight
    return challenger / (challenger + champion) if challenger + champion else None


def _score(model: str, version: Version, key: str) -> float:
    if version.weight == 0:
        return -math.inf
    digest = hashlib.blake2b(f"{model}\0{version.version}\0{key}".encode(), digest_size=8).digest()
    unit = (int.from_bytes(digest) + 0.5) / 2**64
    return -version.weight / math.log(unit)


class Balancer:
    """Which replica of a version a request goes to. `outstanding` is kept by who sends."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._turns: dict[tuple[str, str], int] = {}
        self.outstanding: dict[Replica, int] = {}

    def pick(self, route: Route, version: Version) -> Replica:
        replicas = version.replicas
        if len(replicas) == 1:
            return replicas[0]
        if route.balance == "power_of_two":
            return min(self._dice.sample(replicas, 2), key=self._load)
        turn = self._turns.get((route.model, version.version), 0)
        self._turns[route.model, version.version] = turn + 1
        ordered = [replicas[(turn + n) % len(replicas)] for n in range(len(replicas))]
        return ordered[0] if route.balance == "round_robin" else min(ordered, key=self._load)

    def _load(self, replica: Replica) -> int:
        return self.outstanding.get(replica, 0)


class Routes:
    """The routes in `folder` (LAB_HOME/gateway unless given), as of the last `refresh`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home() / "gateway"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "routes.json"
        self.by_name: dict[str, Route] = {}
        self._seen: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> bool:
        """Read the file again if it was replaced; whether it was. FolderError when it cannot be understood."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return False
        self.by_name, self._seen = self._read(), seen
        return True

    def change(self, model: str, make: Callable[[Route | None], Route | None], **why: Any) -> Route | None:
        """Put `make(the route now)` in its place, or take it away for None, as one step that no other change comes
        between. `why` goes to the audit log beside the weights before and after. LabError of `make` changes nothing."""
        with locked(self.folder / "routes.lock"):
            routes = self._read()
            before = routes.get(model)
            after = make(before)
            if after == before:
                return after
            if after is None:
                routes.pop(model, None)
            elif after.model != model:
                raise InputError(f"route {after.model!r} in the place of {model!r}; allowed: the same name")
            else:
                routes[model] = after
            new = self.path.with_name(f".routes.{os.getpid()}")
            new.write_text(json.dumps({name: r.model_dump(mode="json") for name, r in routes.items()}, indent=1))
            new.replace(self.path)
            self._audit({"model": model, "before": _weights(before), "after": _weights(after), **why})
        self.refresh()
        return after

    def note(self, model: str, **what: Any) -> None:
        """A line of the audit log about a decision that moved nothing."""
        with locked(self.folder / "routes.lock"):
            self._audit({"model": model, **what})

    def audit(self, model: str | None = None) -> list[dict[str, Any]]:
        """What was decided, oldest first; a line cut short by a crash is left out."""
        try:
            lines = (self.folder / "audit.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [entry for entry in found if model is None or entry.get("model") == model]

    def _audit(self, entry: Mapping[str, Any]) -> None:
        with (self.folder / "audit.jsonl").open("a") as file:
            file.write(json.dumps({"utc": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}) + "\n")

    def _read(self) -> dict[str, Route]:
        try:
            written = json.loads(self.path.read_text())
            return {name: parse(Route, route) for name, route in written.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, InputError) as error:
            raise FolderError(f"{self.path}: {error}; mend it, or remove it to begin without routes") from None


def to_one(model: str, url: str, name: str | None = None) -> Route:
    """A route with one version, "1": `name` (the same unless given) at `url`."""
    replica = {"url": url, "model": name or model}
    return parse(Route, {"model": model, "versions": [{"version": "1", "weight": 1.0, "replicas": [replica]}]})


def _weights(route: Route | None) -> dict[str, float] | None:
    return None if route is None else {version.version: version.weight for version in route.versions}


def add_version(routes: Routes, model: str, version: Version) -> Route | None:
    """Put a version into the route, without weight; into a new route with all of it. One of that name is replaced where
    it stands, which changes nothing of who gets what."""

    def added(route: Route | None) -> Route:
        if route is None:
            whole = version.model_copy(update={"weight": 1.0})
            return Route(model=model, versions=(whole,))
        if version.version not in [known.version for known in route.versions]:
            return route.model_copy(update={"versions": (*route.versions, version.model_copy(update={"weight": 0.0}))})
        kept = [
            version.model_copy(update={"weight": known.weight}) if known.version == version.version else known
            for known in route.versions
        ]
        return route.model_copy(update={"versions": tuple(kept)})

    return routes.change(model, added, action="deploy", version=version.version, by="person")


def begin(
    routes: Routes,
    model: str,
    challenger: str,
    *,
    steps: Sequence[float] = STEPS,
    tolerance: Tolerance | None = None,
    by: str = "person",
) -> Route:
    """Start a canary of the version `challenger` beside the one that has all of the traffic now."""

    def started(route: Route) -> Route:
        if route.canary is not None and route.canary.state in ("going", "held"):
            raise InputError(f"model {model!r}: a rollout of {route.canary.challenger} is under way; end it first")
        champions = [version for version in route.versions if version.weight == 1]
        if not champions:
            raise InputError(f"model {model!r}: no version has all of the traffic, so there is no champion")
        route.version(challenger)
        canary = {
            "champion": champions[0].version,
            "challenger": challenger,
            "steps": list(steps),
            "tolerance": (tolerance or Tolerance()).model_dump(mode="json"),
            "begun": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        first = parse(Canary, canary).share
        return route.weighing(split(champions[0].version, challenger, first), canary=canary)

    return _changed(routes, model, started, action="begin", by=by)


def move(routes: Routes, model: str, action: Move, *, by: str = "person") -> Route:
    """A decision about the canary under way."""
    return _changed(routes, model, lambda route: decide(route, action), action=action, by=by)


def switch(routes: Routes, model: str, version: str, *, by: str = "person") -> Route:
    """All of the traffic to `version` from the next request on; answers under way are finished where they began, and
    the version that had it stays loaded for the way back. A canary under way is refused: it has its own ends."""

    def switched(route: Route) -> Route:
        if route.canary is not None and route.canary.state in ("going", "held"):
            raise InputError(f"model {model!r}: a rollout is under way; promote it or roll it back")
        return route.weighing({version: 1.0})

    return _changed(routes, model, switched, action="switch", by=by)


def weigh(routes: Routes, model: str, weights: Mapping[str, float], *, by: str = "person") -> Route:
    """Other shares, made by hand; a canary under way is held at them no longer."""

    def weighed(route: Route) -> Route:
        if route.canary is not None and route.canary.state in ("going", "held"):
            raise InputError(f"model {model!r}: a rollout is under way; end it first")
        return route.weighing(weights)

    return _changed(routes, model, weighed, action="weights", by=by)


def shadow(routes: Routes, model: str, version: str | None, fraction: float = 1.0, *, by: str = "person") -> Route:
    """Copies of this share of the requests go to `version` too; None: no more."""
    mirror = None if version is None else {"version": version, "fraction": fraction}
    return _changed(
        routes,
        model,
        lambda route: parse(Route, {**route.model_dump(mode="json"), "mirror": mirror}),
        action="mirror",
        by=by,
    )


def _changed(routes: Routes, model: str, make: Callable[[Route], Route], **why: Any) -> Route:
    def made(route: Route | None) -> Route:
        if route is None:
            raise InputError(f"model {model!r} has no route{nearest(model, routes.by_name)}")
        return make(route)

    route = routes.change(model, made, **why)
    assert route is not None  # noqa: S101  `made` never takes it away
    return route


def split(champion: str, challenger: str, share: float) -> dict[str, float]:
    return {champion: 1 - share, challenger: share}


def decide(route: Route, action: Move) -> Route:
    """The route after a decision of the guard or a person. InputError when no rollout is under way."""
    canary = route.canary
    if canary is None or canary.state not in ("going", "held"):
        raise InputError(f"model {route.model!r}: no rollout is under way")

    def at(share: float, **changes: Any) -> Route:
        written = {**canary.model_dump(mode="json"), **changes}
        return route.weighing(split(canary.champion, canary.challenger, share), canary=written)

    if action == "roll_back":
        return at(0.0, state="rolled_back")
    if action == "hold":
        return at(canary.share, state="held")
    if action == "go_on":
        return at(canary.share, state="going")
    if action == "promote" or canary.step + 1 == len(canary.steps) or canary.steps[canary.step + 1] == 1:
        return at(1.0, state="promoted", step=len(canary.steps) - 1)
    return at(canary.steps[canary.step + 1], step=canary.step + 1)
