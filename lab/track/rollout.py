"""Who moves the traffic: a canary's steps, the switch of a blue/green rollout, weights and shadow traffic by hand.

Each move is one step of the routes (lab/track/routes.py), made whole or refused whole, with its line in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from lab.errors import InputError
from lab.spec import Tolerance, nearest, parse
from lab.track.routes import Routes, last_look
from lab.track.routing import STEPS, Balance, Canary, Route, Version

Move = Literal["advance", "promote", "roll_back", "hold", "go_on"]


def add_version(
    routes: Routes,
    model: str,
    version: Version,
    *,
    balance: Balance | None = None,
    new_route: bool = True,
    by: str = "person",
) -> Route | None:
    """Put a version into the route, without weight; into a new route with all of it, if there may be one. One of that
    name is replaced where it stands, which changes nothing of who gets what. `balance`: how replicas share, of all
    versions; as it is unless given."""

    def added(route: Route | None) -> Route:
        if route is None:
            if not new_route:
                raise InputError(f"model {model!r} has no route{nearest(model, routes.by_name)}")
            whole = version.model_copy(update={"weight": 1.0})
            return parse(Route, {"model": model, "versions": [whole.model_dump(mode="json")], **shared})
        if version.version not in [known.version for known in route.versions]:
            last = version.model_copy(update={"weight": 0.0})
            return route.model_copy(update={"versions": (*route.versions, last), **shared})
        kept = [
            version.model_copy(update={"weight": known.weight}) if known.version == version.version else known
            for known in route.versions
        ]
        return route.model_copy(update={"versions": tuple(kept), **shared})

    shared = {} if balance is None else {"balance": balance}
    return routes.change(model, added, action="deploy", version=version.version, by=by)


def retire(routes: Routes, model: str, version: str, *, by: str = "person") -> Version:
    """Take a version out of the route that nobody is sent to any more; what it was. InputError for one that has
    traffic, real or copied, or a part in a rollout under way."""

    def without(route: Route) -> Route:
        gone, canary = route.version(version), route.canary
        parts = {canary.champion, canary.challenger} if canary is not None else set()
        if gone.weight:
            raise InputError(
                f"version {version} of {model} has {100 * gone.weight:g} % of the traffic; move that first"
            )
        if canary is not None and canary.state in ("going", "held") and version in parts:
            raise InputError(f"model {model!r}: a rollout of version {version} is under way; end it first")
        if route.mirror is not None and route.mirror.version == version:
            raise InputError(f"version {version} of {model} shadows it; `lab rollout mirror {model}` ends that")
        kept = tuple(known for known in route.versions if known.version != version)
        return route.model_copy(update={"versions": kept, "canary": None if version in parts else canary})

    routes.refresh()
    gone = routes.by_name[model].version(version) if model in routes.by_name else None
    _changed(routes, model, without, action="retire", version=version, by=by)
    assert gone is not None  # noqa: S101  else it was refused
    return gone


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
    """A decision about the canary under way; what the guard had last said of it is written down with it."""
    routes.refresh()
    route, look, why = routes.by_name.get(model), last_look(routes, model), {}
    if look is not None and route is not None and route.canary is not None and look["begun"] == route.canary.begun:
        why = {"touched": look["touched"], "evidence": look["verdict"]}
    return _changed(routes, model, lambda route: decide(route, action), action=action, by=by, **why)


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


def split(champion: str, challenger: str, share: float) -> dict[str, float]:
    return {champion: 1 - share, challenger: share}
