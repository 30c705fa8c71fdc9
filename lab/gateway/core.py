"""One request's way through the gateway: which version and replica, whether there is room, until when, how it ended.

    passage = gateway.enter("llm", key=…, asked=…, timeout_s=…, request_id=…)     Refusal: unknown, full
    await gateway.hold(passage)                                                   where a budget decides what is loaded
    …the upstream of passage.replica is asked…
    passage.end(OK)                                                               exactly once counts; more do nothing

Every request that enters ends, in one outcome; `entered` minus the ended ones are in flight. Shadow copies go the same
way and are counted apart. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.errors import InputError, LabError
from lab.gateway.metrics import Metrics
from lab.gateway.openai import OpenAIUpstream
from lab.gateway.passage import Passage
from lab.gateway.refusals import Refusal, of_residency, wrong
from lab.gateway.shadows import Shadows
from lab.gateway.triton import TritonUpstream
from lab.measure.records import CANCELLED, OK, OUTCOMES, REFUSED
from lab.serve import record
from lab.serve.eviction import Refused
from lab.serve.residency import Residency
from lab.spec import nearest
from lab.track.canary import Ended
from lab.track.routes import WATCH_S, Routes
from lab.track.routing import LAB, Balancer, Route, Version, choose

Upstream = TritonUpstream | OpenAIUpstream

REMEMBERED = 20_000
"""Requests whose version is kept for a score that comes later."""


@dataclass(frozen=True)
class Settings:
    """`timeout_s` is the longest that a request may ask for and what it gets unless it asks; `max_in_flight` of one
    replica, above which requests are refused at once; `body_limit_bytes` of one request."""

    timeout_s: float = 600.0
    max_in_flight: int = 256
    body_limit_bytes: int = 4 * 2**20


class Gateway:
    """For one event loop: `open` and `close` it there."""

    def __init__(
        self, routes: Routes, settings: Settings = Settings(), *, residency: Residency | None = None, seed: int = 0
    ) -> None:
        self.routes, self.settings, self.residency = routes, settings, residency
        self.metrics = Metrics()
        self.entered = 0
        self.in_flight: Counter[tuple[str, str]] = Counter()  # by route and version
        self.problem: str | None = None  # of the routes' file; the last ones that could be read stay in force
        self.absent: str | None = None  # why the lab's Triton is not there
        self._dice = random.Random(seed)  # noqa: S311  who gets which version is no secret
        self._balancer = Balancer(self._dice)
        self._upstreams: dict[str, Upstream] = {}
        self._lab: str | None = None  # where the lab's own Triton listens now
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, list[Ended]] = {}
        self._remembered: OrderedDict[str, tuple[str, str, float | None, str | None]] = OrderedDict()
        self._shadows = Shadows(self)
        self._lab_told = record.path()  # looked at twenty times a second
        self._lab_seen: tuple[int, int] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._watch = asyncio.create_task(self._watch_routes())
        self._find_lab()
        urls = {r.url for route in self.routes.by_name.values() for v in route.versions for r in v.replicas}
        for url in urls:
            with suppress(Refusal):  # it may come later
                await self.upstream(url)

    async def close(self) -> None:
        await self._shadows.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        for upstream in self._upstreams.values():
            await upstream.close()

    async def upstream(self, url: str) -> Upstream:
        """The connection to that server; made at first use, kept. Refusal when it is the lab's and does not run."""
        if url == LAB:
            if self._lab is None:
                why = self.absent or "the lab's Triton does not run; start it with `lab serve`"
                raise Refusal(503, why, code="unavailable")
            url = self._lab
        found = self._upstreams.get(url)
        if found is not None and url not in self._opening:
            return found
        if url not in self._opening:
            made: Upstream = TritonUpstream(url) if url.startswith("grpc://") else OpenAIUpstream(url)
            self._upstreams[url] = made
            self._opening[url] = asyncio.ensure_future(made.open())
            self._opening[url].add_done_callback(lambda _: self._opening.pop(url, None))
        await asyncio.shield(self._opening[url])
        return self._upstreams[url]

    # --- a request ----------------------------------------------------------------------------------------------

    def route(self, model: str) -> Route:
        found = self.routes.by_name.get(model)
        if found is None:
            raise wrong(
                f"model {model!r}: there is none{nearest(model, self.routes.by_name)}",
                "model",
                code="model_not_found",
                status=404,
            )
        return found

    def enter(self, model: str, *, key: str | None, asked: str | None, timeout_s: float, request_id: str) -> Passage:
        """Count the request in, bound for one replica of one version. Refusal for what there is not, and where
        `max_in_flight` requests are under way already."""
        route = self.route(model)
        try:
            version, share = choose(route, key, asked, self._dice)
        except InputError as error:
            raise wrong(str(error), "X-Model-Version", code="version_not_found", status=404) from None
        user = None if share is None or key is None else hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        return self._admit(route, version, share, request_id, min(timeout_s, self.settings.timeout_s), user=user)

    async def hold(self, passage: Passage) -> None:
        """Wait until the model is loaded, where a budget decides that; it stays until the passage ends."""
        residency = self.residency
        name = passage.replica.model
        if residency is None or passage.replica.url != LAB or name not in residency.places():
            return  # one that was deployed beside them is not the budget's
        if not residency.hit(name):
            try:
                async with asyncio.timeout(passage.timeout_s):
                    await residency.acquire(name)
            except Refused as refused:
                raise of_residency(refused) from None
            except TimeoutError:
                raise Refusal(503, f"model {name} was not loaded in time", code="too_late") from None
        passage.held = partial(residency.release, name)

    def mirror(self, passage: Passage) -> None:
        """Ask the version that shadows this route the same, if there is one (lab/gateway/shadows.py)."""
        mirror, asking = passage.route.mirror, passage.asking
        if mirror is None or asking is None or mirror.version == passage.version.version:
            return
        if mirror.fraction < 1 and self._dice.random() >= mirror.fraction:
            return
        self._shadows.mirror(passage, mirror.version, asking)

    def copied(self, passage: Passage, version: str) -> Passage:
        """The way of a copy of this request to another version. Refusal where there is no room for it."""
        route = passage.route
        return self._admit(route, route.version(version), None, f"{passage.id}-shadow", passage.timeout_s, shadow=True)

    def score(self, request_id: str, score: float) -> None:
        """How good the answer to a request was, 0 to 1, by whoever can tell. Refusal for one that is not remembered."""
        found = self._remembered.pop(request_id, None)
        if found is None:
            raise wrong(f"id {request_id!r}: no such request, or one of long ago", "id", code="not_found", status=404)
        model, version, share, user = found
        self._ended.setdefault(model, []).append(Ended(version, share, None, 0.0, score, user))
        self.metrics.scores.observe((model, version), score)

    def take_ended(self) -> dict[str, list[Ended]]:
        """What ended since the last call, by route."""
        taken, self._ended = self._ended, {}
        return taken

    # --- inside -------------------------------------------------------------------------------------------------

    def _admit(
        self,
        route: Route,
        version: Version,
        share: float | None,
        request_id: str,
        timeout_s: float,
        *,
        user: str | None = None,
        shadow: bool = False,
    ) -> Passage:
        replica = self._balancer.pick(route, version)
        outstanding = self._balancer.outstanding
        if outstanding.get(replica, 0) >= self.settings.max_in_flight:
            if not shadow:
                self.metrics.requests.add((route.model, version.version, OUTCOMES[REFUSED]))
                self.note(route.model, Ended(version.version, share, REFUSED, 0.0, user=user))
            raise Refusal(
                429,
                f"{self.settings.max_in_flight} requests are under way for {replica.model}, the most that may",
                code="queue_full",
            )
        outstanding[replica] = outstanding.get(replica, 0) + 1
        self.in_flight[route.model, version.version] += 1
        self.entered += 1
        return Passage(self._left, route, version, replica, share, request_id, timeout_s, user=user, shadow=shadow)

    def _left(self, passage: Passage, outcome: int | None) -> None:
        model, version, replica = passage.route.model, passage.version.version, passage.replica
        left = self._balancer.outstanding[replica] - 1
        if left:
            self._balancer.outstanding[replica] = left
        else:
            del self._balancer.outstanding[replica]
        self.in_flight[model, version] -= 1
        if passage.held is not None:
            passage.held()
        if outcome is not None and outcome != CANCELLED and len(passage.version.replicas) > 1:
            self._balancer.ended(replica, well=outcome == OK)
        if passage.shadow:
            return
        now_ns = time.perf_counter_ns()
        seconds = (now_ns - passage.began_ns) / 1e9
        metrics = self.metrics
        metrics.requests.add((model, version, "invalid" if outcome is None else OUTCOMES[outcome]))
        if outcome is None:
            self._shadows.doubt(passage)
            return
        if passage.tokens:
            metrics.tokens.add((model, version), passage.tokens)
        if outcome == OK:
            metrics.latency.observe((model, version), seconds)
            if passage.first_ns is not None:
                metrics.first.observe((model, version), (passage.first_ns - passage.began_ns) / 1e9)
        self.note(model, Ended(version, passage.share, outcome, seconds, user=passage.user))
        self._remembered[passage.id] = (model, version, passage.share, passage.user)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)

    def note(self, model: str, ended: Ended) -> None:
        """For who looks at what ended (`take_ended`)."""
        kept = self._ended.setdefault(model, [])
        kept.append(ended)
        if len(kept) > REMEMBERED:  # nobody takes them
            del kept[: REMEMBERED // 2]

    async def _watch_routes(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                self.routes.refresh()
                self._find_lab()
                self.problem = None
            except (LabError, OSError) as error:  # of no file left to open, too: it must not stay deaf to a rollback
                self.problem = str(error)

    def _find_lab(self) -> None:
        """Where the lab's Triton listens: it may have been started anew, on other ports."""
        try:
            status = self._lab_told.stat()
            seen = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        if seen != self._lab_seen:
            self._lab_seen = seen
            found = record.read()
            # A run's own is nobody else's.
            self._lab = f"grpc://127.0.0.1:{found.grpc_port}" if found is not None and found.run is None else None

    def told(self) -> dict[str, Any]:
        """The routes in force, and what is under way by version."""
        return {
            "entered": self.entered,
            "in_flight": sum(self.in_flight.values()),
            "problem": self.problem or self.absent,
            "routes": {
                name: {
                    **route.model_dump(mode="json"),
                    "in_flight": {v.version: self.in_flight[name, v.version] for v in route.versions},
                    "left_out": [
                        f"{replica.model} at {replica.url}"
                        for v in route.versions
                        for replica in v.replicas
                        if self._balancer.left_out(replica)
                    ],
                }
                for name, route in self.routes.by_name.items()
            },
        }
