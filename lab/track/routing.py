"""Which version of a model a request goes to: weights, stickiness, override, shadow traffic, replicas.

    Route      one served name: its versions with their weights, and how replicas of a version share the requests
    choose     the version for one request: the one it asks for, else by its key, else by lot
    Balancer   the replica of a version; one that keeps failing is left out for a while

A key sticks to a version by weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase
hit rates", 1998; weights: Schindelhauer and Schomaker, SPAA 2005): when weights change, keys move only to versions
whose weight grew. Knows no file, no HTTP and no Triton.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lab.errors import InputError
from lab.spec import Tolerance, Value, nearest, parse

LAB = "lab"
STEPS = (0.01, 0.05, 0.25, 1.0)
LEFT_OUT_AFTER, LEFT_OUT_S = 5, 10.0
"""Failures in a row, and how long a replica then gets nothing."""

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
    """Which replica of a version a request goes to. `outstanding` is kept by who sends.

    A replica that fails at once looks idle, and would get all requests. One that failed LEFT_OUT_AFTER times in a row
    is left out for LEFT_OUT_S, then tried again, and left out again by its first failure (Envoy's outlier detection);
    where all are, none is.
    """

    def __init__(self, dice: random.Random, clock: Callable[[], float] = time.monotonic) -> None:
        self._dice, self._clock = dice, clock
        self._turns: dict[tuple[str, str], int] = {}
        self._failed: dict[Replica, int] = {}
        self._until_s: dict[Replica, float] = {}
        self.outstanding: dict[Replica, int] = {}

    def ended(self, replica: Replica, *, well: bool) -> None:
        """How a request came out that the replica answered, or failed."""
        if well:
            self._failed.pop(replica, None)
            self._until_s.pop(replica, None)
            return
        self._failed[replica] = self._failed.get(replica, 0) + 1
        if self._failed[replica] >= LEFT_OUT_AFTER:
            self._until_s[replica] = self._clock() + LEFT_OUT_S

    def left_out(self, replica: Replica) -> bool:
        return self._until_s.get(replica, -math.inf) > self._clock()

    def pick(self, route: Route, version: Version) -> Replica:
        replicas = version.replicas
        if len(replicas) == 1:
            return replicas[0]
        if self._until_s:
            replicas = tuple(replica for replica in replicas if not self.left_out(replica)) or replicas
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


def to_one(model: str, url: str, name: str | None = None) -> Route:
    """A route with one version, "1": `name` (the same unless given) at `url`."""
    replica = {"url": url, "model": name or model}
    return parse(Route, {"model": model, "versions": [{"version": "1", "weight": 1.0, "replicas": [replica]}]})
