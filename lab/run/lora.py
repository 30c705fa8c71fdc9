"""Before an experiment with adapters is measured: each is loaded while the base serves, and examined.

    base       loaded and asked: what it takes, how long it took
    adapters   one by one, without a reload: how long each takes, and what the process holds then
    copies     where a level merges them: one model each
    lessons    what base, adapter and copy answer to questions that the adapter was not taught

All of it are events (lora_base, lora_adapter, lora_copy, lora_lesson); lab/measure/lora.py makes sense of them. The
blocks that follow are those of every experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lab import stopping
from lab.errors import RunError
from lab.measure.footprint import Footprint, copies, together
from lab.measure.words import format_bytes
from lab.run.bench import Bench
from lab.run.conversation import request, stream
from lab.run.copies import served_as
from lab.run.formats import ADAPTER_BYTES
from lab.run.parked import spare_bytes
from lab.serve import adapters, compiled, weights
from lab.serve.lora.lessons import Lesson, asked_as, lessons
from lab.serve.triton import Server
from lab.spec import Experiment, ModelSpec, set_paths
from lab.watch import smaps
from lab.watch.host import model_processes

ANSWER_TOKENS = 24
AT_ONCE = 8
Report = Callable[[str], None]


def examine(bench: Bench, experiment: Experiment, report: Report) -> None:
    """Nothing where no level has adapters, or the server is not the lab's own."""
    specs = [cell.model for cell in experiment.cells() if cell.model.adapters]
    adapted = next((spec for spec in specs if not spec.merge_adapters), None)
    server = bench.server
    if adapted is None or not isinstance(server, Server) or server.managed is None:
        return
    for spec in specs:
        weights.prepare(spec)  # the copies too
    base = set_paths(adapted, [("adapters", [])])
    answers = {name: _Answers(lesson) for name, lesson in lessons().items() if name in adapted.adapter_names}
    _base(bench, server, base, answers)
    _adapters(bench, server, adapted, answers, report)
    merged = next((spec for spec in specs if spec.merge_adapters), None)
    if merged is not None:
        _copies(bench, server, merged, answers, report)
    for name, found in answers.items():
        bench.folder.event("lora_lesson", name=name, **found.told())


class _Answers:
    """To the questions of one lesson, by who answered."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.by: dict[str, list[str]] = {}

    def ask(self, who: str, server: Server, model: str, adapter: str | None) -> None:
        sampling: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "temperature": 0.0}
        if adapter is not None:
            sampling |= {"lora_name": adapter}
        with ThreadPoolExecutor(AT_ONCE) as users:
            self.by[who] = list(users.map(lambda asked: _text(server, model, asked[0], sampling), self.lesson.asked))

    def told(self) -> dict[str, object]:
        return {
            "title": self.lesson.title,
            "teaches": self.lesson.teaches,
            "questions": [question for question, _ in self.lesson.asked],
            "answers": self.by,
            "passed": {who: self.lesson.passed(answers) for who, answers in self.by.items()},
        }


def _base(bench: Bench, server: Server, base: ModelSpec, answers: dict[str, _Answers]) -> None:
    load_s = compiled.load(server, base)  # all that follows is told beside its memory
    bench.in_force(base)
    for found in answers.values():
        found.ask("base", server, base.name, None)
    bench.folder.event("lora_base", model=base.name, load_s=load_s, process_bytes=_alone(server, base.name))


def _adapters(bench: Bench, server: Server, adapted: ModelSpec, answers: dict[str, _Answers], report: Report) -> None:
    sizes = adapters.elements(adapted)
    for number, name in enumerate(adapted.adapter_names, start=1):
        stopping.check()
        report(f"adapter {number} of {len(adapted.adapters)}: {name}")
        told = adapters.update(server, set_paths(adapted, [("adapters", list(adapted.adapters[:number]))]))
        if name in answers:
            answers[name].ask("adapter", server, adapted.name, name)
        bench.folder.event(
            "lora_adapter",
            name=name,
            bytes=told["loaded"].get(name),
            predicted_bytes=ADAPTER_BYTES * sizes[name],
            load_s=told["load_s"].get(name),
            process_bytes=_alone(server, adapted.name),
        )


def _copies(bench: Bench, server: Server, merged: ModelSpec, answers: dict[str, _Answers], report: Report) -> None:
    """`predicted_bytes`: of all until then, from the first."""
    own: list[Footprint] = []
    for number, (name, copy) in enumerate(zip(merged.adapter_names, served_as(merged), strict=True), start=1):
        stopping.check()
        report(f"full copy {number} of {len(merged.adapters)}: {name}")
        load_s = server.load(copy)
        bench.in_force(copy)
        if name in answers:
            answers[name].ask("copy", server, copy.name, None)
        found = _footprint(server, copy.name)
        own += [] if found is None else [found]
        if number == 1 and found is not None:
            _check_room(found, len(merged.adapters))
        bench.folder.event(
            "lora_copy",
            name=name,
            load_s=load_s,
            total_bytes=together(own) if len(own) == number else None,
            predicted_bytes=together(copies(own[0], number)) if own else None,
        )


def _check_room(first: Footprint, count: int) -> None:
    """RunError where as many copies as are wanted would not fit beside each other, before the machine is out of
    memory."""
    rest = together(copies(first, count)) - together(copies(first, 1))
    if rest > spare_bytes():
        raise RunError(
            f"{count - 1} more full copies take {format_bytes(rest)}, and {format_bytes(spare_bytes())} of this "
            "machine's memory can be taken; allowed: fewer adapters"
        )


def _text(server: Server, model: str, question: str, sampling: dict[str, float]) -> str:
    return "".join(piece.text for piece in stream(server.grpc_url, model, request(asked_as(question), sampling)))


def _footprint(server: Server, model: str) -> Footprint | None:
    pids: Sequence[int] = () if server.pid is None else model_processes(server.pid).get(model, ())
    return smaps.footprint(pids) if pids else None


def _alone(server: Server, model: str) -> int | None:
    found = _footprint(server, model)
    return None if found is None else found.alone_bytes
