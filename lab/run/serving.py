"""Which server a run measures: the lab's own, one that runs already, or somebody else's by its URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.home import home
from lab.run.folder import RunFolder
from lab.serve.address import address
from lab.serve.openai_server import OpenAIServer
from lab.serve.replicate_server import ReplicateServer
from lab.serve.torchserve_server import TorchServeServer
from lab.serve.triton import Server

AnyServer = Server | OpenAIServer | TorchServeServer | ReplicateServer


def at(url: str) -> AnyServer:
    """Somebody else's server: "grpc://…", "http://…" of a Triton, "openai+http://…" or "torchserve+http://…"."""
    scheme = address(url).scheme.partition("+")[0]
    if scheme == "openai":
        return OpenAIServer(url)
    if scheme == "replicate":
        return ReplicateServer(url)
    return TorchServeServer(url) if scheme == "torchserve" else Server.at(url)


@contextmanager
def serving(url: str | None, folder: RunFolder) -> Iterator[AnyServer]:
    """The server at `url`, or the lab's own where none is given."""
    if url is None:
        with managed(folder) as own:
            yield own
    else:
        with at(url) as server:
            yield server


@contextmanager
def managed(folder: RunFolder) -> Iterator[Server]:
    """The managed server that runs already, left running; else one of our own, stopped after."""
    attached = Server.attach()
    if attached is not None:
        yield attached
        return
    server = Server.start(repository=home() / "repository", log=folder.path / "triton.log")
    try:
        yield server
    finally:
        folder.log(f"server {server.stop()}")
