import asyncio
import time

import numpy as np

from lab.load.pacer import Pacer
from tests.waiting import until_async


def fired_at(deadlines_ns: list[int]) -> list[int]:
    """When the pacer fired for each deadline, set one after the other."""

    async def main() -> list[int]:
        fired: list[int] = []
        over = asyncio.get_running_loop().create_future()

        def fire() -> None:
            fired.append(time.perf_counter_ns())
            if len(fired) == len(deadlines_ns):
                over.set_result(None)
            else:
                pacer.set(deadlines_ns[len(fired)])

        pacer = Pacer(fire)
        pacer.set(deadlines_ns[0])
        await asyncio.wait_for(over, 60)
        pacer.close()
        return fired

    return asyncio.run(main())


def test_it_fires_after_the_deadline_and_lateness_does_not_add_up() -> None:
    start = time.perf_counter_ns() + 10_000_000
    deadlines = [start + i * 1_337_000 for i in range(300)]  # 0.4 s, no whole milliseconds
    late = np.array(fired_at(deadlines)) - deadlines
    assert late.min() >= 0
    # Summed oversleeps, 0.6 ms each, would make all of them late by more; a machine that stands still, only some.
    assert late[150:].min() < 50_000_000


def test_a_deadline_in_the_past_fires_at_once() -> None:
    before = time.perf_counter_ns()
    (fired,) = fired_at([1])
    assert fired - before < 30_000_000_000


def test_a_new_deadline_replaces_the_old_one() -> None:
    async def main() -> int:
        fired: list[int] = []
        pacer = Pacer(lambda: fired.append(time.perf_counter_ns()))
        start = time.perf_counter_ns()
        pacer.set(start + 5_000_000)
        pacer.set(start + 60_000_000)
        await until_async(lambda: fired)
        pacer.close()
        return fired[0] - start

    assert asyncio.run(main()) >= 60_000_000
