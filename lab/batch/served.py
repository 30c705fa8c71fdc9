"""Which Triton a batch job asks.

The lab's, where it serves the model just so already. Else one of the job's own, which nobody finds and which ends with
it: so a job changes no model that others use, and its end takes none from them.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.errors import LabError
from lab.home import home
from lab.run.conversation import in_force
from lab.serve import repository
from lab.serve.triton import Server
from lab.spec import ModelSpec


def own_place(out: Path) -> Path:
    """Where the Triton of a job that writes `out` has its repository and its log."""
    return home() / "batch" / hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]


@contextmanager
def serving(spec: ModelSpec, place: Path) -> Iterator[Server]:
    """The lab's Triton where it serves `spec` just so; else one of our own at `place`, which nobody else finds."""
    attached = Server.attach()
    if attached is not None:
        with attached:
            fits = False
            with suppress(LabError):  # it is about to end
                fits = serves(attached, spec)
            if fits:
                yield attached
                return
    print(f"loading {spec.name} in a Triton of this job's own", file=sys.stderr, flush=True)
    with Server.start(repository=place / "repository", log=place / "triton.log", shared=False) as own:
        own.load(spec)
        yield own
    shutil.rmtree(place, ignore_errors=True)  # kept, for its log, where something went wrong


def serves(server: Server, spec: ModelSpec) -> bool:
    """Whether the model of this name serves as `spec` says, its batches too."""
    wanted = repository.config(spec)
    return in_force(server, spec) and int(server.config(spec.name).get("max_batch_size", 0)) == wanted.max_batch_size
