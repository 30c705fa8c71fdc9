"""`lab rollout`: where the traffic of a served name goes, and who moves it."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from lab.commands.terminal import add_json, print_json
from lab.errors import InputError

MOVES = {"advance": "advance", "promote": "promote", "rollback": "roll_back", "hold": "hold", "go-on": "go_on"}

BALANCES = ("round_robin", "least_outstanding", "power_of_two")
TOLD = 3
"""Decisions that `status` tells."""


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    sub = actions.add_parser("status", help="routes, the guard's last look, the last decisions")
    sub.add_argument("model", nargs="?")
    add_json(sub)
    sub = actions.add_parser("begin", help="a canary of a version beside the one that has all of the traffic")
    sub.add_argument("model")
    sub.add_argument("version")
    sub.add_argument("--steps", default="0.01,0.05,0.25,1", metavar="SHARE,…")
    for name, default in (("errors", 0.005), ("latency", 0.10), ("quality", 0.02)):
        sub.add_argument(f"--tolerate-{name}", type=float, default=default, metavar="FRACTION")
    sub.add_argument(
        "--needs-quality", action="store_true", help="no promotion before scores have shown that it is fine"
    )
    for name in MOVES:
        sub = actions.add_parser(name, help=f"{name}, by hand; what the guard last said is written down with it")
        sub.add_argument("model")
    sub = actions.add_parser("switch", help="all of the traffic to a version, at once; the others stay warm")
    sub.add_argument("model")
    sub.add_argument("version")
    for name in ("begin", "switch"):
        actions.choices[name].add_argument("--anyway", action="store_true", help="even if it is not ready")
    sub = actions.add_parser("weights", help="shares by version, such as 1=0.9 2=0.1; they make 1")
    sub.add_argument("model")
    sub.add_argument("shares", nargs="+", metavar="VERSION=SHARE")
    sub = actions.add_parser("mirror", help="copies of the requests go to a version too; without one, no more")
    sub.add_argument("model")
    sub.add_argument("version", nargs="?")
    sub.add_argument("--fraction", type=float, default=1.0)
    sub = actions.add_parser("replicas", help="where a version is served: all of its places; a new one gets no traffic")
    sub.add_argument("model")
    sub.add_argument("version")
    sub.add_argument("places", nargs="+", metavar="URL[=NAME]", help="lab, grpc:// or openai+http://HOST:PORT")
    sub.add_argument("--balance", choices=BALANCES, help="how they share, of all versions; kept unless given")
    sub.add_argument("--new", action="store_true", help="the model has no route yet: this version gets all of it")
    sub = actions.add_parser("retire", help="a version without traffic out of the route, and out of the lab's Triton")
    sub.add_argument("model")
    sub.add_argument("version")
    for name, sub in actions.choices.items():
        if name != "status":
            sub.add_argument("--by", default=you(), metavar="NAME", help="who decides, for the audit log")


def you() -> str:
    """Who this process belongs to, by name where it has one."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have none
        return "person"


def run(options: argparse.Namespace) -> int:
    from lab.track import readiness, rollout
    from lab.track.routes import Routes

    routes = Routes()
    if options.action == "status":
        _status(routes, options)
        return 0
    if options.action in ("begin", "switch") and not options.anyway:
        readiness.check(routes, options.model, options.version)
    if options.action == "begin":
        _begin(routes, options)
    elif options.action == "switch":
        rollout.switch(routes, options.model, options.version, by=options.by)
    elif options.action == "weights":
        rollout.weigh(routes, options.model, dict(_share(given) for given in options.shares), by=options.by)
    elif options.action == "mirror":
        rollout.shadow(routes, options.model, options.version, options.fraction, by=options.by)
    elif options.action == "replicas":
        placed, balance, by = _placed(options), options.balance, options.by
        rollout.add_version(routes, options.model, placed, balance=balance, new_route=options.new, by=by)
    elif options.action == "retire":
        _unload(routes, rollout.retire(routes, options.model, options.version, by=options.by))
    else:
        action: Any = MOVES[options.action]
        rollout.move(routes, options.model, action, by=options.by)
    behind = "" if readiness.in_force(routes, options.model) else f"; not taken yet by {routes.gateway()}"
    print(f"{_line(routes, options.model)}{behind}")
    return 0


def _begin(routes: Any, options: argparse.Namespace) -> None:
    from lab.spec import Tolerance, parse
    from lab.track.rollout import begin

    try:
        steps = [float(step) for step in options.steps.split(",")]
    except ValueError:
        raise InputError(
            f"--steps {options.steps!r}: allowed: shares with commas between, such as 0.05,0.25,1"
        ) from None
    tolerance = {
        "errors": options.tolerate_errors,
        "latency": options.tolerate_latency,
        "quality": options.tolerate_quality,
        "needs_quality": options.needs_quality,
    }
    tolerated = parse(Tolerance, tolerance)
    begin(routes, options.model, options.version, steps=steps, tolerance=tolerated, by=options.by)


def _placed(options: argparse.Namespace) -> Any:
    """The version that was told of, without weight."""
    from lab.spec import parse
    from lab.track.routing import Version

    places = [place.partition("=") for place in options.places]
    replicas = [{"url": url, "model": name or options.model} for url, _, name in places]
    return parse(Version, {"version": options.version, "weight": 0.0, "replicas": replicas})


def _unload(routes: Any, gone: Any) -> None:
    """What no route names any more, out of the lab's Triton, which lets answers under way come to their end."""
    from lab.gateway.keeping import attached
    from lab.track.routing import LAB

    named = {r.model for route in routes.by_name.values() for v in route.versions for r in v.replicas if r.url == LAB}
    idle = {replica.model for replica in gone.replicas if replica.url == LAB} - named
    server = attached() if idle else None
    if server is not None:
        with server:
            for model in sorted(idle):
                server.unload(model)


def _share(given: str) -> tuple[str, float]:
    version, _, share = given.partition("=")
    try:
        return version, float(share)
    except ValueError:
        raise InputError(f"{given!r}: allowed: VERSION=SHARE, such as 2=0.1") from None


def _status(routes: Any, options: argparse.Namespace) -> None:
    from lab.track.routes import last_look

    names = [options.model] if options.model else list(routes.by_name)
    if options.model and options.model not in routes.by_name:
        raise InputError(f"model {options.model!r} has no route")
    if options.json:
        print_json(
            {
                "routes": {name: routes.by_name[name].model_dump(mode="json") for name in names},
                "guard": {name: last_look(routes, name) for name in names},
                "audit": routes.audit(options.model)[-50:],
            }
        )
        return
    if names and routes.gateway() is None:
        print("No gateway runs: nobody is served by these routes.")
    for name in names:
        print(_line(routes, name))
        canary = routes.by_name[name].canary
        if canary is not None:
            print(f"  {canary.state} at {100 * canary.share:g} %, {canary.champion} beside {canary.challenger}")
            look = last_look(routes, name)
            if look is not None and look["begun"] == canary.begun and canary.state in ("going", "held"):
                print(f"  {look['verdict']['text']} ({look['touched']} requests so far)")
        for line in routes.audit(name)[-TOLD:]:
            said = (line.get("evidence") or {}).get("text")
            print(f"  {line['utc'][:19]} {line.get('action')} by {line.get('by')}{f': {said}' if said else ''}")


def _line(routes: Any, model: str) -> str:
    route = routes.by_name[model]
    shares = ", ".join(f"{version.version} {100 * version.weight:g} %" for version in route.versions)
    shadow = f"; {route.mirror.version} shadows it" if route.mirror else ""
    return f"{model}: {shares}{shadow}"
