"""What a machine lacks is said before a start, with a remedy."""

import ctypes
import sys

import pytest

from lab.errors import ServerError
from lab.serve import installation


def test_the_library_of_this_python_is_found_and_is_that():
    found = installation.libpython()
    if found is None:
        pytest.skip(f"this Python has no {installation.libpython_name()}")
    assert found.name == f"libpython3.{sys.version_info.minor}.so.1.0"
    library = ctypes.CDLL(str(found))
    library.Py_GetVersion.restype = ctypes.c_char_p
    assert library.Py_GetVersion().decode().startswith(f"3.{sys.version_info.minor}.")


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("glibc", (2, 31), ["glibc 2.35 or newer", "glibc 2.31", "URL"]),
        ("glibc", None, ["glibc 2.35 or newer", "another C library"]),
        ("libpython", None, [f"libpython3.{sys.version_info.minor}.so.1.0", "apt install", "--enable-shared"]),
    ],
)
def test_what_is_missing_has_a_remedy(monkeypatch, what, value, said):
    monkeypatch.setattr(installation, what, lambda: value)
    (lack,) = installation.missing()
    assert all(word in " ".join(lack) for word in said)
    with pytest.raises(ServerError) as told:
        installation.fetch()
    assert all(word in str(told.value) for word in said)
    assert "\n" not in str(told.value)


def test_a_python_without_a_stub_is_named(monkeypatch):
    monkeypatch.setattr(installation.sys, "version_info", FakeVersion((3, 14)))
    (lack,) = installation.missing()
    assert "Python 3.11 or 3.12 (this is 3.14)" in lack[0]


class FakeVersion(tuple):
    major, minor = 3, 14


def test_another_processor_is_named(monkeypatch):
    monkeypatch.setattr(installation.platform, "machine", lambda: "aarch64")
    assert "linux on aarch64" in installation.missing()[0][0]


def test_without_a_driver_there_are_no_gpus(monkeypatch):
    def no_driver():
        raise installation.pynvml.NVMLError(installation.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(installation.pynvml, "nvmlInit", no_driver)
    assert installation.gpus() == 0


@pytest.mark.triton  # the environment is put together from what was fetched
def test_large_pages_are_asked_for_unless_the_user_tunes_the_allocator(monkeypatch, triton_installed):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert installation.environment()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
    assert installation.environment()["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=2"
