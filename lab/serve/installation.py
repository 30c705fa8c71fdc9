"""Where the Triton binary comes from and what it needs to run on this machine.

The wheel of nvidia-pytriton carries tritonserver 2.51.0 with its Python backend; it is unpacked, never installed (it
pins numpy<2). The backend starts one stub process a model instance, built for one Python version and linked to that
version's shared library, and takes the packages from the first `python3` on PATH. `missing` says what a machine lacks
*before* a start fails with a loader message.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import pynvml

from lab import home
from lab.errors import ServerError

PACKAGE = home.Package(
    name="nvidia-pytriton",
    version="0.7.0",
    filename="nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl",
    sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
)
STUB_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""Python versions that the wheel has a stub for and the lab runs on."""

GLIBC = (2, 35)


def folder() -> Path:
    return home.home() / "triton"


def is_fetched() -> bool:
    return home.is_fetched(PACKAGE, folder())


def fetch(progress: home.Progress | None = None) -> Path:
    return home.fetch(PACKAGE, folder(), progress)


def missing() -> list[tuple[str, str]]:
    """What this machine lacks for running Triton, each as (what, remedy); empty when it can."""
    elsewhere = "or give the URL of a Triton server elsewhere"
    lacks = []
    if platform.machine() != "x86_64" or sys.platform != "linux":
        lacks.append(
            (f"Linux on x86_64 (this is {sys.platform} on {platform.machine()})", f"another machine, {elsewhere}")
        )
    found = glibc()
    if found is not None and found < GLIBC:
        lacks.append((f"glibc 2.35 or newer (this is {found[0]}.{found[1]})", f"a newer distribution, {elsewhere}"))
    version = sys.version_info[:2]
    if version not in STUB_VERSIONS:
        allowed = ", ".join(f"{major}.{minor}" for major, minor in STUB_VERSIONS)
        lacks.append((f"a Python that Triton has a stub for (this is {version[0]}.{version[1]})", f"Python {allowed}"))
    elif libpython() is None:
        name = libpython_name()
        lacks.append(
            (
                f"{name}, the shared library of this Python ({sys.executable})",
                f"apt install libpython{version[0]}.{version[1]} when it is the distribution's Python, or a Python "
                f"built with --enable-shared, {elsewhere}",
            )
        )
    if not python_bin().joinpath("python3").exists():
        lacks.append((f"a python3 in {python_bin()}", "make the virtual environment again with python -m venv"))
    return lacks


def glibc() -> tuple[int, int] | None:
    """(2, 36); None where the C library is not glibc or does not say."""
    name, version = platform.libc_ver()
    parts = version.split(".")
    return (int(parts[0]), int(parts[1])) if name == "glibc" and len(parts) >= 2 else None


def libpython_name() -> str:
    return f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"


def libpython() -> Path | None:
    """The file that the stub is linked to: this interpreter's own, else the one that the loader finds."""
    name = libpython_name()
    for place in (sysconfig.get_config_var("LIBDIR"), str(Path(sys.base_prefix) / "lib")):
        if place and (Path(place) / name).is_file():
            return Path(place) / name
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("/" + name):
            return Path(line.split(maxsplit=5)[5])
    return None


def python_bin() -> Path:
    """Folder of the running interpreter as it was called: a virtual environment's bin, not what it links to."""
    return Path(sys.executable).parent


def command() -> list[str]:
    """tritonserver with its backend folder, fetched and put together when needed; ServerError when it cannot run."""
    if lacks := missing():
        raise ServerError("Triton cannot run here, it needs " + "; ".join(f"{what}: {how}" for what, how in lacks))
    server = fetch() / "pytriton" / "tritonserver"
    return [str(server / "bin" / "tritonserver"), f"--backend-directory={_backends(server)}"]


def environment() -> dict[str, str]:
    """The environment for tritonserver and its stubs."""
    library = libpython()
    libraries = [str(library.parent)] if library else []
    libraries.append(str(folder() / "nvidia_pytriton.libs"))
    path = f"{python_bin()}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # Stubs write bytecode of model.py nowhere useful, and a stale __pycache__ in the repository would be touched.
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "PATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _backends(server: Path) -> Path:
    """backends/python of the wheel with the running Python's stub beside the library."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    backends = folder() / f"backends-{version}"
    if not backends.is_dir():
        partial = folder() / f"backends-{version}.partial-{os.getpid()}"
        shutil.copytree(server / "backends" / "python", partial / "python")
        shutil.copy2(server / "python_backend_stubs" / version / "triton_python_backend_stub", partial / "python")
        try:
            partial.rename(backends)
        except OSError:  # another process was first
            shutil.rmtree(partial)
            if not backends.is_dir():
                raise
    return backends


def gpus() -> int:
    """How many NVIDIA GPUs this machine's driver shows; 0 without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
