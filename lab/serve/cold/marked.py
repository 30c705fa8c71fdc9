"""Served in place of a model's own code when its start in Triton is taken apart: the same model, with stamps.

Copied into the model's folder as model.py (in_triton.py), beside the model's own code as served.py and marks.json:
where to tell the stamps, what to read through, and whether the family computes with torch.
"""

# ruff: noqa: E402  the first stamp comes before all other imports

import time

BEGAN_NS = time.perf_counter_ns()

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

MARKS = json.loads(Path(__file__).with_name("marks.json").read_text())
OWNER = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
OWNER.connect(MARKS["report"])


def tell(name: str, begin_ns: int | None, end_ns: int) -> None:
    OWNER.sendall(json.dumps({"stage": name, "begin_ns": begin_ns, "end_ns": end_ns}).encode() + b"\n")


@contextmanager
def stage(name: str) -> Iterator[None]:
    began_ns = time.perf_counter_ns()
    yield
    tell(name, began_ns, time.perf_counter_ns())


def staged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> Any:
        with stage(name):
            return function(*given, **named)

    return wrapped


tell("process", None, BEGAN_NS)
if MARKS["torch"]:
    with stage("import_torch"):
        import torch  # noqa: F401  what its import takes is a stage
with stage("import_model"):
    from .served import TritonPythonModel as Served

    if MARKS["compiled"]:
        compiled_decoder: Any = import_module(f"{__package__}.compiled_decoder")
        compiled_decoder.read_weights = staged("convert", compiled_decoder.read_weights)
        decoder: Any = compiled_decoder.CompiledDecoder
        decoder.__init__ = staged("compile", decoder.__init__)


class TritonPythonModel(Served):  # type: ignore[misc]  # known where it lies only
    def initialize(self, args: dict[str, str]) -> None:
        with stage("read"):
            buffer = bytearray(1 << 20)
            for path in MARKS["files"]:
                with Path(path).open("rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
        began_ns = time.perf_counter_ns()
        if hasattr(Served, "initialize"):
            super().initialize(args)
        if not MARKS["compiled"]:
            tell("convert", began_ns, time.perf_counter_ns())
        tell("initialized", None, time.perf_counter_ns())
