"""Where versions come from; S3 by moto's server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.errors import FetchError, FolderError, InputError
from lab.track import sources


@pytest.mark.parametrize("source", ["/no/such/folder", "run:20261130-000000-none/x", "s3:/x", "s3://B/x", "ftp://x"])
def test_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises((InputError, FolderError), match=r"source|run"):
        sources.bring(source)


def test_a_folder_that_cannot_be_read_whole_leaves_nothing(lab_home: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "weights").write_text("some")
    (tmp_path / "given" / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"given/link: .*No such file") as error:
        sources.bring(str(tmp_path / "given"))
    assert "\n" not in str(error.value)
    assert not list((lab_home / "registry").glob(".partial*"))


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


def test_s3_object_that_was_sent_in_parts_is_checked_too(bucket: Any, lab_home: Path, tmp_path: Path) -> None:
    """As every client sends weights; moto's own ETag is the independent one."""
    from boto3.s3.transfer import TransferConfig

    content, part = bytes(range(251)) * 24_000, 5 * 2**20  # a whole part and a bit
    (tmp_path / "a.bin").write_bytes(content)
    in_parts = TransferConfig(multipart_threshold=part, multipart_chunksize=part)
    bucket.upload_file(str(tmp_path / "a.bin"), "models", "parts/a.bin", Config=in_parts)
    etag = bucket.head_object(Bucket="models", Key="parts/a.bin")["ETag"]
    assert etag.endswith('-2"')

    def spoil(name: str, done: int, of: int) -> None:
        (file,) = (lab_home / "registry").glob(".partial-*/a.bin")
        with file.open("r+b") as half:
            half.write(b"x")

    with pytest.raises(FetchError, match="not those of the bucket"):
        sources.bring("s3://models/parts", spoil)
    assert (sources.bring("s3://models/parts").path / "a.bin").read_bytes() == content
    assert sources._etag(tmp_path / "a.bin", [part, len(content) - part]) == etag.strip('"')
    assert sources._parts(bucket, "models", "parts/a.bin", len(content), '"of another kind"') is None
