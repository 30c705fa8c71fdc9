"""What this machine's processor can do at best: bytes read from memory and multiplications, each a second.

These are the floors that stand beside a measured step: the bytes that it must read ÷ bandwidth, its operations ÷
arithmetic rate. A figure below its floor is a bug, in the figure or in the floor. So the best of several tries counts:

- reading: the sum of 512 MB of float32 on large pages, many times any cache. Six other ways of reading (numpy's and
  compiled loops, with prefetching and without) came out within 5 % of it where this was written;
- arithmetic: a product of two 1024 × 1024 matrices, 2 × 1024³ operations, in float32, in bfloat16, and in int8 with
  sums in int32.

The figures take turns, ROUNDS times, so that no short disturbance falls on one of them alone. Measured once a machine,
in 4 s, in a process of its own (torch does not belong into the runner), and kept in LAB_HOME.
Knows nothing of GPUs. A machine that is busy meanwhile is slower: measure on an idle one, `again=True` to repeat.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab import atomic, home

BUFFER_BYTES = 512 * 2**20
MATRIX = 1024
SECONDS = 0.6  # for each of the figures, in all rounds
ROUNDS = 3
LIMIT_S = 60.0


@dataclass(frozen=True)
class Probe:
    """A figure that could not be measured is None, and `reason` says why."""

    cpu: str
    threads: int
    read_bandwidth_bytes_s: float | None
    matmul_bf16_flop_s: float | None
    matmul_fp32_flop_s: float | None
    matmul_int8_op_s: float | None
    reason: str | None = None


def probe(again: bool = False) -> Probe:
    """This machine's figures: those kept from before, or measured now (about 4 s). A failure is not kept."""
    cpu, threads = cpu_name(), len(os.sched_getaffinity(0))
    place = home.home() / "probe.json"
    with home.locked(place.with_suffix(".lock")):
        kept = _read(place)
        key = f"{cpu}, {threads} threads"
        if key in kept and not again:
            return Probe(**kept[key])
        found = _measure_apart(cpu, threads)
        if found.reason is None:
            atomic.write(place, json.dumps({**kept, key: asdict(found)}, indent=1))
        return found


def kept() -> Probe | None:
    """What is kept of this machine; None before it was measured."""
    found = _read(home.home() / "probe.json").get(f"{cpu_name()}, {len(os.sched_getaffinity(0))} threads")
    return None if found is None else Probe(**found)


BYTE_PRODUCTS = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Any of these multiplies whole numbers of 8 bits faster than floats."""


def cpu_name() -> str:
    """The processor's model name, or "unknown processor"."""
    return _cpu("model name") or "unknown processor"


def multiplies_bytes() -> bool | None:
    """Whether the processor has products of 8 bits that are faster than those of float32; None where it doesn't say."""
    flags = _cpu("flags")
    return None if flags is None else any(flag in BYTE_PRODUCTS for flag in flags.split())


def _cpu(field: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), None)


def _read(place: Path) -> dict[str, dict[str, Any]]:
    """Nothing from a file that is missing, half written by hand or of another version's fields."""
    try:
        kept = json.loads(place.read_text())
        return {key: value for key, value in kept.items() if asdict(Probe(**value)) == value}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _measure_apart(cpu: str, threads: int) -> Probe:
    command = [sys.executable, "-m", "lab.watch.probe"]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[2], check=True
        )
        return Probe(cpu, threads, **json.loads(ran.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        reason = f"the probe took longer than {LIMIT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        reason = f"the probe ended with {said[-1] if said else f'exit status {error.returncode}'}"
    except (OSError, ValueError, TypeError, IndexError) as error:
        reason = f"the probe gave no figures ({error})"
    return Probe(cpu, threads, None, None, None, None, reason)


def measure() -> dict[str, float | str | None]:
    """In the probe's own process: the figures of a Probe."""
    import numpy as np
    import psutil
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    works: dict[str, tuple[float, Callable[[], object]]] = {}
    reason = None
    if psutil.virtual_memory().available > 2 * BUFFER_BYTES:
        # numpy asks for large pages where they are for the asking; without them reading is half as fast.
        buffer = torch.from_numpy(np.ones(BUFFER_BYTES // 4, np.float32))
        works["read_bandwidth_bytes_s"] = BUFFER_BYTES, buffer.sum
    else:
        reason = f"bandwidth: less than {2 * BUFFER_BYTES // 2**20} MB of memory are free"
    for name, dtype, product in (
        ("matmul_bf16_flop_s", torch.bfloat16, torch.matmul),
        ("matmul_fp32_flop_s", torch.float32, torch.matmul),
        ("matmul_int8_op_s", torch.int8, torch._int_mm),
    ):
        a, b = (torch.randint(-100, 100, (MATRIX, MATRIX)).to(dtype) for _ in range(2))
        works[name] = 2 * MATRIX**3, partial(product, a, b)
    least_s = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, (_, work) in works.items():
            least_s[name] = min(least_s[name], _least_s(work))
    found = {name: amount / least_s[name] for name, (amount, _) in works.items()}
    return {"read_bandwidth_bytes_s": None, **found, "reason": reason}


def _least_s(work: Callable[[], object]) -> float:
    """Seconds of the quickest call among those of a round, two at least."""
    least, calls, end = float("inf"), 0, time.perf_counter() + SECONDS / ROUNDS
    while calls < 2 or time.perf_counter() < end:
        began = time.perf_counter_ns()
        work()
        least = min(least, (time.perf_counter_ns() - began) / 1e9)
        calls += 1
    return least


if __name__ == "__main__":
    print(json.dumps(measure()))
