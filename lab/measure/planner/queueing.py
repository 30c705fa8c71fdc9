"""What a queue is asked and by which rules, and what became of each request: the words of the simulators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lab.measure.pace import Floats
from lab.measure.records import Int64s

Routing = Literal["round_robin", "least_outstanding", "two_choices"]


@dataclass(frozen=True)
class Rules:
    """How requests are put together and spread: Triton's dynamic batching, instances of a replica, replicas."""

    max_batch_size: int = 1
    delay_s: float = 0.0
    max_queue_size: int | None = None
    instances: int = 1
    replicas: int = 1
    routing: Routing = "round_robin"


@dataclass(frozen=True)
class Users:
    """A closed loop: each user asks again `think_s` after the last answer, until `requests` have been asked in all."""

    concurrency: int
    requests: int
    think_s: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """One entry a request, in the order of arrival; seconds. Refused ones have NaN in `start_s` and `done_s`, and size
    0. `came_s`: when it was in the queue; `replica`: which one got it; `idle_s`: how long the instance had been idle
    when it took the batch; `busy_s`: what all instances worked."""

    due_s: Floats
    came_s: Floats
    start_s: Floats
    done_s: Floats
    batch: Int64s
    replica: Int64s
    idle_s: Floats
    busy_s: float

    @property
    def latency_s(self) -> Floats:
        return self.done_s - self.due_s

    @property
    def waited_s(self) -> Floats:
        """In the queue, a batcher's delay included."""
        return self.start_s - self.came_s

    @property
    def refused(self) -> int:
        return int(np.isnan(self.done_s).sum())
