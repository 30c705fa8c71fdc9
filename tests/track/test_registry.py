"""The registry on MLflow's own sqlite store."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.errors import FetchError, InputError, RunError
from lab.gateway.serve import _name_champion
from lab.serve.repository import config_pbtxt
from lab.spec import ModelSpec, parse
from lab.track import registry as registries
from lab.track import rollout, sources
from lab.track.canary import Watch
from lab.track.deploy import spec_of
from lab.track.registry import Registry
from lab.track.routes import Routes, last_look
from lab.track.routing import Version, to_one
from tests.gateway.conftest import running, two_versions
from tests.load.fakes.streams import Chunk, Story, grpc_stream_server
from tests.waiting import until

DIGITS = ModelSpec(name="digits")


@pytest.fixture(scope="module")
def book(lab_home: Path) -> Registry:
    """One for all: to lay out a database takes MLflow two seconds. Each test has names of its own."""
    return Registry()


def test_version_comes_back_as_it_was_registered(book: Registry, files: Path) -> None:
    spec = ModelSpec(name="llm", precision="int8", weights="somewhere")
    one = book.register("talker", spec, str(files), run="20261130-000000-run", quality={"perplexity": 25.4})
    again = book.version("talker", "1")
    assert again == one and again.spec == spec and again.run == "20261130-000000-run"
    assert again.quality == {"perplexity": 25.4} and again.held.size_bytes == 1002
    assert (again.held.path / "inner" / "b.json").read_text() == "{}"
    deployed = spec_of(one)
    assert (deployed.name, deployed.weights, deployed.precision) == ("talker_v1", str(one.held.path), "int8")
    assert 'name: "talker_v1"' in config_pbtxt(deployed)


def test_equal_files_are_held_once_and_changed_ones_are_noticed(book: Registry, files: Path) -> None:
    first, second = (book.register("twins", DIGITS, str(files)) for _ in range(2))
    assert first.held == second.held and (first.version, second.version) == ("1", "2")
    (files / "a.bin").write_bytes(b"b" * 1000)
    third = book.register("twins", DIGITS, str(files))
    assert third.held.sha256 != first.held.sha256
    (third.held.path / "a.bin").write_bytes(b"c" * 1000)
    with pytest.raises(FetchError, match="not the files"):
        sources.check(third.held)
    sources.check(first.held)


def test_alias_stands_at_one_version_which_cannot_be_deleted(book: Registry, files: Path) -> None:
    for _ in range(2):
        book.register("named", DIGITS, str(files))
    book.alias("named", "champion", "1")
    book.alias("named", "champion", "2")
    assert [(one.version, one.aliases) for one in book.versions("named")] == [("2", ("champion",)), ("1", ())]
    assert book.version("named", "champion").version == "2"
    with pytest.raises(InputError, match="is champion"):
        book.delete("named", "champion")
    book.delete("named", "1")
    assert [one.version for one in book.versions("named")] == ["2"]
    for alias, version in (("champion", "7"), ("latest", "2"), ("v3", "2"), ("Champion", "2")):
        with pytest.raises(InputError):
            book.alias("named", alias, version)
    assert book.version("named", "champion").version == "2"


def test_of_two_who_promote_at_once_one_does(book: Registry, files: Path) -> None:
    for _ in range(3):
        book.register("raced", DIGITS, str(files))
    book.promote("raced", "1", instead_of=None)
    told: list[str] = []

    def promote(version: str) -> None:
        try:
            book.promote("raced", version, instead_of="1")
            told.append(version)
        except InputError as error:
            told.append(str(error))

    threads = [threading.Thread(target=promote, args=(version,)) for version in ("2", "3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [said for said in told if said in ("2", "3")]
    assert len(won) == 1 and sum("look again" in said for said in told) == 1
    assert [one.version for one in book.versions("raced") if "champion" in one.aliases] == won


def test_search_and_difference(book: Registry, files: Path) -> None:
    book.register("compared", DIGITS, str(files), quality={"accuracy": 0.97})
    book.register("compared", ModelSpec(name="digits", precision="int8"), str(files), quality={"accuracy": 0.95})
    assert [one.version for one in book.versions("compared", "int8")] == ["2"]
    assert book.diff("compared", "1", "2") == [
        ("quality.accuracy", 0.97, 0.95),
        ("spec.precision", "fp32", "int8"),
    ]
    with pytest.raises(InputError, match="registered"):
        book.versions("nobody")


def test_canary_serves_while_the_registry_is_locked_for_longer_than_mlflow_waits(
    book: Registry, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that holds the database for 20 s is one that MLflow gives up on: that is how long it waits. Here it
    waits a hundredth of that, and is locked out until it has given up."""
    from mlflow.store.db import utils

    made = utils.sql.text
    waits: set[str] = set()

    def text(statement: str) -> Any:
        waits.update(re.findall(r"busy_timeout = (\d+)", statement))
        return made(statement.replace("busy_timeout = 20000", "busy_timeout = 200"))

    given_up = threading.Event()

    def sleep(seconds: float) -> None:
        given_up.set()
        time.sleep(0.01)

    monkeypatch.setattr(utils, "sql", SimpleNamespace(text=text))
    monkeypatch.setattr(registries, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    for _ in range(2):
        book.register("served", DIGITS, str(files))
    book.alias("served", "champion", "1")
    versions: list[str] = []
    with (
        grpc_stream_server(Story([Chunk(0, 1, "word")])) as fake,
        running(tmp_path / "gateway", two_versions(f"grpc://{fake.url}", "served", share=0.0)) as run,
        closing(sqlite3.connect(book.uri.removeprefix("sqlite:///"), isolation_level=None)) as holder,
    ):
        rollout.begin(run.routes, "served", "2", steps=(0.5, 1.0))
        watch = Watch(run.routes)
        holder.execute("BEGIN EXCLUSIVE")
        mover = threading.Thread(target=book.promote, args=("served", "2"), kwargs={"instead_of": "1"})
        mover.start()

        def serve() -> str:
            status, _, headers = run.ask("/v1/completions", {"model": "served", "prompt": "x"})
            assert status == 200
            versions.append(headers["x-model-version"])
            watch.tick(run.gateway.take_ended())
            return versions[-1]

        until(lambda: serve() and len(versions) > 20 and given_up.is_set(), "MLflow to give up")
        assert set(versions) == {"1", "2"} and (look := last_look(run.routes, "served")) and look["touched"] > 0
        rollout.move(run.routes, "served", "promote")
        until(lambda: serve() == "2" and set(versions[-10:]) == {"2"}, "the traffic to move")
        assert mover.is_alive()  # nobody waited for it
        holder.execute("ROLLBACK")
        mover.join(60)
    assert book.version("served", "champion").version == "2"
    assert waits == {"20000"}


def test_locked_for_too_long_is_told_in_one_line(book: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def locked() -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ValueError("(sqlite3.OperationalError) database is locked")
        return "done"

    assert book._ask(locked) == "done" and calls == 3
    monkeypatch.setattr(registries, "PATIENCE_S", 0.0)
    calls = -10
    with pytest.raises(RunError, match="locked by another process"):
        book._ask(locked)


@pytest.mark.processes
def test_promotion_moves_the_traffic_at_once_and_the_alias_when_the_database_is_free(
    book: Registry, files: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        book.register("promoted", DIGITS, str(files))
    book.promote("promoted", "1", instead_of=None)
    routes = Routes(tmp_path / "gateway")
    routes.change("promoted", lambda _: to_one("promoted", "lab"))
    two = {"version": "2", "weight": 0, "replicas": [{"url": "lab", "model": "promoted_v2"}]}
    rollout.add_version(routes, "promoted", parse(Version, two))
    rollout.begin(routes, "promoted", "2", steps=(0.5, 1.0))
    watch = Watch(routes, _name_champion)
    watch.tick({})
    with closing(sqlite3.connect(book.uri.removeprefix("sqlite:///"), isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        rollout.move(routes, "promoted", "promote")
        watch.tick({})  # asks the registry in a process of its own, and waits for nothing
        assert routes.by_name["promoted"].version("2").weight == 1
        assert registries.names_at_hand(book.uri) is None  # it is locked all the while
        holder.execute("ROLLBACK")
    until(lambda: book.version("promoted", "champion").version == "2")


def test_names_are_known_without_mlflow(book: Registry, files: Path, tmp_path: Path) -> None:
    book.register("glanced", DIGITS, str(files))
    names = registries.names_at_hand(book.uri)
    assert names is not None and "glanced" in names
    assert registries.names_at_hand(f"sqlite:///{tmp_path}/none.db") == []
    assert registries.names_at_hand("http://127.0.0.1:9") is None
    (tmp_path / "other.db").write_bytes(b"")
    assert registries.names_at_hand(f"sqlite:///{tmp_path}/other.db") is None
    with pytest.raises(InputError, match='did you mean "glanced"'):
        registries.known_name("glances", names)


def test_lineage_is_json(book: Registry, files: Path) -> None:
    one = book.register("told", DIGITS, str(files))
    assert until(lambda: json.loads(json.dumps(one.to_dict())))["held"]["size_bytes"] == 1002


def test_registry_of_more_names_than_mlflow_gives_at_a_time(book: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    class Page(list[Any]):
        token: str | None = None

    def search(page_token: str | None) -> Page:
        page = Page([SimpleNamespace(name="b" if page_token is None else "a")])
        page.token = "more" if page_token is None else None
        return page

    monkeypatch.setattr(book, "_client", SimpleNamespace(search_registered_models=search))
    assert book._names() == ["a", "b"]


def test_family_without_files_is_not_registered(book: Registry, files: Path) -> None:
    with pytest.raises(InputError, match="family null reads no files"):
        book.register("empty", ModelSpec(name="null"), str(files))
