"""Where a version's files come from, and how they get into LAB_HOME/registry: whole, once, and known by their content.

    FOLDER                a folder of this machine
    run:RUN_ID/PATH       what a run left
    hf:ORGANISATION/NAME  a language model of the Hugging Face hub
    s3://BUCKET/PREFIX    an S3 bucket; endpoint, region and credentials as boto3 finds them (AWS_ENDPOINT_URL …)

Files are gathered under a name of their own and moved into place when all are there and checked, so half a version is
never seen. An S3 fetch that was interrupted goes on: whole files stay, half a file is continued if the object is still
the same one (its ETag). What came is held against the ETag: the MD5 of an object that was sent in one piece, the MD5 of
its parts' MD5s for one that was sent in several. (One that S3 encrypts with a key of its owner's has no such ETag;
boto3 checks the checksum that S3 keeps, of what is fetched whole.) A fetch from the hub goes on likewise, by the hub's
own client. The place is named by the SHA-256 over all names and contents, so equal versions are kept once.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import FetchError, InputError
from lab.home import home, locked
from lab.run.folder import RunFolder
from lab.serve import llama_weights

CHUNK = 2**20
ALLOWED = "allowed: a folder, run:RUN_ID/PATH, hf:ORGANISATION/NAME or s3://BUCKET/PREFIX"
ETAGS = ".etags.json"
Progress = Callable[[str, int, int], None]
"""(file, bytes of it, of how many)."""


@dataclass(frozen=True)
class Held:
    """Files of a version under LAB_HOME/registry. `sha256` is over names and contents of all of them."""

    path: Path
    sha256: str
    size_bytes: int


def bring(source: str, progress: Progress = lambda file, done, of: None) -> Held:
    """The files of `source`, fetched if they are not here yet. InputError for a source that is none, FetchError when it
    cannot be had whole."""
    shelf = home() / "registry"
    shelf.mkdir(exist_ok=True)
    with locked(shelf / ".lock"):
        if source.startswith("s3://"):
            bucket, prefix = _bucket(source)
            partial = shelf / f".partial-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
            partial.mkdir(exist_ok=True)  # left by an earlier try, or new
            try:
                _from_s3(bucket, prefix, partial, progress)
            except FetchError:
                with suppress(OSError):
                    partial.rmdir()  # unless something is in it, for the next try
                raise
        else:
            given = _folder(source)
            partial = shelf / ".partial-copy"
            shutil.rmtree(partial, ignore_errors=True)
            _copy(given, partial)
        return _kept(partial, shelf)


def digest(folder: Path) -> tuple[str, int]:
    """(SHA-256 over names and contents, bytes) of the files below a folder."""
    whole, size = hashlib.sha256(), 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        own = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(CHUNK):
                own.update(part)
                size += len(part)
        whole.update(f"{path.relative_to(folder).as_posix()}\0{own.hexdigest()}\n".encode())
    return whole.hexdigest(), size


def check(held: Held) -> None:
    """FetchError when the files are not those that were registered."""
    found, _ = digest(held.path) if held.path.is_dir() else ("", 0)
    if found != held.sha256:
        raise FetchError(f"{held.path}: not the files that were registered; register the version anew")


def _kept(partial: Path, shelf: Path) -> Held:
    (partial / ETAGS).unlink(missing_ok=True)
    sha256, size = digest(partial)
    if not size:
        shutil.rmtree(partial, ignore_errors=True)
        raise FetchError("the source holds no files")
    place = shelf / sha256
    if place.is_dir():
        shutil.rmtree(partial)
    else:
        partial.rename(place)
    return Held(place, sha256, size)


def _folder(source: str) -> Path:
    if source.startswith("hf:"):
        return llama_weights.prepare(source.removeprefix("hf:"))
    if source.startswith("run:"):
        run_id, _, inside = source.removeprefix("run:").partition("/")
        root = RunFolder.open(run_id).path.resolve()
        place = (root / inside).resolve()
        if not place.is_relative_to(root) or not place.is_dir():
            raise InputError(f"source {source!r}: no such folder in that run")
        return place
    place = Path(source).expanduser()
    if not place.is_dir():
        raise InputError(f"source {source!r}: no such folder; {ALLOWED}")
    return place


def _copy(given: Path, partial: Path) -> None:
    """InputError for a file that cannot be read (no right to, a link to nowhere, no room for it); nothing stays."""
    try:
        shutil.copytree(given, partial)
    except (shutil.Error, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, shutil.Error):  # of one file after the other: (from, to, why)
            file, _, why = error.args[0][0]
            raise InputError(f"source {str(given)!r}: {file}: {why}; allowed: files that can be read") from None
        raise InputError(f"source {str(given)!r}: {error.filename}: {error.strerror}; needs to be read") from None


# --- S3 ---------------------------------------------------------------------------------------------------------------


def _bucket(source: str) -> tuple[str, str]:
    """(bucket, prefix)."""
    found = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", source)
    if found is None:
        raise InputError(f"source {source!r}: {ALLOWED}")
    return found[1], (found[2] or "").rstrip("/")


def _from_s3(bucket: str, prefix: str, partial: Path, progress: Progress) -> None:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    source = f"s3://{bucket}/{prefix}"
    try:
        client = boto3.client("s3")
        objects = list(_objects(client, bucket, prefix))
        if not objects:
            raise FetchError(f"{source}: there is nothing under that name")
        names = {name for name, _, _ in objects}
        for stranger in [path for path in partial.rglob("*") if path.is_file() and path.name != ETAGS]:
            if stranger.relative_to(partial).as_posix() not in names:
                stranger.unlink()  # of an earlier state of the bucket
        for name, size, etag in objects:
            _object(client, bucket, f"{prefix}/{name}" if prefix else name, partial, name, size, etag, progress)
    except (BotoCoreError, ClientError) as error:
        raise FetchError(f"{source}: {' '.join(str(error).split())[:300]}; try again, it goes on") from None


def _objects(client: Any, bucket: str, prefix: str) -> Iterator[tuple[str, int, str]]:
    """(name below the prefix, size, ETag) of each object. InputError for names that would lie elsewhere."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
    for page in pages:
        for entry in page.get("Contents", []):
            name = str(entry["Key"])[len(prefix) + 1 if prefix else 0 :]
            if not name or name.endswith("/"):
                continue
            if name.startswith("/") or ".." in Path(name).parts or Path(name).name == ETAGS:
                raise InputError(f"s3://{bucket}/{entry['Key']}: not a name that can be kept")
            yield name, int(entry["Size"]), str(entry["ETag"])


def _object(
    client: Any, bucket: str, key: str, partial: Path, name: str, size: int, etag: str, progress: Progress
) -> None:
    """Fetch one object, or the rest of it."""
    path, book = partial / name, partial / ETAGS
    etags: dict[str, str] = {}
    with suppress(OSError, ValueError):
        etags = json.loads(book.read_text())
    have = path.stat().st_size if path.is_file() and etags.get(name) == etag else 0
    if have == size and path.is_file() and etags.get(name) == etag:
        return
    if have > size:
        have = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    book.write_text(json.dumps({**etags, name: etag}))
    ranged = {"Range": f"bytes={have}-"} if have else {}
    answer = client.get_object(Bucket=bucket, Key=key, IfMatch=etag, **ranged)
    with path.open("ab" if have else "wb") as file:
        for part in answer["Body"].iter_chunks(CHUNK):
            file.write(part)
            have += len(part)
            progress(name, have, size)
    if have != size:
        raise FetchError(f"s3://{bucket}/{key}: {have} of {size} bytes came; try again, it goes on")
    own_key = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer
    if own_key or (parts := _parts(client, bucket, key, size, etag)) is None:
        return  # its ETag is no MD5
    if _etag(path, parts) != etag.strip('"'):
        path.unlink()
        raise FetchError(f"s3://{bucket}/{key}: the bytes are not those of the bucket (MD5); try again")


def _parts(client: Any, bucket: str, key: str, size: int, etag: str) -> list[int] | None:
    """The bytes of each piece that an object was sent in, [] for one that was sent whole; None where the store does not
    say, or the ETag is of another kind."""
    found = re.fullmatch(r'"[0-9a-f]{32}(?:-(\d+))?"', etag)
    if found is None:
        return None
    if found[1] is None:
        return []

    def sent(number: int) -> int:
        return int(client.head_object(Bucket=bucket, Key=key, PartNumber=number)["ContentLength"])

    count, first = int(found[1]), sent(1)
    if 0 < size - first * (count - 1) <= first:  # all of one size but the last, as every client sends them
        return [first] * (count - 1) + [size - first * (count - 1)]
    sizes = [first, *(sent(number) for number in range(2, count + 1))]
    return sizes if sum(sizes) == size else None


def _etag(path: Path, parts: list[int]) -> str:
    """As S3 makes it of an object that was sent in these parts, or whole."""
    with path.open("rb") as file:
        if not parts:
            return hashlib.file_digest(file, _md5).hexdigest()
        whole = _md5()
        for left in parts:
            part = _md5()
            while left and (data := file.read(min(left, CHUNK))):
                part.update(data)
                left -= len(data)
            whole.update(part.digest())
    return f"{whole.hexdigest()}-{len(parts)}"


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)
