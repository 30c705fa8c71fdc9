"""Where the Triton binary comes from and what it needs to run on this machine.

The wheel of nvidia-pytriton carries tritonserver 2.51.0 with its Python backend; it is unpacked, never installed (it
pins numpy<2). The backend starts one stub process a model instance. The stub is built for one Python version, linked
to that version's shared library, and takes its packages from the first `python3` on PATH (see python_env.py).
`missing` says what a machine lacks *before* a start fails with a loader message.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import pynvml

from lab import home
from lab.errors import ServerError
from lab.serve import plain_path, python_env

PACKAGE = home.Package(
    name="nvidia-pytriton",
    version="0.7.0",
    filename="nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl",
    sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
)
GLIBC = (2, 35)


def folder() -> Path:
    return home.home() / "triton"


def is_fetched() -> bool:
    return home.is_fetched(PACKAGE, _wheel()) and python_env.is_ready()


def fetch(progress: home.Progress | None = None) -> Path:
    """The folder of the unpacked wheel, fetched when it is missing, with the environment that its models run in.
    ServerError when Triton cannot run on this machine, FetchError when it cannot be had."""
    if lacks := missing():
        raise ServerError("Triton cannot run here; it needs " + "; ".join(f"{what}: {how}" for what, how in lacks))
    home.fetch(PACKAGE, _wheel(), progress)
    python_env.prepare(progress)
    return _wheel()


def command() -> list[str]:
    """tritonserver and its backend folder, fetched and put together when needed. Errors as `fetch`."""
    server = fetch() / "pytriton" / "tritonserver"
    return [str(server / "bin" / "tritonserver"), f"--backend-directory={plain_path.of(_backends(server))}"]


def environment() -> dict[str, str]:
    """The environment variables for tritonserver and its stubs."""
    libraries = [str(_wheel() / "nvidia_pytriton.libs")]
    library = libpython()
    if library is not None and library.is_absolute():
        libraries.insert(0, str(library.parent))
    path = f"{python_env.prepare()}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    wishes = {
        # Large pages for large tensors: fewer misses of the address cache while a step reads all weights of a model.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        # What a model compiled is kept for its next load (lab/serve/models/compiled_before.py).
        "NUMBA_CACHE_DIR": str(folder() / "compiled"),
    }
    needs = {
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "PATH": path,
        # The stub's Python takes names of files as the locale has them, and in the C locale that is ASCII.
        "LC_ALL": "C.UTF-8",
    }
    return {**wishes, **os.environ, **needs}


def missing() -> list[tuple[str, str]]:
    """What this machine lacks for running Triton, each as (what, remedy); empty when it can."""
    elsewhere = "or the URL of a Triton server elsewhere"
    lacks = []
    if platform.machine() != "x86_64" or sys.platform != "linux":
        here = f"{sys.platform} on {platform.machine()}"
        lacks.append((f"Linux on x86_64 (this is {here})", f"another machine, {elsewhere}"))
    found = glibc()
    if found is None or found < GLIBC:
        here = "another C library" if found is None else f"glibc {found[0]}.{found[1]}"
        lacks.append((f"glibc {GLIBC[0]}.{GLIBC[1]} or newer (this is {here})", f"a newer distribution, {elsewhere}"))
    version = python_version()
    if sys.version_info[:2] not in python_env.NUMPY:
        allowed = " or ".join(f"{major}.{minor}" for major, minor in python_env.NUMPY)
        lacks.append((f"Python {allowed} (this is {version})", f"a virtual environment of one of these, {elsewhere}"))
    elif libpython() is None:
        lacks.append(
            (
                f"{libpython_name()}, the shared library of this Python",
                f"apt install libpython{version} for the distribution's Python, one built with --enable-shared, "
                f"{elsewhere}",
            )
        )
    return lacks


def glibc() -> tuple[int, int] | None:
    """(2, 36); None where the C library is another one or does not say."""
    name, version = platform.libc_ver()
    numbers = version.split(".")
    return (int(numbers[0]), int(numbers[1])) if name == "glibc" and len(numbers) >= 2 else None


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def libpython_name() -> str:
    return f"libpython{python_version()}.so.1.0"


def libpython() -> Path | None:
    """What the stub is linked to: this interpreter's own file, else the bare name if the system's loader knows it."""
    for place in (sysconfig.get_config_var("LIBDIR"), str(Path(sys.base_prefix) / "lib")):
        if place and (Path(place) / libpython_name()).is_file():
            return Path(place) / libpython_name()
    found = ctypes.util.find_library(f"python{python_version()}")
    return Path(found) if found == libpython_name() else None


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


def _wheel() -> Path:
    return folder() / "server"


def _backends(server: Path) -> Path:
    """backends/python of the wheel with the running Python's stub beside its library."""
    backends = folder() / f"backends-{python_version()}"
    if not backends.is_dir():
        with home.locked(folder() / "backends.lock"):
            partial = folder() / "backends.partial"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(server / "backends" / "python", partial / "python")
            stub = server / "python_backend_stubs" / python_version() / "triton_python_backend_stub"
            shutil.copy2(stub, partial / "python")
            if not backends.is_dir():  # made by whoever held the lock
                partial.rename(backends)
    return backends
