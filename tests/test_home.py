"""Fetching with the real pip, from a folder of wheels that stands in for the registry."""

import hashlib
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from lab import home
from lab.errors import FetchError, InputError

pytestmark = pytest.mark.processes

NAME = "tiny_thing-1.0-py3-none-any.whl"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A wheel with one program in it, which pip finds in tmp_path/registry and nowhere else."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    registry = tmp_path / "registry"
    registry.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry))
    with zipfile.ZipFile(registry / NAME, "w") as wheel:
        program = zipfile.ZipInfo("tiny/bin/run")
        program.external_attr = 0o755 << 16
        wheel.writestr(program, "#!/bin/sh\necho ran\n")
        wheel.writestr("tiny/data.txt", "x" * 100_000)
        wheel.writestr("tiny_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        wheel.writestr("tiny_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_thing-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256((registry / NAME).read_bytes()).hexdigest()
    return home.Package("tiny-thing", "1.0", NAME, digest)


def quiet(label: str, done: int, total: int) -> None:
    pass


def test_a_wheel_is_fetched_unpacked_and_its_program_runs(package, tmp_path):
    place = home.fetch(package, home.home() / "tiny", quiet)
    assert subprocess.run([place / "tiny/bin/run"], capture_output=True, text=True, check=True).stdout == "ran\n"
    assert not (place / "tiny/data.txt").stat().st_mode & 0o100
    assert sorted(path.name for path in home.home().iterdir()) == ["downloads", "tiny"]


def test_progress_ends_once_with_everything(package):
    told = []
    home.fetch(package, home.home() / "tiny", lambda *step: told.append(step))
    assert [label for label, done, total in told if done == total] == [
        "downloading tiny-thing 1.0",
        "unpacking tiny-thing 1.0",
    ]
    assert all(0 <= done <= total for _, done, total in told)


def test_what_is_there_is_not_fetched_again(package, tmp_path):
    home.fetch(package, home.home() / "tiny", quiet)
    (tmp_path / "registry" / NAME).unlink()
    (home.home() / "downloads" / NAME).unlink()
    home.fetch(package, home.home() / "tiny", quiet)


def test_a_wheel_put_there_by_hand_needs_no_network(package, tmp_path):
    downloads = home.home() / "downloads"
    downloads.mkdir()
    (tmp_path / "registry" / NAME).rename(downloads / NAME)
    assert (home.fetch(package, home.home() / "tiny", quiet) / "tiny/data.txt").is_file()


@pytest.mark.parametrize("kept", [0, 1000])
def test_half_a_wheel_is_repaired(package, tmp_path, kept):
    downloads = home.home() / "downloads"
    downloads.mkdir()
    (downloads / NAME).write_bytes((tmp_path / "registry" / NAME).read_bytes()[:kept])
    (downloads / "tiny-thing-partial-dead").mkdir()  # what a killed fetch leaves
    home.fetch(package, home.home() / "tiny", quiet)
    assert sorted(path.name for path in downloads.iterdir()) == ["tiny-thing.lock", NAME]


def test_half_an_unpacking_is_repaired(package):
    partial = home.home() / "tiny.partial"
    partial.mkdir()
    (partial / "old").write_text("")
    place = home.home() / "tiny"
    place.mkdir()  # unpacked without the mark: not complete
    (place / "old").write_text("")
    home.fetch(package, place, quiet)
    assert not partial.exists()
    assert not (place / "old").exists()


def test_offline_names_what_is_missing_and_how_to_bring_it(package, tmp_path):
    (tmp_path / "registry" / NAME).unlink()
    with pytest.raises(FetchError) as told:
        home.fetch(package, home.home() / "tiny", quiet)
    line = str(told.value)
    assert "tiny-thing==1.0" in line
    assert f"put the wheel file {NAME} into {home.home() / 'downloads'}" in line
    assert "\n" not in line


def test_a_wheel_that_is_not_the_pinned_one_is_refused(package):
    other = home.Package(package.name, package.version, package.filename, "0" * 64)
    with pytest.raises(FetchError, match=r"tiny-thing==1\.0"):
        home.fetch(other, home.home() / "tiny", quiet)
    assert not (home.home() / "downloads" / NAME).exists()


def test_a_full_disk_leaves_nothing_half_unpacked(package, monkeypatch):
    def full(self, entry, path=None, pwd=None):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extract", full)
    with pytest.raises(FetchError, match="No space left"):
        home.fetch(package, home.home() / "tiny", quiet)
    assert not (home.home() / "tiny").exists()


def test_two_at_once_fetch_once(package, tmp_path):
    code = textwrap.dedent(
        f"""
        from lab import home
        package = home.Package({package.name!r}, {package.version!r}, {package.filename!r}, {package.sha256!r})
        told = []
        home.fetch(package, home.home() / "tiny", lambda *step: told.append(step))
        print(len(told))
        """
    )
    project = Path(__file__).parents[1]
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=project, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    steps = [int(one.communicate(timeout=60)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted(steps)[0] == 0 < sorted(steps)[1]


def test_the_lab_home_is_absolute_and_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_HOME", "here/there")
    assert home.home() == tmp_path / "here/there"
    assert home.home().is_dir()


@pytest.mark.parametrize("given", ["a:b", "a;b", "a\nb", "a\udcffb", "~nobody-of-this-name/a"])
def test_a_place_that_programs_cannot_be_told_is_refused_in_one_line(given, tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", given if given.startswith("~") else str(tmp_path / given))
    with pytest.raises(InputError, match=r"^LAB_HOME '.*: allowed: a folder|^LAB_HOME '~.*; allowed: a folder") as told:
        home.home()
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())
