"""A language model's weights as the compiled decoder's kernels read them, on disk: mapped instead of read and packed.

    <LAB_HOME>/cold/packed/<key>/arena.bin    every matrix, packed (lab/serve/models/formats.py)
                                 rest.npz     where each lies; norms, cosines, sines

Packed once, by a process of its own (`python -m lab.serve.cold.packed`), and then mapped by every worker: pages come
from the page cache as they are touched, and workers share them. The price is the disk that the files take, and that
pages of a file are small ones: memory of a worker's own may lie on pages of 2 MB. The key is the content of the source
folder (names, sizes, times) and of the code that packs.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lab import home

ARENA, REST = "arena.bin", "rest.npz"
SMALL = ("matrices", "norms", "cos", "sin")
CODE = ("formats.py", "packed_weights.py", "forward.py", "quantized_reader.py")
MODELS = Path(__file__).parents[1] / "models"


def place(folder: Path) -> Path:
    """Where the packed weights of that folder belong."""
    parts = [(MODELS / name).read_bytes() for name in CODE]
    for path in sorted(folder.resolve().iterdir()):
        stat = path.stat()
        parts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return home.home() / "cold" / "packed" / hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def is_kept(packed: Path) -> bool:
    return (packed / REST).is_file() and (packed / ARENA).is_file()


def files(packed: Path) -> list[Path]:
    return [packed / ARENA, packed / REST]


def write(packed: Path, weights: Any) -> None:
    """`weights`: forward.Weights. Readers see all of it or nothing."""
    import numpy as np

    partial = packed.with_name(f".{packed.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        weights.arena.tofile(partial / ARENA)
        np.savez(partial / REST, **{name: getattr(weights, name) for name in SMALL})
        if not packed.exists():  # else somebody was quicker
            partial.rename(packed)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def mapped(packed: Path) -> tuple[Any, ...]:
    """The fields of forward.Weights. The arena is a private map of its file, whose pages come as they are touched."""
    import numpy as np

    with (packed / ARENA).open("rb") as file:
        arena = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    arena.madvise(mmap.MADV_WILLNEED)  # the disk may read ahead while this process does other things
    with np.load(packed / REST, allow_pickle=False) as rest:
        return np.frombuffer(arena, np.uint32), *(rest[name] for name in SMALL)


def pack(job: dict[str, Any], progress: home.Progress) -> str:
    """{"folder", "packed"} of a job (lab/serve/job.py): reads, packs and writes."""
    from lab.serve.models import packed_weights
    from lab.serve.models.llama_config import LlamaConfig
    from lab.serve.models.quantized_reader import WeightsFolder

    folder, packed = Path(job["folder"]), Path(job["packed"])
    progress("packing weights", 0, 1)
    write(packed, packed_weights.read(WeightsFolder(folder), LlamaConfig.read(folder)))
    progress("packing weights", 1, 1)
    return str(packed)


if __name__ == "__main__":
    from lab.serve.job import serve

    sys.exit(serve(pack))
