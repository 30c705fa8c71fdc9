"""The registry on MLflow's own sqlite store, and its sources, S3 by moto's server on loopback."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lab.errors import FetchError, FolderError, InputError, RunError
from lab.gateway.serve import _name_champion
from lab.serve.repository import config_pbtxt
from lab.spec import ModelSpec, parse
from lab.track import registry as registries
from lab.track import rollout, sources
from lab.track.canary import Watch
from lab.track.deploy import spec_of
from lab.track.registry import Registry
from lab.track.routes import Routes
from lab.track.routing import Version, to_one
from tests.waiting import until

DIGITS = ModelSpec(name="digits")


@pytest.fixture(scope="module")
def book(lab_home: Path) -> Registry:
    """One for all: to lay out a database takes MLflow two seconds. Each test has names of its own."""
    return Registry()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "inner" / "b.json").write_text("{}")
    return folder


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


def test_locked_database_is_asked_again(book: Registry, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own patience is 20 s; what comes after it is told here by a stand-in for its client."""
    book.register("patient", DIGITS, str(files))
    path = book.uri.removeprefix("sqlite:///")
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(1.0, lambda: holder.execute("ROLLBACK"))
    began = time.monotonic()
    timer.start()
    book.alias("patient", "champion", "1")
    assert time.monotonic() - began >= 1.0
    timer.join()
    holder.close()

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


@pytest.mark.parametrize("source", ["/no/such/folder", "run:20261130-000000-none/x", "s3:/x", "s3://B/x", "ftp://x"])
def test_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises((InputError, FolderError), match=r"source|run"):
        sources.bring(source)


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A bucket "models" in moto's server."""
    boto3 = pytest.importorskip("boto3")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    patch = pytest.MonkeyPatch()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        patch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    yield client
    patch.undo()
    server.stop()


def test_s3_is_fetched_whole_and_named_by_its_content(bucket: Any, lab_home: Path, files: Path) -> None:
    for path in files.rglob("*.*"):
        if path.is_file():
            bucket.upload_file(str(path), "models", f"one/{path.relative_to(files)}")
    held = sources.bring("s3://models/one/")
    assert (held.sha256, held.size_bytes) == sources.digest(files)
    assert not list((lab_home / "registry").glob(".partial*"))
    with pytest.raises(FetchError, match="nothing under that name"):
        sources.bring("s3://models/two")
    with pytest.raises(FetchError, match="NoSuchBucket"):
        sources.bring("s3://nobody/x")


def test_s3_goes_on_where_it_was_stopped(bucket: Any, lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 4 * 1024
    bucket.put_object(Bucket="models", Key="big/a.bin", Body=content)
    bucket.put_object(Bucket="models", Key="big/z.bin", Body=b"end")
    monkeypatch.setattr(sources, "CHUNK", 256 * 1024)
    seen: list[int] = []

    def stop(name: str, done: int, of: int) -> None:
        seen.append(done)
        if done >= of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.bring("s3://models/big", stop)
    (partial,) = (lab_home / "registry").glob(".partial-*")
    half = (partial / "a.bin").stat().st_size
    assert 0 < half < len(content)
    again: list[tuple[str, int]] = []
    held = sources.bring("s3://models/big", lambda name, done, of: again.append((name, done)))
    assert again[0] == ("a.bin", half + 256 * 1024)  # from there on, not from the start
    assert (held.path / "a.bin").read_bytes() == content and (held.path / "z.bin").read_bytes() == b"end"


def test_s3_object_that_changed_meanwhile_is_fetched_anew(bucket: Any, lab_home: Path) -> None:
    bucket.put_object(Bucket="models", Key="new/a.bin", Body=b"old" * 1000)

    def stop(name: str, done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.bring("s3://models/new", stop)
    bucket.put_object(Bucket="models", Key="new/a.bin", Body=b"new" * 2000)
    held = sources.bring("s3://models/new")
    assert (held.path / "a.bin").read_bytes() == b"new" * 2000


def test_lineage_is_json(book: Registry, files: Path) -> None:
    one = book.register("told", DIGITS, str(files))
    assert until(lambda: json.loads(json.dumps(one.to_dict())))["held"]["size_bytes"] == 1002
