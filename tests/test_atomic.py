"""A reader's view of a file while, and after, somebody writes it."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab import atomic

KILLED = """
import os, signal, sys
from pathlib import Path
from lab import atomic
with atomic.replacing(Path(sys.argv[1])) as new, new.open("w") as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_there_stays_until_the_new_content_is_whole(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    with atomic.replacing(path) as new:
        assert not new.exists()
        with new.open("w") as file:
            file.write("half")
            file.flush()
            assert path.read_text() == "old"
            file.write(", and the rest")
        assert path.read_text() == "old"
    assert path.read_text() == "half, and the rest"
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]


def test_a_writer_that_is_killed_leaves_the_old_file_and_what_sweep_takes(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED, path], cwd=Path(__file__).parent.parent, check=False)
    assert ended.returncode == -9
    assert path.read_text() == "old"
    (left,) = (found for found in tmp_path.iterdir() if found != path)
    assert left.read_text() == "half"
    (tmp_path / ".state.json.lock").touch()
    atomic.sweep(tmp_path)
    assert sorted(found.name for found in tmp_path.iterdir()) == [".state.json.lock", "state.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.json"
    atomic.write(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic.replacing(path) as new:
        new.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_taken_is_the_file_systems_error(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        atomic.write(folder, "text")
    with pytest.raises(FileNotFoundError):
        atomic.write(tmp_path / "none" / "state.json", "text")
    assert list(tmp_path.iterdir()) == [folder]


def test_text_is_utf8_and_bytes_are_bytes(tmp_path):
    atomic.write(tmp_path / "text", "Größe: 2 µs\n")
    atomic.write(tmp_path / "bytes", b"\xff\x00\r\n")
    assert (tmp_path / "text").read_bytes() == b"Gr\xc3\xb6\xc3\x9fe: 2 \xc2\xb5s\n"
    assert (tmp_path / "bytes").read_bytes() == b"\xff\x00\r\n"


def test_a_file_keeps_its_permissions_and_a_new_one_gets_the_usual_ones(tmp_path):
    usual, path = tmp_path / "usual", tmp_path / "state.json"
    usual.touch()
    atomic.write(path, "1")
    assert _mode(path) == _mode(usual)
    path.chmod(0o440)
    atomic.write(path, "2")
    assert (_mode(path), path.read_text()) == (0o440, "2")


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    target, other, link = tmp_path / "target", tmp_path / "other", tmp_path / "link"
    target.write_text("target")
    target.chmod(0o600)
    link.symlink_to(target)
    with atomic.replacing(link) as new:
        new.symlink_to(other)
    assert link.readlink() == other
    atomic.write(link, "text")
    assert not link.is_symlink()
    assert (link.read_text(), target.read_text()) == ("text", "target")


def test_of_two_writers_one_is_read_whole(tmp_path):
    """As threads of one process, which a name by process alone would let write into one hidden file."""
    path = tmp_path / "state.json"
    contents = [letter * 200_000 for letter in "ab"]
    path.write_text(contents[0])
    failures: list[OSError] = []

    def again(content: str) -> None:
        try:
            for _ in range(50):
                atomic.write(path, content)
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=again, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in contents
    for writer in writers:
        writer.join()
    assert failures == []
    assert list(tmp_path.iterdir()) == [path]


def test_durable_means_the_content_is_on_disk_before_the_name_and_then_the_name(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    path.write_text("old")
    synced: list[tuple[bool, str]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), path.read_text()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write(path, "new", durable=True)
    assert synced == [(False, "old"), (True, "new")]
    atomic.write(path, "quick")
    assert len(synced) == 2


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
