"""The parts of the page Multi-model memory: the load plan, and what the run's charts are drawn from."""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from lab.measure import fleet_words, tenancy
from lab.measure.words import join
from lab.run import cassette, fit, footprints
from lab.run.fleet_bench import members, room_for
from lab.run.folder import RunFolder
from lab.serve import installation, repository
from lab.show.charts import fleet, fleet_memory
from lab.show.charts.figure import Chart
from lab.show.ui import chart, chore, guide, reads
from lab.show.ui.topic import Seen
from lab.spec import Experiment, Fleet

KINDS = ("digits", "embedder", "sleeper", "null")
MIB = 2**20


def form(experiment: Experiment) -> list[str]:
    """Which models, on which device, the budget, how unequally they are asked."""
    device, evict_to = _place()
    known = [kind for kind in KINDS if device == "cpu" or kind not in repository.CPU_ONLY]
    declared = [experiment.model.name, *(other.name for other in _fleet(experiment).others)]
    kinds = st.pills(
        "Models, copies of them in turn",
        known,
        selection_mode="multi",
        default=[name for name in declared if name in known],
        key=f"m_kinds_{device}" if device != "cpu" else "m_kinds",
        bind="query-params",
    ) or [experiment.model.name]
    left, right = st.columns(2, vertical_alignment="bottom")
    budget_mib = left.number_input(
        "Budget, MiB",
        0,
        1_000_000,
        0,
        50,
        key="m_budget",
        bind="query-params",
        help=f"0: as much as the first {_fleet(experiment).fit} of them take, as measured.",
    )
    zipf = right.select_slider(
        "Popularity (Zipf)",
        [0.0, 0.5, 1.0, 1.5, 2.0],
        value=experiment.workload.zipf_exponent,
        key="m_zipf",
        bind="query-params",
        help="0: all are asked alike. 1: the second half as often as the first, the third a third as often.",
    )
    first, *others = kinds
    there = {} if device == "cpu" else {"device": device}
    settings = [f"model.name={first}", f"fleet.others={json.dumps([{'name': name, **there} for name in others])}"]
    settings += ["model.device=gpu"] if there else []
    settings += [f"fleet.evict_to={evict_to}"] if evict_to != _fleet(experiment).evict_to else []
    settings += [f"fleet.budget_bytes={budget_mib * MIB}"] if budget_mib else []
    settings += [f"workload.zipf_exponent={zipf:g}"] if zipf != experiment.workload.zipf_exponent else []
    return settings


def foresight(asked: Experiment) -> None:
    """The load plan: what of these models would fit, before anything loads."""
    first_look = "run" not in st.query_params
    with st.expander("The load plan: what would fit", expanded=first_look, key="m_plan", on_change="rerun") as plan:
        if not plan.open:
            return
        chart.show(plan_of(asked), key="m_plan_chart", heading=False)
        kinds = [asked.model, *_fleet(asked).others]
        if (unknown := [spec.name for spec in fit.unknown(kinds)]) and not guide.hides("settings"):
            label = f"Load {join(unknown)} once and measure"
            device = asked.model.device
            command = ["fit", *unknown, *(["--device", device] if device != "cpu" else [])]
            chore.offer("fit", label, command, icon=":material/straighten:")


def _place() -> tuple[str, str]:
    """(device of all models, where evicted ones go); nothing is asked where there is no GPU."""
    if not installation.gpus():
        return "cpu", "disk"
    left, right = st.columns(2, vertical_alignment="bottom")
    device = left.segmented_control(
        "Device", ["cpu", "gpu"], default="cpu", required=True, key="m_device", bind="query-params"
    )
    if device == "cpu":
        return "cpu", "disk"
    evict_to = right.segmented_control(
        "Evict to",
        ["disk", "host"],
        default="disk",
        required=True,
        key="m_evict",
        bind="query-params",
        format_func={"disk": "disk", "host": "host memory"}.__getitem__,
        help="host memory: the driver moves what the model holds on the GPU there, and back when it is asked.",
    )
    return "gpu", str(evict_to)


def happened(seen: Seen) -> list[Chart]:
    found = seen.document["fleet"]
    return [fleet.throughput(found), fleet.waits(found), fleet_memory.waterfall(found), fleet.matrix(found)]


def cause(seen: Seen) -> str:
    """The rest of the story, after the headline, in sentences."""
    return "\n\n".join(fleet_words.besides(seen.document["fleet"]))


def why(seen: Seen) -> list[Chart]:
    return meanwhile(seen.folder)


def meanwhile(folder: RunFolder) -> list[Chart]:
    """Who is loaded, and what all of them take, from the start of the run until now."""
    events = folder.events()
    if not events:
        return []
    origin_ns, end_s = events[0]["t_ns"], (events[-1]["t_ns"] - events[0]["t_ns"]) / 1e9
    pairs = [e for e in events if e["kind"] == "pair"][:1]
    moments = [((e["start_ns"] - origin_ns) / 1e9, "pairs") for e in pairs]
    blocks = [e for e in events if e["kind"] == "block_start"]
    moments += [((e["start_ns"] - origin_ns) / 1e9, f"N={e['workload']['models']}") for e in blocks]
    budget = next((e["budget_bytes"] for e in events if e["kind"] == "fleet"), None)
    telemetry = folder.read("telemetry")
    t_s, size_bytes = tenancy.total(telemetry, origin_ns)
    stays = tenancy.stays(events, origin_ns)
    return [
        fleet_memory.tenancy(stays, end_s, moments),
        fleet_memory.course(
            t_s,
            size_bytes,
            budget,
            moments,
            tenancy.held(telemetry, events),
            stays,
            on_gpu=tenancy.is_on_gpu(telemetry),
        ),
    ]


def plan_of(asked: Experiment) -> Chart:
    """Of the most models that a run of this experiment, as it is set, asks for."""
    models = members(asked, max(cell.workload.models for cell in asked.cells()))
    predicted = [footprints.predicted_bytes(models[: n + 1]) for n in range(len(models))]
    source = ""
    if predicted[0] is None and models[0].device == "cpu":  # nothing was loaded here: by the recording, which says so
        predicted, source = _as_recorded([model.name for model in models])
    budget, known = _fleet(asked).budget_bytes, [size for size in predicted if size is not None]
    if budget is None and len(known) == len(predicted):  # what the run will take for one
        budget = room_for(known, _fleet(asked).fit)
    return fleet_memory.plan([model.name for model in models], predicted, budget, source)


def _as_recorded(names: Sequence[str]) -> tuple[list[int | None], str]:
    """(what they would take by the recorded run of many models, a sentence that says where that is from)."""
    recorded = cassette.of_experiment("multi_model")
    found = None if recorded is None else reads.document(RunFolder.open(recorded.run)).get("fleet")
    if recorded is None or not found:
        return [None] * len(names), ""
    sizes = footprints.as_filled([name.rpartition("_")[0] for name in names], found["filled"])
    return sizes, f"None was loaded here yet: sizes as predicted for the recorded run on {recorded.machine}."


def _fleet(experiment: Experiment) -> Fleet:
    assert experiment.fleet is not None  # noqa: S101  only asked for experiments that have one
    return experiment.fleet
