"""What this machine has and lacks for serving models, each with what to do about it. Changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from lab.home import home
from lab.serve import installation, leftovers, ports, scratch, weights
from lab.serve.triton import DEFAULT_PORTS, Server
from lab.spec import FAMILIES, ModelSpec

SHM_BYTES = 64 * 1024**2
DISK_BYTES = 2 * 1024**3
"""A server takes 1 MiB of shared memory a model instance and more while answers are large; LAB_HOME takes 0.9 GB with
everything fetched, plus what runs record."""


@dataclass(frozen=True)
class Check:
    """`remedy` is empty where there is nothing to do. A check that is `ok` may still carry one: what would be
    better. `fetch`: what `python -m lab fetch` would bring, "" where that is not what is missing."""

    name: str
    ok: bool
    found: str
    remedy: str
    fetch: str = ""


def checks() -> list[Check]:
    return list(_checks())


def _checks() -> Iterator[Check]:
    lacks = installation.missing()
    glibc = installation.glibc()
    version = "not glibc" if glibc is None else f"glibc {glibc[0]}.{glibc[1]}"
    library = installation.libpython()
    found = f"{version}, Python {installation.python_version()}, {library or 'no ' + installation.libpython_name()}"
    lacking = "; ".join(f"needs {what}: {how}" for what, how in lacks)
    yield Check("machine", not lacks, found, lacking)

    fetched = installation.is_fetched()
    yield _fetched("Triton", fetched, str(installation.folder()), "triton")
    for family in FAMILIES:
        if family in weights.FAMILIES:
            spec = ModelSpec(name=family)
            yield _fetched(f"model {family}", weights.is_ready(spec), str(weights.folder(spec)), family)

    yield _server()
    yield _space("shared memory", str(leftovers.SHM), SHM_BYTES, "give the container more, such as --shm-size=1g")
    yield _space("disk", str(home()), DISK_BYTES, "delete old runs, or set LAB_HOME to a larger disk")

    count = installation.gpus()
    yield Check(
        "GPU", True, f"{count} NVIDIA GPUs" if count else "none: models run on the CPU, memory is the host's", ""
    )

    go = "the lab's next command removes them"
    left = leftovers.find()
    size_bytes = sum(one.size_bytes for one in left)
    found = f"{len(left)} regions, {size_bytes:,} bytes, of dead servers of this lab"
    yield Check("leftovers in shared memory", not left, found, go if left else "")
    folders = scratch.find()
    found = ", ".join(map(str, folders)) or "none of dead processes of this lab"
    yield Check("leftovers in temporary folders", not folders, found, go if folders else "")


def _fetched(name: str, there: bool, place: str, word: str) -> Check:
    remedy = "" if there else f"python -m lab fetch {word} (else fetched at first use)"
    return Check(name, there, place if there else "not fetched", remedy, "" if there else word)


def _server() -> Check:
    running = Server.attach()
    if running is not None:
        return Check("server", True, f"the lab's Triton runs: pid {running.pid}, gRPC {running.grpc_url}", "")
    taken = [f"port {port} is taken by {ports.owner(port)}" for port in DEFAULT_PORTS if not ports.is_free(port)]
    free = f"ports {', '.join(map(str, DEFAULT_PORTS))} are free"
    return Check("server", True, "; ".join(taken) or free, "others are picked" if taken else "")


def _space(name: str, place: str, needed_bytes: int, remedy: str) -> Check:
    try:
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return Check(name, False, str(error), remedy)
    enough = free_bytes >= needed_bytes
    return Check(name, enough, f"{free_bytes / 1e9:.1f} GB free at {place}", "" if enough else remedy)
