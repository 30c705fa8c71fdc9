"""What can be known to fail before anything starts is refused before there is a run folder.

A run that was refused after Triton came up leaves a failed run behind and costs its user the wait. Asks this machine
and the files that the experiment names; starts, fetches and writes nothing. What only a server can tell (that a model
does not load, that a download fails) is not known here.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from lab.errors import InputError, ServerError
from lab.load import prompt_file, schedule
from lab.measure.cold import METRIC as COLD_START
from lab.measure.samples import is_compared_by_sample
from lab.measure.summary import Summary
from lab.measure.words import join
from lab.run import devices
from lab.run.copies import served_as
from lab.serve import installation, record, repository, weights
from lab.serve.address import address
from lab.spec import Cell, Experiment, ModelSpec, Trace, Workload, nearest, plain

ONLY_FOR = {
    "sleep_s": ("sleeper",),
    "prompt_tokens": ("llm",),
    "output_tokens": ("llm",),
    "stream": ("llm",),
    "prompts": ("llm",),
}
"""Fields of a workload that only these families of models can use."""


def check(experiment: Experiment, url: str | None = None) -> None:
    """InputError when `experiment` cannot run as it is, ServerError when this machine cannot run a Triton of its own
    and none is given. `url` is somebody else's server, whose models and machine are not looked at."""
    if url is None:
        experiment, _ = devices.without_missing(experiment)
    _check_metrics(experiment)
    _check_objective(experiment)
    for cell in experiment.cells():
        asked = _asked(experiment, cell.workload, url)
        _check_given(cell)
        _check_workload(cell.workload, asked)
        if asked is None:
            _check_lengths(cell)
    if url is not None:
        if experiment.start is not None or experiment.serverless is not None:
            raise InputError("processes are started and ended, which only the lab itself can; leave out --url")
        if experiment.fleet is not None:
            raise InputError("a fleet is loaded and unloaded, which only the lab's own Triton allows; leave out --url")
        if experiment.rollout is not None:
            raise InputError("a rollout is rehearsed on servers of the lab's own; leave out --url")
        return
    fleet = () if experiment.fleet is None else experiment.fleet.others
    served = [own for cell in experiment.cells() if cell.workload.url is None for own in served_as(cell.model)]
    for model in [*fleet, *experiment.neighbours, *served]:
        check_model(model)
    if not served:
        return  # others' servers alone are asked
    if record.read() is None and (lacks := installation.missing()):
        raise ServerError("Triton cannot run here; it needs " + "; ".join(f"{what}: {how}" for what, how in lacks))


def _asked(experiment: Experiment, workload: Workload, url: str | None) -> str | None:
    """The URL of the server that a cell asks, None for the lab's own. Several servers are compared by levels of the
    workload, and asked by nothing else."""
    if workload.url is None:
        return url
    if url is not None or "workload" not in experiment.factors or experiment.model.family != "llm":
        raise InputError(
            f"workload.url {workload.url!r}: engines are compared by `lab engines --engine URL=MODEL`; allowed for one "
            "server: --url"
        )
    return workload.url


def check_model(model: ModelSpec) -> None:
    """InputError when this machine's own Triton could not serve `model`."""
    repository.check(model)
    if model.device == "gpu" and installation.gpus() == 0:
        raise InputError(f"model.device gpu of {model.name}: this machine has no NVIDIA GPU; allowed here: cpu")
    if model.family == "llm":
        weights.check(model)


def _check_metrics(experiment: Experiment) -> None:
    judge = experiment.judge
    figures = {field.name for field in dataclasses.fields(Summary)}
    for metric in () if judge is None else (judge.primary, *judge.metrics):
        if experiment.start is not None and metric == COLD_START:
            continue
        if metric not in figures and not is_compared_by_sample(metric):
            raise InputError(f"judge metric {metric!r}: no summary has such a figure{nearest(metric, figures)}")


def _check_given(cell: Cell) -> None:
    """A field of the workload that this family of models cannot use would be dropped without a word; one that was left
    to its default stands for nothing and is passed over."""
    workload, family = cell.workload, cell.model.family
    for field, families in ONLY_FOR.items():
        if field in workload.model_fields_set and family not in families:
            value = json.dumps(plain(getattr(workload, field)))
            raise InputError(
                f"workload.{field} {value} is given for family {family}; only family {join(families)} has it"
            )
    given = workload.given
    if given is not None and given.sequence_length is not None and workload.workers > 1:
        raise InputError(
            f"workload.workers {workload.workers} with sequences, whose requests must leave one process in their "
            "order; allowed: 1"
        )
    if (workload.given is not None) != (family == "given"):
        what = "lacks what it is asked" if workload.given is None else "is asked what the lab knows"
        raise InputError(f"workload.given: a model of family {family} {what}; family given has it, and only that")
    if workload.trace and (workload.protocol != "grpc" or family == "llm"):
        raise InputError(
            f"workload.trace with protocol {workload.protocol} and family {family}: traces are joined by the ids of "
            "single requests over gRPC; allowed: protocol grpc, a family other than llm"
        )
    if workload.protocol == "openai" and family != "llm":
        raise InputError(f"workload.protocol openai is given for family {family}; allowed: grpc or http")
    elsewhere = workload.url is not None or workload.protocol in ("openai", "torchserve", "replicate")
    if workload.served_model is not None and not elsewhere:
        raise InputError(
            f"workload.served_model {json.dumps(workload.served_model)} is given with protocol {workload.protocol}, "
            "where a model goes by model.name; only protocols openai, torchserve and replicate have it"
        )


def _check_objective(experiment: Experiment) -> None:
    """Times of tokens as limits on answers that have none: nothing could ever be late."""
    family = experiment.model.family
    for field in ("ttft_s", "itl_s"):
        limit = getattr(experiment.slo, field)
        if limit is not None and family != "llm":
            raise InputError(
                f"slo.{field} {limit:g} is given for family {family}, whose answers have no tokens; allowed: latency_s"
            )
        if limit is not None and not experiment.workload.stream:
            raise InputError(
                f"slo.{field} {limit:g} is given with workload.stream false, where an answer comes whole; allowed: "
                "latency_s"
            )


def _check_workload(workload: Workload, url: str | None) -> None:
    arrival = workload.arrival
    if isinstance(arrival, Trace) or getattr(arrival, "rate_rps", None) is not None:
        schedule.chunks(arrival, workload.duration_s, workload.seed)  # reads a trace, refuses a rate; draws nothing yet
    if workload.prompts is not None:
        prompt_file.read(Path(workload.prompts))
    if workload.trace and url is not None:
        raise InputError(
            "workload.trace with --url: where Triton writes its traces is told at its start; leave out --url"
        )
    spoken = "triton" if url is None else address(url).scheme.partition("+")[0]
    for protocol in ("openai", "torchserve", "replicate"):
        if workload.protocol == protocol and spoken != protocol:
            raise InputError(
                f"workload.protocol {protocol}: Triton does not speak it; allowed: grpc or http, or the --url of a "
                f"server that does, as {protocol}+http://HOST:PORT"
            )
        if spoken == protocol and workload.protocol != protocol:
            raise InputError(f"workload.protocol {workload.protocol}: the server at {url} speaks {protocol}")


def _check_lengths(cell: Cell) -> None:
    """A language model turns away what is longer than a slot of its cache: then every such request would fail."""
    if cell.model.family != "llm":
        return
    prompt, output = (
        lengths if isinstance(lengths, int) else lengths[1]
        for lengths in (cell.workload.prompt_tokens, cell.workload.output_tokens)
    )
    if prompt + output > cell.model.max_request_tokens:
        raise InputError(
            f"workload.prompt_tokens {prompt} and output_tokens {output} are more than model.max_request_tokens "
            f"{cell.model.max_request_tokens} together; allowed: up to {cell.model.max_request_tokens}"
        )
