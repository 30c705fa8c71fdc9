"""From somebody else's model to requests for it: what its server says, what the user adds, and what nobody knows.

`plan` turns a description and the user's wishes into the model and workload of a run. Whatever it had to assume is in
`notes`, in sentences: the figures hold for requests like these, and for no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType

from lab.errors import InputError, ServerError
from lab.load.given import LARGEST_REQUEST, drawable, pool, read_shapes, request_bytes, requests
from lab.measure.words import format_count, join
from lab.serve.address import address
from lab.serve.described import DATATYPES as NAMES
from lab.serve.described import Described, Tensor, describe
from lab.serve.openai_server import OpenAIServer
from lab.serve.replicate_server import ReplicateServer
from lab.serve.repository import TENSORS
from lab.serve.torchserve_server import TorchServeServer
from lab.serve.triton import Server
from lab.spec import DATATYPES, Given, nearest, parse

SEQUENCE_LENGTH, OPEN_SEQUENCES = 8, 8
PROVIDERS = {"Modal": ".modal.run", "RunPod": ".runpod.ai"}
"""Whose deployments speak OpenAI's protocol, by the end of their host's name."""
LLM_INPUTS = {"text_input", "stream", "sampling_parameters"}


@dataclass(frozen=True)
class Wishes:
    """What the user says of a model's inputs. `shapes`: by input, with or without the batch dimension; `ranges`: of
    drawn values; `optional`: optional inputs that are to be sent; `batch`: items a request."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    data: str | None = None
    batch: int = 1
    optional: Sequence[str] = ()
    sequence_length: int | None = None

    @property
    def any(self) -> bool:
        return self != Wishes()


@dataclass(frozen=True)
class Plan:
    """`model` and `workload` as plain values for catalogue.single; `given` None: the lab knows this family, and asks it
    with the family's own data."""

    model: dict[str, Any]
    workload: dict[str, Any]
    given: Given | None
    notes: tuple[str, ...]


def plan(described: Described, wishes: Wishes, *, scheme: str = "grpc") -> Plan:
    """InputError in one line for wishes that do not fit, and for what is unknown and must be said."""
    family = None if wishes.any else family_of(described)
    batching = None if described.batching is None else described.batching.model_dump(exclude_unset=True)
    if family is not None:
        if family == "llm":
            return Plan({"name": described.name, "family": family}, {}, None, ())
        return Plan({"name": described.name, "family": family, "batching": batching}, {}, None, ())
    if described.decoupled and scheme == "http":
        raise InputError(
            f"model {described.name} may answer in several responses, which Triton's HTTP does not carry; "
            "allowed: grpc://HOST:PORT"
        )
    given = given_of(described, wishes)
    model = {"name": described.name, "family": "given", "batching": batching}
    return Plan(model, {"given": given.model_dump(exclude_unset=True)}, given, tuple(notes(described, wishes, given)))


def triton(url: str | None) -> Server:
    """The Triton at `url`, or the lab's own that runs already."""
    if url is not None:
        return Server.at(url)
    attached = Server.attach()
    if attached is None:
        raise ServerError("no Triton of the lab runs; start one with `python -m lab serve`, or give --url")
    return attached


def of_url(url: str, model: str, wishes: Wishes) -> Plan:
    """What to measure at somebody's server, whichever protocol it speaks. InputError, ServerError or ModelError in one
    line before anything is sent for measurement."""
    scheme = address(url).scheme
    if scheme in ("grpc", "http"):
        with Server.at(url) as server:
            found = plan(describe(server, model), wishes, scheme=scheme)
        return replace(found, workload={"protocol": scheme, **found.workload})
    bodies = Wishes(data=wishes.data) if scheme.startswith("torchserve") else Wishes()
    if wishes != bodies:
        raise InputError(
            f"--shape, --range, --data and the like describe the tensors of a Triton's model; {scheme}:// takes "
            f"{'prompts, or bodies by --data' if scheme.startswith('torchserve') else 'prompts, your own by --prompts'}"
        )
    if scheme.startswith("replicate"):
        with ReplicateServer(url):
            pass
        return Plan({"name": "llm"}, {"protocol": "replicate", "served_model": model}, None, (unverified("Replicate"),))
    if scheme.startswith("torchserve"):
        with TorchServeServer(url):
            pass
        told = ("TorchServe does not say what its handlers take: prompts are sent as JSON; --data has your bodies.",)
        if wishes.data is None:
            return Plan({"name": "llm"}, {"protocol": "torchserve", "served_model": model}, None, told)
        given = Given(inputs=(), data=str(Path(wishes.data).resolve()))
        said = ("The file's bodies are sent over and over: a cache would answer them.",)
        asked = {"protocol": "torchserve", "given": given.model_dump(exclude_unset=True)}
        return Plan({"name": model, "family": "given"}, asked, given, said)
    with OpenAIServer(url) as other:
        names = {state.name for state in other.states()}
    if model not in names:
        raise InputError(f"model {model!r}: the server at {url} has none of that name{nearest(model, names)}")
    told_of = tuple(unverified(name) for name, domain in PROVIDERS.items() if address(url).host.endswith(domain))
    return Plan({"name": "llm"}, {"protocol": "openai", "served_model": model}, None, told_of)


def unverified(provider: str) -> str:
    """What is said of a provider whose form of request was tested against its description only."""
    return f"{provider} is asked as its public description says; not verified against the live service."


def first_request(given: Given, seed: int = 0) -> dict[str, Any]:
    return requests(given, seed, 1)[0]


def family_of(described: Described) -> str | None:
    """The lab's family that has these very inputs, whose data is then sensible; None for a stranger."""
    names = {tensor.name for tensor in described.inputs}
    if described.decoupled and names >= LLM_INPUTS:
        return "llm"
    takes = [(t.name, t.datatype, t.dims) for t in described.inputs]
    for family, (inputs, _) in TENSORS.items():
        own = [(t.name, NAMES[DataType.Name(t.kind)], (t.length,)) for t in inputs]
        if family == described.name and takes == own and described.max_batch_size:
            return family
    return None


def given_of(described: Described, wishes: Wishes) -> Given:
    """The inputs as they are sent."""
    _refuse_unknown_names(described, wishes)
    if not 1 <= wishes.batch <= max(described.max_batch_size, 1):
        allowed = f"1 to {described.max_batch_size}" if described.max_batch_size else "1, as the model has no batches"
        raise InputError(f"--batch {wishes.batch}: model {described.name} takes {allowed}")
    if wishes.sequence_length is not None and not described.sequences:
        raise InputError(f"--sequence-length {wishes.sequence_length}: model {described.name} has no sequences")
    sent = [t for t in described.inputs if not t.optional or t.name in wishes.optional or t.name in wishes.shapes]
    of_file: dict[str, tuple[int, ...]] = {}
    if wishes.data is not None:
        of_file = read_shapes(Path(wishes.data), [t.name for t in described.inputs])
        sent += [t for t in described.inputs if t.optional and t.name in of_file and t not in sent]
    unknown = [t for t in sent if -1 in t.dims and t.name not in wishes.shapes and t.name not in of_file]
    if unknown:
        what = join([t.words() for t in unknown])
        how = " ".join(f"--shape {t.name}:{','.join('N' if d < 0 else str(d) for d in t.dims)}" for t in unknown)
        raise InputError(f'{what}: no server says how long "any" is; give {how}, or values by --data FILE.json')
    inputs = []
    for tensor in sent:
        if tensor.datatype not in DATATYPES:
            raise InputError(f"input {tensor.name} has the datatype {tensor.datatype}, which the lab cannot send")
        low, high = wishes.ranges.get(tensor.name, (None, None))
        shape = _shape(tensor, wishes, of_file)
        inputs.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "low": low, "high": high})
    length = (wishes.sequence_length or SEQUENCE_LENGTH) if described.sequences else None
    given = parse(
        Given,
        {
            "inputs": [{k: v for k, v in i.items() if v is not None} for i in inputs],
            "data": None if wishes.data is None else str(Path(wishes.data).resolve()),
            "decoupled": described.decoupled,
            "sequence_length": length,
            **({"open_sequences": min(OPEN_SEQUENCES, described.sequence_places)} if described.sequences else {}),
        },
    )
    if request_bytes(given) > LARGEST_REQUEST:
        shapes = join([f"{i.name} {list(i.shape)}" for i in given.inputs])
        raise InputError(f"a request of {shapes} is too large; allowed: {LARGEST_REQUEST // 8:,} values in all")
    return given


def _shape(tensor: Tensor, wishes: Wishes, of_file: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    batch = (wishes.batch,) if tensor.has_batch else ()
    if tensor.name in wishes.shapes:
        return batch + _chosen(tensor, wishes.shapes[tensor.name], wishes.batch)
    if -1 not in tensor.dims:
        return batch + tensor.dims
    return batch + _filled(tensor, of_file[tensor.name], wishes.data or "")


def _chosen(tensor: Tensor, asked: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """The user's dimensions without the batch's, which they may or may not have given."""
    dims = asked
    if tensor.has_batch and len(asked) == len(tensor.dims) + 1 and asked[0] == batch:
        dims = asked[1:]
    if len(dims) != len(tensor.dims) or any(d not in (-1, a) for d, a in zip(tensor.dims, dims, strict=True)):
        raise InputError(f"--shape {tensor.name}:{','.join(map(str, asked))}: the model takes {tensor.words()}")
    return dims


def _filled(tensor: Tensor, seen: tuple[int, ...], data: str) -> tuple[int, ...]:
    """Dimensions from what the data file's first request holds: its own shape, or a count where one is open."""
    for dims in (seen, seen[1:]):
        if len(dims) == len(tensor.dims) and all(d in (-1, a) for d, a in zip(tensor.dims, dims, strict=True)):
            return dims
    count = 1
    for n in seen:
        count *= n
    fixed = 1
    for d in tensor.dims:
        fixed *= d if d > 0 else 1
    if list(tensor.dims).count(-1) == 1 and fixed and count % fixed == 0:
        return tuple(count // fixed if d < 0 else d for d in tensor.dims)
    raise InputError(f"data {data!r}: {tensor.name} has the shape {list(seen)} there; the model takes {tensor.words()}")


def _refuse_unknown_names(described: Described, wishes: Wishes) -> None:
    names = [t.name for t in described.inputs]
    for option, given in (("--shape", wishes.shapes), ("--range", wishes.ranges), ("--with", wishes.optional)):
        for name in given:
            if name not in names:
                raise InputError(f"{option} {name}: model {described.name} has no such input{nearest(name, names)}")
    kinds = {t.name: t.datatype for t in described.inputs}
    for name, (low, high) in wishes.ranges.items():
        _refuse_range(name, kinds[name], low, high)


def _refuse_range(name: str, datatype: str, low: float, high: float) -> None:
    """InputError for a range from which no values of the datatype can be drawn."""
    asked = f"--range {name}:{low:g}:{high:g}"
    if low > high:
        raise InputError(f"{asked} ends before it begins; allowed: LOW:HIGH")
    if datatype not in DATATYPES:
        return  # said of the input, with or without a range
    within = drawable(datatype)
    if within is None:
        raise InputError(f"{asked}: {name} is {datatype}, which has no range; its values come from --data FILE.json")
    if not within[0] <= low <= high <= within[1]:
        raise InputError(f"{asked}: {name} is {datatype}; allowed: from {within[0]:g} to {within[1]:g}")


def notes(described: Described, wishes: Wishes, given: Given) -> list[str]:
    """What had to be assumed, in sentences."""
    said = []
    drawn = [i.name for i in given.inputs if wishes.data is None and i.name not in wishes.ranges]
    texts = [i.name for i in given.inputs if i.datatype == "BYTES"]
    numbers = [name for name in drawn if name not in texts]
    if numbers:
        said.append(
            f"Values of {join(numbers)} are drawn (floats from 0 to 1, whole numbers from 0 to 9): no server says "
            "which make sense. A model whose time depends on them needs --range NAME:LOW:HIGH or --data FILE.json."
        )
    if wishes.data is None and texts:
        said.append(f"Texts of {join(texts)} are English sentences, whatever the model expects; --data has your own.")
    count = pool(given)
    if wishes.data is not None:
        said.append("The file's requests are sent over and over: a response cache would answer them.")
    elif count < 1024:
        said.append(f"{format_count(count)} different requests are prepared (their size allows no more) and repeated.")
    left_out = [t.name for t in described.inputs if t.name not in {i.name for i in given.inputs}]
    if left_out:
        said.append(f"Optional inputs are left out: {join(left_out)}; --with NAME sends one.")
    if given.sequence_length is not None:
        how = "" if wishes.sequence_length else "; --sequence-length says otherwise"
        said.append(
            f"Sequences of {given.sequence_length} requests, {given.open_sequences} under way at a time{how}. "
            "Each sends its next once it has its answer. Their ids start at 1: nobody else may use the model meanwhile."
        )
    if given.decoupled:
        said.append("An answer counts once its last response is here; how many responses it had is not counted.")
    return said
