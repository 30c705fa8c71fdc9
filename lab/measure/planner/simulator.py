"""A queue in front of servers that batch as Triton does, event by event.

Requests arrive at times given beforehand, or from users who wait for their answer. A replica has one queue and some
instances. Without a delay an instance that is free takes whatever waits, up to the largest size. With one, requests
gather in a group, which closes when its first member has waited for the delay or the largest size is complete, and only
closed groups can be taken: while an instance works, several close and are taken together, but who came just now is left
for the next batch (Triton's batcher adds to a batch that is staged for an instance, and only what has waited its delay;
core/src/dynamic_batch_scheduler.cc). A router in front of several replicas sends each request to one of them when it
comes (round robin, the least outstanding, the better of two at random; Mitzenmacher 2001, "The power of two choices in
randomized load balancing").

An answer leaves as soon as its batch is computed, and the instance is free a handover later. Where requests are dealt
out in turn, no replica knows of the others, and each is served by a loop over its batches, some ten times as fast as
the events that users, full queues and routers that look need; tests hold the two against each other.

The k-th batch of a replica takes the draw of the k-th request that came to it, and draws come in rounds, in each of
which every sample has its turn: so settings that are compared meet the same, and as many as were measured. Each replica
has a machine of its own, whose speed moves as a measured one's did, and is served in that machine's own time
(machine_time.py); a delay passes by the clock, an idle instance goes to sleep in the machine's time.

The clock is simulated, so the same seed gives the same answer on any machine. Checked against closed forms (M/M/1,
M/D/1, machine repair) in tests/measure/planner.
"""

from __future__ import annotations

import heapq

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.events import Events
from lab.measure.planner.queueing import Rules, Simulated, Users
from lab.measure.planner.service import Service, in_rounds


def simulate(arrivals: Floats | Users, rules: Rules, service: Service, *, seed: int = 0) -> Simulated:
    """Serves them all. `arrivals`: ascending seconds, or users. InputError for rules that fit nothing."""
    for name in ("max_batch_size", "instances", "replicas"):
        if getattr(rules, name) < 1:
            raise InputError(f"{name} {getattr(rules, name)}: allowed is 1 or more")
    rng = np.random.default_rng(seed)
    in_turn = rules.replicas == 1 or rules.routing == "round_robin"
    if in_turn and rules.max_queue_size is None and not isinstance(arrivals, Users):
        return _in_turn(arrivals, rules, service, rng)
    return Events(arrivals, rules, service, rng).run()


def _in_turn(due_s: Floats, rules: Rules, service: Service, rng: np.random.Generator) -> Simulated:
    """The same as _Run where every replica is on its own."""
    n = len(due_s)
    outside_s = rng.choice(service.outside_s, n) / 2
    spread = in_rounds(service.spread, n, rng)
    start_s, done_s, idle_s = np.empty(n), np.empty(n), np.empty(n)
    batch, where = np.empty(n, np.int64), np.arange(n) % rules.replicas
    busy_s = 0.0
    count = min(rules.replicas, n)
    clocks = service.clocks(count, float(due_s[-1]) if n else 0.0, rng, batched=rules.max_batch_size > 1)
    most, delay_s = rules.max_batch_size, rules.delay_s + service.notice_s
    for replica in range(count):
        own = np.flatnonzero(where == replica)
        at_s = due_s[own] + outside_s[own]
        order = np.argsort(at_s, kind="stable")
        rows, at_s = own[order], at_s[order]
        gathers = most > 1 and delay_s > 0
        if gathers:
            at_s = np.array(closing(at_s.tolist(), most, delay_s), float)
        clock = clocks[replica] if clocks else None
        if clock is not None:
            at_s = clock.own(at_s)
        served = _serve(at_s.tolist(), rules, service, spread[rows].tolist(), gathers=gathers)
        begun, ended = (np.array(times, float) for times in served[:2])
        sizes, idle = served[2:]
        if clock is not None:
            begun, ended = clock.real(begun), clock.real(ended)
        for column, values in ((start_s, begun), (done_s, ended), (batch, sizes), (idle_s, idle)):
            column[rows] = np.repeat(values, sizes)
        busy_s += float(ended.sum() - begun.sum())
    return Simulated(due_s, due_s + outside_s, start_s, done_s + outside_s, batch, where, idle_s, busy_s)


def _serve(
    at_s: list[float], rules: Rules, service: Service, spread: list[float], *, gathers: bool
) -> tuple[list[float], list[float], list[int], list[float]]:
    """(start, end, size, idle before) of each batch of one replica whose requests come at `at_s`, ascending, or whose
    groups close then where it `gathers`."""
    n, most = len(at_s), rules.max_batch_size
    takes_s, hands_s = service.seconds(most)
    wake_s, asleep_s = service.wake_s, service.asleep_s
    free_s = [-np.inf] * rules.instances
    begun: list[float] = []
    ended: list[float] = []
    sizes: list[int] = []
    idle: list[float] = []
    first = 0
    while first < n:
        came_s, since_s = at_s[first], free_s[0]
        now_s = since_s if since_s > came_s else came_s
        end = first + 1
        if most > 1 and (gathers or since_s >= came_s):  # else an idle instance takes the first at once
            last = min(first + most, n)
            while end < last and at_s[end] <= now_s:
                end += 1
        size = end - first
        idle_s = now_s - since_s
        waking_s = wake_s if idle_s >= asleep_s else wake_s * idle_s / asleep_s  # service.woken, in the inmost loop
        done_s = now_s + (takes_s[size] + waking_s) * spread[len(begun)]
        heapq.heapreplace(free_s, done_s + hands_s[size])
        begun.append(now_s)
        ended.append(done_s)
        sizes.append(size)
        idle.append(idle_s)
        first = end
    return begun, ended, sizes, idle


def closing(at_s: list[float], most: int, delay_s: float) -> list[float]:
    """When the group of each request closes."""
    closing: list[float] = []
    first, n = 0, len(at_s)
    while first < n:
        until_s, end, last = at_s[first] + delay_s, first + 1, min(first + most, n)
        while end < last and at_s[end] <= until_s:
            end += 1
        closing += [at_s[end - 1] if end - first == most else until_s] * (end - first)
        first = end
    return closing
