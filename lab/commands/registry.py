"""`lab registry`: versions of what is served: list, register, name, compare, delete, deploy."""

from __future__ import annotations

import argparse
from typing import Any

from lab.commands.terminal import add_json, print_json, say
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    sub = actions.add_parser("list", help="versions, newest first")
    sub.add_argument("name", nargs="?")
    sub.add_argument("--search", default="", metavar="TEXT")
    add_json(sub)
    sub = actions.add_parser("register", help="a new version, its files fetched and kept")
    sub.add_argument("name")
    sub.add_argument("--source", required=True, help="a folder, run:RUN/PATH, hf:ORG/NAME or s3://BUCKET/PREFIX")
    sub.add_argument("--model", required=True, metavar="FAMILY", help="what serves it: digits, embedder, llm …")
    sub.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="settings")
    sub.add_argument("--run", help="the lab's run that it comes from")
    sub.add_argument(
        "--quality", action="append", default=[], metavar="NAME=NUMBER", help="what `lab quality` found unless given"
    )
    sub.add_argument("--evaluate", action="store_true", help="have it found now, up to a minute")
    add_json(sub)
    sub = actions.add_parser("alias", help="put an alias at a version; without one, take it away")
    sub.add_argument("name")
    sub.add_argument("alias")
    sub.add_argument("version", nargs="?")
    sub = actions.add_parser(
        "promote", help="make a version the champion, if the champion is still the one that is named"
    )
    sub.add_argument("name")
    sub.add_argument("version")
    sub.add_argument("--instead-of", metavar="VERSION", help="the champion as you know it; none unless given")
    sub = actions.add_parser("diff", help="what differs between two versions")
    sub.add_argument("name")
    sub.add_argument("a")
    sub.add_argument("b")
    add_json(sub)
    sub = actions.add_parser("delete", help="a version that has no alias")
    sub.add_argument("name")
    sub.add_argument("version")
    sub = actions.add_parser("deploy", help="into the lab's Triton, beside the others, and into the route of its name")
    sub.add_argument("name")
    sub.add_argument("version", metavar="VERSION|ALIAS")


def run(options: argparse.Namespace) -> int:
    from lab.track.registry import Registry, known_name, names_at_hand

    if options.action != "register" and (names := names_at_hand()) is not None:
        if options.name is not None:
            known_name(options.name, names)
        elif not names:
            print_json({"versions": []}) if options.json else None
            return 0
    say("asking MLflow")  # which takes seconds to import, and up to a minute while another process holds its database
    ACTIONS[options.action](Registry(), options)
    return 0


def _list(registry: Any, options: argparse.Namespace) -> None:
    from lab.measure.words import format_bytes

    found = registry.versions(options.name, options.search)
    if options.json:
        print_json({"versions": [one.to_dict() for one in found]})
        return
    for one in found:
        named = f" [{', '.join(one.aliases)}]" if one.aliases else ""
        quality = ", ".join(f"{name} {value:g}" for name, value in one.quality.items())
        parts = [one.spec.family, one.spec.precision, format_bytes(one.held.size_bytes), one.source, quality]
        print(f"{one.name} {one.version}{named}: {' · '.join(part for part in parts if part)}")


def _register(registry: Any, options: argparse.Namespace) -> None:
    from lab.run.lock import MeasureLock
    from lab.run.turn import once
    from lab.spec import ModelSpec, parse, parse_setting, set_path
    from lab.track import evaluated

    spec = parse(ModelSpec, {"name": options.model})
    for setting in options.settings:
        spec = set_path(spec, *parse_setting(setting))
    given = dict(_number(given) for given in options.quality) or None
    if options.evaluate and given is not None:
        raise InputError("--evaluate with --quality; allowed: one of them")
    words = (options.name, spec, options.source)
    if options.evaluate:
        with MeasureLock("quality") as lock:  # it takes all processors, and a run would measure that
            lock.acquire(once(say))
            made = registry.register(*words, run=options.run, judge=evaluated.evaluate)
    else:
        made = registry.register(*words, run=options.run, quality=given, judge=evaluated.known)
    if options.json:
        print_json(made.to_dict())
    else:
        said = ", ".join(f"{name} {value:g}" for name, value in made.quality.items())
        print(f"{made.name} {made.version}: {made.held.path}{f' ({said})' if said else ''}")


def _number(given: str) -> tuple[str, float]:
    name, _, value = given.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise InputError(f"--quality {given!r}: allowed: NAME=NUMBER, such as accuracy=0.97") from None


def _alias(registry: Any, options: argparse.Namespace) -> None:
    registry.alias(options.name, options.alias, options.version)


def _promote(registry: Any, options: argparse.Namespace) -> None:
    registry.promote(options.name, options.version, instead_of=options.instead_of)


def _diff(registry: Any, options: argparse.Namespace) -> None:
    found = registry.diff(options.name, options.a, options.b)
    if options.json:
        print_json({"differences": [{"what": what, "a": a, "b": b} for what, a, b in found]})
        return
    for what, a, b in found or [("nothing differs", "", "")]:
        print(f"{what}: {a} → {b}" if a != b else what)


def _delete(registry: Any, options: argparse.Namespace) -> None:
    registry.delete(options.name, options.version)


def _deploy(registry: Any, options: argparse.Namespace) -> None:
    from lab.errors import ServerError
    from lab.gateway.keeping import attached
    from lab.track.deploy import deploy
    from lab.track.rollout import add_version
    from lab.track.routes import Routes

    server = attached()
    if server is None:
        raise ServerError("no Triton of the lab runs; start it with `lab gateway`, `lab serve` or `lab up`")
    with server:
        one = registry.version(options.name, options.version)
        deployed = deploy(server, one)
    routes = Routes()
    known = routes.by_name[one.name].versions if one.name in routes.by_name else ()
    before = [replica.model for v in known if v.version == deployed.version.version for replica in v.replicas]
    add_version(routes, one.name, deployed.version)
    ready = f"{deployed.spec.name} is ready after {deployed.load_s:.1f} s"
    instead = f", in place of {', '.join(before)}" if before and before != [deployed.spec.name] else ""
    say(f"{ready}, as version {one.version} of the route {one.name}{instead}")


ACTIONS = {
    "list": _list,
    "register": _register,
    "alias": _alias,
    "promote": _promote,
    "diff": _diff,
    "delete": _delete,
    "deploy": _deploy,
}
