"""What a report says: claim, verdict, method, validity, environment, charts with their data, cost, how to measure it
again, hashes, and the questions of a sceptical reviewer. Its form is report_html.py's and report_markdown.py's.

A report of several runs takes the first as the baseline of the others. Everything is read from the run folders; no
figure is made here.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lab.measure import cost
from lab.measure.answers import all_equal
from lab.measure.cost import Use
from lab.measure.cost_words import price_label, sentence
from lab.measure.prices import Price
from lab.measure.redteam import Question, questions, waive
from lab.measure.sides import MOST, Side, differences, labels, value_label
from lab.measure.versus import versus
from lab.measure.words import format_metric, level_label, metric_label, objective_label, plural
from lab.run import format_text, prices, results
from lab.run import sides as stored
from lab.run import waivers as kept
from lab.run.folder import RunFolder
from lab.run.sides import Name
from lab.run.text import COLUMNS, TOKEN_COLUMNS, as_drawn
from lab.show import pooled
from lab.show.charts import batching, levels
from lab.show.charts.cost import Point, by_load
from lab.show.charts.distribution import ecdf
from lab.show.charts.figure import Chart
from lab.show.charts.latency import percentiles
from lab.show.grid import ALONE, Grid
from lab.show.own_charts import own_charts
from lab.spec import LLM_FIELDS, Slo, parse

LEFT_OUT = "left out here, in the table of figures above"
HASHED = ("run.json", "events.jsonl", "requests-*.arrows", "telemetry.arrows", "server.arrows")


@dataclass(frozen=True)
class Table:
    """Columns by header; cells are text or numbers, None where nothing is known."""

    columns: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Code:
    text: str


Block = str | Table | Code | Chart | Question
"""A paragraph, or one of the things that need a form of their own."""


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[Block]


@dataclass(frozen=True)
class Report:
    """`claim` is what the report is to show, in the words of who asks; `verdict` what the measurement says to it."""

    title: str
    claim: str
    verdict: str
    runs: tuple[str, ...]
    sections: list[Section] = field(default_factory=list)

    @property
    def open_questions(self) -> int:
        return sum(b.status == "open" for s in self.sections for b in s.blocks if isinstance(b, Question))


def report(
    names: Sequence[Name],
    *,
    claim: str | None = None,
    price: Price | None = None,
    use: Use | None = None,
    waivers: Mapping[str, str] | None = None,
) -> Report:
    """The report on these runs, one to six. `waivers` answer open questions of the first, {code: who and why}, besides
    those that each run keeps (lab/run/waivers.py).
    FolderError for a run that cannot be read, InputError for a waiver of what is not asked."""
    folders = [RunFolder.open(name.run_id) for name in names[:MOST]]
    documents = [results.document(folder) for folder in folders]
    first = documents[0]
    sections: list[Section] = []
    verdict = first["verdict"]["text"] or "This run judges nothing: it shows figures."
    if len(names) > 1:
        compared = _compared(names, documents)
        verdict, sections = compared.title, [Section("The runs beside each other", compared.blocks)]
    for n, (folder, document) in enumerate(zip(folders, documents, strict=True)):
        of = f" of {folder.run_id}" if len(folders) > 1 else ""
        sections += _of_run(folder, document, price, use or Use(), of)
        caveats = _caveats(folder, document, price, use or Use())
        asked = questions(document, folder.document["experiment"], caveats)
        asked = waive(asked, {**kept.told(folder, asked), **(waivers or {} if n == 0 else {})})
        sections.append(Section(f"What a reviewer would ask{of}", list(asked)))
        sections.append(Section(f"Run it again{of}", [Code(_command(folder)), _hashes(folder)]))
    experiment = folders[0].document["experiment"]
    title = f"{experiment.get('title') or experiment['id']} on {experiment['model']['name']}"
    title += " (recorded elsewhere)" if folders[0].document.get("recorded") else ""
    said = claim or str(experiment["hypothesis"])
    return Report(title, said, verdict, tuple(folder.run_id for folder in folders), sections)


# --- one run -------------------------------------------------------------------------------------------------------


def _of_run(folder: RunFolder, document: dict[str, Any], price: Price | None, use: Use, of: str) -> list[Section]:
    experiment = folder.document["experiment"]
    judge = experiment["judge"]
    slo = parse(Slo, experiment["slo"])
    grid = Grid.of(document, judge and judge["factor"], judge and judge["baseline"])
    what = [str(experiment["question"])]
    if of:
        what.append(document["verdict"]["text"])
    if document["answers"] and (same := all_equal(document["answers"])):
        what.append(same)
    offered = as_drawn(document)
    sections = [
        Section(f"Method{of}", [*what, *_method(experiment, slo, folder), _declared(experiment)]),
        Section(
            f"Figures{of}",
            [_figures(document), *([offered] if offered else []), *_charts(folder, document, grid, slo)],
        ),
    ]
    if formats := format_text.lines(document):
        sections.append(Section(f"Memory and quality of each format{of}", [Code("\n".join(formats).strip())]))
    if price is not None and grid.levels:
        sections.append(Section(f"Cost at the objective{of}", _cost(folder, document, grid, price, use, slo)))
    doubts = [f"{_where(p)}{p['text']} {p['remedy']}".strip() for p in document["problems"]]
    sections.append(Section(f"What makes it doubtful{of}", list(doubts) or ["Nothing that the lab looks for."]))
    sections.append(Section(f"Where it was measured{of}", [_environment(document["environment"])]))
    return sections


def _method(experiment: Mapping[str, Any], slo: Slo, folder: RunFolder) -> list[Block]:
    repeats = experiment["repeats"]
    return [
        f"{plural(len(folder.document['cells']), 'cell')}, {plural(repeats, 'repeat')} of each, settings that are "
        "compared side by side and in alternating order, all with the same requests. Latency counts from the scheduled "
        "arrival; failed requests enter neither latency nor throughput; percentiles are linear and withheld below the "
        "number of successes that can support them.",
        f"The objective: {objective_label(slo)}, for {100 * slo.percentile:g} % of the requests.",
    ]


def _declared(experiment: Mapping[str, Any]) -> Table:
    """The fields that were set, and what was varied; what a factor overrules is not said as if it were constant."""
    factors = experiment["factors"]
    overruled = set(factors)
    for path, found in factors.items():
        overruled |= {f"{path}.{name}" for level in found if isinstance(level, dict) for name in level}
    family = experiment["model"]["family"]
    unused = [] if family == "llm" else [*LLM_FIELDS, "prompt_tokens", "output_tokens", "stream"]
    unused += [] if family == "sleeper" else ["sleep_s"]
    told = {f"{path} (varied)": "; ".join(level_label(path, v) for v in found) for path, found in factors.items()}
    for part in ("model", "workload"):
        for name, value in experiment[part].items():
            if name not in unused:
                told |= _fields(f"{part}.{name}", value, overruled)
    return Table({"field": list(told), "value": list(told.values())})


def _fields(path: str, value: Any, overruled: Container[str]) -> dict[str, str]:
    """A row for each field that is set, of an object for each of its own, under the path by which `--set` knows it."""
    if value in (None, [], {}) or path in overruled:
        return {}
    if isinstance(value, dict):
        rows: dict[str, str] = {}
        for name, inner in value.items():
            rows |= _fields(f"{path}.{name}", inner, overruled)
        return rows
    return {path: _value(value)}


def _value(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{name} {_value(inner)}" for name, inner in value.items() if inner not in (None, [], {}))
        case list():
            apart = "; " if any(isinstance(inner, dict | list) for inner in value) else ", "
            return apart.join(_value(inner) for inner in value)
        case str():
            return value
        case _:
            return json.dumps(value)


def _figures(document: Mapping[str, Any]) -> Table:
    generated = any(cell["summary"].get("output_tokens_per_s") is not None for cell in document["cells"])
    wanted = TOKEN_COLUMNS if generated else COLUMNS
    columns: dict[str, list[Any]] = {"cell": [], "repeat": [], **{name: [] for name in wanted}}
    for cell in document["cells"]:
        levels_ = [level_label(path, level) for path, level in cell["factors"].items()] or ["as it is"]
        columns["cell"].append(f"saturation: {levels_[-1]}" if cell["role"] == "saturation" else ", ".join(levels_))
        columns["repeat"].append(cell["repeat"] + 1)
        for name, metric in wanted.items():
            columns[name].append(format_metric(metric, cell["summary"].get(metric)))
    return Table(columns)


def _charts(folder: RunFolder, document: dict[str, Any], grid: Grid, slo: Slo) -> list[Chart]:
    """The curve, the distribution and where time went, at the load that decides."""
    if not grid.levels:
        return []
    experiment = folder.document["experiment"]
    judge = experiment["judge"]
    factor = judge["factor"] if judge else None
    primary = judge["primary"] if judge else "goodput_rps"
    load = grid.highest(grid.comparable(document, primary) or grid.loads)
    told = grid.headline(document, judge)[0] if judge and grid.others() else None
    shown = grid.few(told) if judge else grid.levels[:4]
    latencies = pooled.latencies(folder, factor, load, shown)
    spread = percentiles(latencies, grid.baseline, slo.latency_s, load)
    charts = [replace(spread, notes=(*spread.notes, *grid.left_out(shown, LEFT_OUT)))]
    if judge:
        pair = (grid.baseline, told or grid.levels[-1])
        charts.insert(0, batching.throughput_latency(grid, pair, slo.latency_s))
        if path := next(iter(grid.factors), None):
            charts.insert(0, levels.by_load(grid, document, primary, path, load, told))
        label = metric_label(primary)
        charts.append(levels.effects(document, grid, primary, f"{label[0].upper()}{label[1:]} against {grid.baseline}"))
    else:
        charts.append(ecdf(latencies, slo.latency_s))
    return [*own_charts(document), *charts, batching.where_time_goes(grid, load)]


def _cost(folder: RunFolder, document: dict[str, Any], grid: Grid, price: Price, use: Use, slo: Slo) -> list[Block]:
    judge = folder.document["experiment"]["judge"]
    shown = grid.few(grid.headline(document, judge)[0] if grid.others() else None) if judge else grid.levels[:4]
    points: dict[str, list[Point]] = {}
    told: list[Block] = [f"Priced as {price_label(price)}; source: {price.source}; certainty {price.certainty}."]
    for level in shown:
        for load in grid.loads:
            summary = cost.typical(grid.at(level, load))
            if summary is None:
                continue
            found = cost.cost(summary, price, use)
            attained = summary.get("slo_attainment_fraction")
            good = summary.get("good_tokens_per_s") if found.counts_tokens else summary.get("goodput_rps")
            met = None if attained is None else attained >= slo.percentile
            points.setdefault(level, []).append(Point(load, good, found, met))
            if len(grid.levels) == len(grid.loads) == 1:
                told.append(sentence(found, slo, attained))
    chart = by_load(points, grid.baseline, f"within {objective_label(slo)}")
    return [
        *told,
        *_caveats(folder, document, price, use),
        replace(chart, notes=(*chart.notes, *grid.left_out(shown, LEFT_OUT))),
    ]


def _caveats(folder: RunFolder, document: Mapping[str, Any], price: Price | None, use: Use) -> tuple[str, ...]:
    if price is None:
        return ()
    device = folder.document["experiment"]["model"].get("device", "cpu")
    return cost.caveats(price, use, cost.fit(price, document["environment"], device), today=prices.today())


def _environment(environment: Mapping[str, Any]) -> Table:
    flat: dict[str, Any] = {}
    for name, value in environment.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    known = {name: value for name, value in flat.items() if value not in (None, {}, [])}
    return Table({"what": list(known), "value": [str(value) for value in known.values()]})


def _command(folder: RunFolder) -> str:
    """The command that measures the same again, on the same kind of machine."""
    experiment, settings = folder.document["experiment"], folder.document.get("settings") or []
    words = ["python", "-m", "lab"]
    if experiment["id"] == "load":
        arrival, workload = experiment["workload"]["arrival"], experiment["workload"]
        words += ["load", "--model", experiment["model"]["name"]]
        if folder.document.get("url"):
            words += ["--url", folder.document["url"]]
        words += ["--concurrency", str(arrival["concurrency"])] if arrival["kind"] == "closed" else []
        words += ["--rate", f"{arrival['rate_rps']:g}"] if arrival.get("rate_rps") else []
        words += ["--duration", f"{workload['duration_s']:g}", "--warmup", f"{workload['warmup_s']:g}"]
        if experiment["model"]["family"] == "llm":
            for option, name in (("--prompt-tokens", "prompt_tokens"), ("--output-tokens", "output_tokens")):
                lengths = workload[name]
                words += [option, "-".join(map(str, lengths)) if isinstance(lengths, list) else str(lengths)]
    else:
        words += ["run", str(experiment["id"])]
        words += ["--quick"] if folder.document.get("quick") else ["--repeats", str(experiment["repeats"])]
    for setting in settings:
        words += ["--set", str(setting)]
    return shlex.join(words)


def _hashes(folder: RunFolder) -> Table:
    """SHA-256 of the files that every figure is computed from."""
    files = [path for pattern in HASHED for path in sorted(folder.path.glob(pattern)) if path.is_file()]
    sums = []
    for path in files:
        with path.open("rb") as file:
            sums.append(hashlib.file_digest(file, "sha256").hexdigest())
    return Table({"file": [path.name for path in files], "SHA-256": sums})


def _where(problem: Mapping[str, Any]) -> str:
    return f"{problem['blocks']} blocks, the first: " if problem.get("blocks") else ""


# --- several runs ---------------------------------------------------------------------------------------------------


def _compared(names: Sequence[Name], documents: Sequence[dict[str, Any]]) -> Section:
    """The headline of the first two as the title, then every comparison with the first, what differs, and the
    distribution."""
    found: list[Side] = []
    like: dict[str, Any] | None = None
    for name, document in zip(names, documents, strict=False):
        found.append(stored.side(name, document, like=like))
        like = like or stored.cells(RunFolder.open(name.run_id))[found[0].cell]
    called = labels(found)
    every = [versus(found[0], other, called[0], label) for other, label in zip(found[1:], called[1:], strict=True)]
    differing = [d for d in differences(found) if d.differs]
    table = {"field": [d.path for d in differing]}
    table |= {label: [value_label(d.path, d.values[n], d.values) for d in differing] for n, label in enumerate(called)}
    blocks: list[Block] = [v.text for v in every[1:]]
    blocks += list(dict.fromkeys(text for v in every for text in (*v.forbids, *v.read_with)))
    latencies = {label: pooled.of_blocks(side.blocks) for label, side in zip(called, found, strict=True)}
    chart = percentiles(latencies, called[0], found[0].slo.latency_s, ALONE)
    return Section(every[0].text, [*blocks, Table(table), chart, ecdf(latencies, found[0].slo.latency_s)])
