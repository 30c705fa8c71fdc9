"""What "rollout" must show: a guard that is seldom wrong, a gateway that costs little, a switch that loses nothing.

    .venv/bin/python benchmarks/rollout.py [--json] [--only=PART,…]      14 minutes
    parts: guard, cost, streams, idle, cancel, vanish, switch, canary

The guard's rows are simulated (lab/measure/rollout_sim.py), four processes at a time where there are cores. All others
are measured on a real Triton: the gateway's in gateway_rows.py, switch and canary by the experiments themselves.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import gateway_rows
from benchmarks.table import Row, main, say
from lab import priority
from lab.measure import rehearsal
from lab.measure.rollout_sim import Ending, Story, simulate
from lab.serve import weights
from lab.spec import Tolerance

ROLLOUTS = 100
STORIES = {
    "an identical v2": Story(),
    "a v2 with 20 % higher p95": Story(slower=1.2),
    "a v2 with 2 % errors": Story(errors=0.02),
    "a v2 with 5 points less quality": Story(worse=0.05),
}
CANARY_S = 75
SWITCHED_RPS, STREAMS = 200, 8


def measure() -> list[Row]:
    parts: dict[str, Callable[[], list[Row]]] = {"switch": switch, "canary": canary}
    only = next((word.partition("=")[2].split(",") for word in ONLY), ["guard", *gateway_rows.PARTS, *parts])
    rows = guard() if "guard" in only else []
    served = [name for name in gateway_rows.PARTS if name in only]
    if served or any(name in only for name in parts):
        for spec in (gateway_rows.DIGITS, gateway_rows.LLM):
            weights.prepare(spec)
        with suppress(OSError):  # the client is measured too
            os.setpriority(os.PRIO_PROCESS, 0, priority.MEASURED)
        with gateway_rows.own_home():
            if served:
                with gateway_rows.running() as bench:
                    for name in served:
                        say(name)
                        rows += gateway_rows.PARTS[name](bench)
            for name, part in parts.items():
                if name in only:
                    say(name)
                    rows += part()
    return rows


# --- the guard --------------------------------------------------------------------------------------------------------


def guard() -> list[Row]:
    """100 simulated rollouts of each kind, at 100 req/s through 1, 5, 25 and 100 %."""
    rows = []
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for name, story in STORIES.items():
            found = list(pool.map(_rollout, [story] * ROLLOUTS, range(ROLLOUTS), chunksize=5))
            ends = Counter(one.end for one in found)
            say(f"{name}: {dict(ends)}")
            back = [one for one in found if one.end == "rolled_back"]
            alike = story == Story()
            note = f"{dict(ends)}; {_touched(found if alike else back)}"
            goal = "<= 5" if alike else ">= 95"
            rows.append(Row(f"guard: rollbacks of {name}, of {ROLLOUTS}", len(back), "", goal, ROLLOUTS, note))
    return rows


def _rollout(story: Story, seed: int) -> Ending:
    return simulate(story, Tolerance(), seed=seed)


def _touched(found: list[Ending]) -> str:
    if not found:
        return "none"
    touched = np.array([one.touched for one in found])
    harmed, seconds = (statistics.median(getattr(one, name) for one in found) for name in ("harmed", "seconds"))
    low, middle, high = np.percentile(touched, (5, 50, 95))
    return (
        f"v2 had {middle:.0f} requests ({low:.0f} to {high:.0f}) in {seconds:.0f} s (median), "
        f"{harmed:.0f} of them failed or bad"
    )


# --- rehearsed --------------------------------------------------------------------------------------------------------


def rehearsed(experiment: str, *settings: str) -> tuple[list[rehearsal.Block], str]:
    """The blocks of a run of that experiment, and whether its users fell behind, in words; it stops the benchmark when
    it fails."""
    command = [sys.executable, "-m", "lab", "run", experiment, "--json", *(f"--set={setting}" for setting in settings)]
    done = subprocess.run(command, cwd=gateway_rows.PROJECT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"lab run {experiment} ended with status {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    say(document["verdict"]["text"])
    blocks: list[rehearsal.Block] = document["rehearsal"]["blocks"]
    behind = [problem["text"] for problem in document["problems"] if problem["code"] == "client_limited"]
    return blocks, "; ".join(behind)


def switch() -> list[Row]:
    """Switch and way back under 200 req/s of predictions and 8 open streams, three times: each request is accounted
    for."""
    blocks, behind = rehearsed("blue_green", f"workload.arrival.rate_rps={SWITCHED_RPS}", f"rollout.streams={STREAMS}")

    def total(key: str) -> int:
        return sum(int(block[key]) for block in blocks)

    moves = [move for block in blocks for move in block["moves"]]
    count, streams = total("requests"), total("streams")
    by_version = Counter[str]()
    for block in blocks:
        by_version.update(block["by_version"])
    note = f"{streams} streams among them; {dict(by_version)}{f'; {behind}' if behind else ''}"
    load = f"{SWITCHED_RPS} req/s and {STREAMS} streams"
    return [
        Row(f"switch and back under {load}: lost", total("lost"), "", "<= 0", count, note),
        Row("… told to come again, and not served", total("refused"), "", "<= 0", count),
        Row("… that the gateway took more or less than were sent", abs(total("entered") - count), "", "<= 0", count),
        Row("… answered twice", total("twice"), "", "<= 0", count),
        Row("… predictions made more or less than asked, by Triton's count",
            abs(total("executed") - total("predictions")), "", "<= 0", total("predictions")),
        Row("… answers after the way back unlike those before the switch",
            total("differing"), "", "<= 0", total("compared")),
        Row("… answered by green", by_version["green"], "", ">= 1", count),
        Row("… left under way", total("left"), "", "<= 0", count),
        Row("… slowest drain", max(move["drain_s"] for move in moves) * 1e3, "ms", None, len(moves)),
        Row("… requests sent after a switch that the old side got", sum(move["late"] for move in moves), "", None,
            len(moves), f"the last {max(move['late_s'] for move in moves) * 1e3:.0f} ms after"),
    ]  # fmt: skip


def canary() -> list[Row]:
    """Version 2 in another format or with a planted fault, at 200 req/s whose answers are scored: 5 %, 25 %, all. What
    the guard had decided after CANARY_S at most, and what version 2 had had by then."""
    rows = []
    blocks, behind = rehearsed("canary", "rollout.steps=[0.05,0.25,1]", f"workload.duration_s={CANARY_S + 5}")
    for block in blocks:
        name, back = rehearsal.name(block), float(block["decision"] == "rolled_back")
        goal = "<= 0" if rehearsal.RIGHT[block["challenger"]] == "promoted" else ">= 1"
        note = f"{rehearsal.DECISIONS[block['decision']]} after {block['seconds']:.0f} s: {block['text']}"
        rows.append(Row(f"canary: {name}, rolled back", back, "", goal, 1, note))
        harmed = f"{block['failed']} failed, {block['wrong']} wrong{f'; {behind}' if behind else ''}"
        rows.append(Row("… requests that it had had", block["touched"], "", None, block["requests"], harmed))
    return rows


ONLY = [word for word in sys.argv[1:] if word.startswith("--only=")]

if __name__ == "__main__":
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in ONLY]
    sys.exit(main(str(__doc__).splitlines()[0], measure))
