"""The questions that a sceptical reviewer would ask of a run, written from the run's own weaknesses.

Each is answered with the run's own figures, or stays open with what would answer it; a person may waive an open one by
name and reason, and the report shows that too. A report without these reads as if nobody had asked.

Pure: reads a run's document (lab.run.results.document) and its declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.errors import InputError
from lab.measure import rehearsal
from lab.measure.answers import all_equal
from lab.measure.cold import FEWEST, STILL_RESIDENT, SUM_OFF
from lab.measure.cost import machine
from lab.measure.doubts import when_quick
from lab.measure.percentile import needed
from lab.measure.question import Asked, about_the_code, about_the_rest, problem
from lab.measure.question import Question as Question
from lab.measure.question import Status as Status
from lab.measure.words import format_count, format_fraction, format_seconds, join, objective_label, plural
from lab.spec import Slo, nearest, parse

CONFIDENCE = 0.95
IDLE_LOAD = 0.5
"""Load average a core, before the run, up to which the machine counts as quiet."""


def questions(
    document: Mapping[str, Any], declared: Mapping[str, Any], price_caveats: Sequence[str] = ()
) -> list[Question]:
    """Every question that this run raises, the open ones first. `declared` is the experiment in run.json;
    `price_caveats` what a cost in the same report must be read with."""
    summaries = [cell["summary"] for cell in document["cells"] if cell["role"] == "cell"]
    about = [_about_load, _about_samples, _about_luck, _about_many, _about_the_client]
    if document.get("cold"):  # starts have no load, no blocks and no client that could be asked about
        about = [_about_starts, _about_many]
    asked = [
        question
        for ask in (*about, _about_what_was_served, _about_the_place)
        for question in ask(document, declared, summaries)
    ]
    asked += about_the_rest(document, {question.code for question in asked})
    if document.get("quick"):
        asked = [replace(question, answer=when_quick(question.answer)) for question in asked]
    if price_caveats:
        asked.append(Question("price", "What does the cost stand on?", " ".join(price_caveats), "open"))
    return sorted(asked, key=lambda question: question.status != "open")


def waive(found: Sequence[Question], waivers: Mapping[str, str]) -> list[Question]:
    """The same questions with `waivers` ({code: who and why}) applied to the open ones. InputError for a code that is
    not asked here, or one without a reason."""
    codes = [question.code for question in found]
    for code, reason in waivers.items():
        if code not in codes:
            raise InputError(f"waiver {code!r}: this run raises no such question{nearest(code, codes)}")
        if not reason.strip():
            raise InputError(f"waiver {code!r}: no reason is given; allowed: {code}=WHO AND WHY")
    return [
        replace(q, status="waived", answer=f"Waived: {waivers[q.code].strip()} (open was: {q.answer})")
        if q.code in waivers and q.status == "open"
        else q
        for q in found
    ]


NOTHING = "No block was measured."


def _about_load(document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]) -> Asked:
    question = "Did users wait for each other, so that a slow server was asked less?"
    if not summaries:
        yield Question("loop", question, NOTHING, "open")
    elif any(problem["code"] == "closed_loop" for summary in summaries for problem in summary["problems"]):
        text = "Yes: closed loop. Its latency says little about users who do not wait; measure with Poisson arrivals."
        yield Question("loop", question, text, "open")
    else:
        text = "No: arrivals were scheduled beforehand, and latency counts from the scheduled arrival."
        if others := sum(cell["role"] == "saturation" for cell in document["cells"]):
            blocks = plural(others, "block")
            text += f" Users who wait only measured the saturation, in {blocks} that no level is judged by."
        yield Question("loop", question, text, "answered")
    warmup_s, duration_s = declared["workload"]["warmup_s"], declared["workload"]["duration_s"]
    yield Question(
        "warm_up",
        "Is warm-up in the figures?",
        f"The first {format_seconds(warmup_s)} of each {format_seconds(duration_s)} are left out."
        if warmup_s
        else "Nothing was left out: set workload.warmup_s.",
        "answered" if warmup_s else "open",
    )
    yield from problem(
        document,
        "unsteady",
        "Was it in a steady state?",
        f"Throughput and latency of the thirds of each window agree within 10 %: {_steady(summaries)}.",
        ""
        if any(s["steady"] is not None for s in summaries)
        else "No block could be judged: each third of a window needs enough successes. Measure longer.",
    )
    yield Question(
        "load_like_yours",
        "Is this load like yours?",
        f"It was: {_workload(declared)}. Another mix of lengths, sizes or bursts is another measurement.",
        "open",
    )


def _about_samples(document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]) -> Asked:
    slo = parse(Slo, declared["slo"])
    least = needed(slo.percentile)
    short = [s for s in summaries if s["latency_n"] < least]
    fewest = min((s["latency_n"] for s in summaries), default=0)
    name = f"p{100 * slo.percentile:g}"
    text = f"{name} needs {format_count(least)} successes; the fewest in a block are {format_count(fewest)}"
    if not summaries or short:
        text += f", too few in {len(short)} of {plural(len(summaries), 'judged block')}: measure longer."
    yield Question(
        "samples",
        f"Are there enough requests for {name}?",
        text if text.endswith(".") else f"{text}.",
        "open" if short or not summaries else "answered",
    )
    yield Question(
        "objective",
        "Was the objective chosen after seeing the figures?",
        f"It is part of the declaration that ran: {objective_label(slo)}, for {format_fraction(slo.percentile)} of the "
        "requests. Whether it is your users' is yours to say.",
        "answered",
    )


def _about_luck(document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]) -> Asked:
    repeats = 1 + max((cell["repeat"] for cell in document["cells"] if cell["role"] == "cell"), default=0)
    if repeats > 1 and not document["quick"]:
        text = (
            f"{plural(repeats, 'repeat')}, settings in alternating order, intervals from paired segments and repeats."
        )
        yield Question("repeats", "Could one run have been lucky?", text, "answered")
    else:
        text = "how much a second start differs is assumed, not seen. Run it with --repeats 3."
        text = f"A quick run of short blocks: {text}" if document["quick"] else f"One repeat: {text}"
        yield Question("repeats", "Could one run have been lucky?", text, "open")
    seed = declared["workload"]["seed"]
    yield Question(
        "seed",
        "Do the figures hang on one draw of arrivals and inputs?",
        f"All came from seed {seed}; run it again with --set workload.seed={seed + 1}.",
        "open",
    )


def _about_many(document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]) -> Asked:
    effects = [e for e in document["verdict"].get("effects", ()) if e["verdict"] in ("higher", "lower")]
    every = [e for e in document["verdict"].get("effects", ()) if e["verdict"] != "not comparable"]
    if every:
        text = (
            f"{plural(len(every), 'comparison')} with {format_fraction(CONFIDENCE)} intervals were made and "
            f"{len(effects)} found a difference; about {(1 - CONFIDENCE) * len(every):.1f} would by chance alone. "
            "The hypothesis and its metric were declared before the run."
        )
        yield Question("many", "Was the winner picked from many comparisons?", text, "answered")


def _about_the_client(
    document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]
) -> Asked:
    lags = [s["send_lag_p99_s"] for s in summaries if s["send_lag_p99_s"] is not None]
    worst = f"the largest p99 of the send lag is {format_seconds(max(lags))}" if lags else "no send lag was measured"
    yield from problem(
        document,
        "client_limited",
        "Was the load generator the bottleneck?",
        f"No: {worst}.",
        "" if lags else "It was not checked: no send lag was measured.",
    )
    failed = [s["error_fraction"] for s in summaries if s["error_fraction"]]
    if failed:
        text = (
            f"Up to {format_fraction(max(failed))} of the requests failed. They enter neither latency nor throughput, "
            "and goodput counts them as not served; latency is that of the survivors."
        )
        yield Question("failures", "Did failures make it look fast?", text, "open")
    elif summaries:
        yield Question("failures", "Did failures make it look fast?", "No request failed.", "answered")
    else:
        yield Question("failures", "Did failures make it look fast?", NOTHING, "open")
    yield from problem(
        document,
        "cache_warm",
        "Did a cache answer?",
        "No answer came from the response cache.",
        "" if summaries else NOTHING,
    )
    question = "Do client and server count alike?"
    if (switched := document.get("rehearsal")) and switched["way"] == "blue_green":  # of two servers; it has its books
        blocks = switched["blocks"]
        status: Status = "answered" if rehearsal.books_agree(blocks) else "open"
        yield Question("server_count_mismatch", question, rehearsal.told_of_books(blocks), status)
        return
    counted = sum(s["server_success_delta"] is not None for s in summaries)
    yield from problem(
        document,
        "server_count_mismatch",
        question,
        f"The server's counts are the client's in {counted} of {plural(len(summaries), 'block')}.",
        "" if counted else "It was not checked: the server told no counts.",
    )


def _about_starts(document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]) -> Asked:
    tried = [cell for cell in document["cold"]["cells"] if not cell["not_measured"]]
    fewest = min((cell["starts"] for cell in tried), default=0)
    yield Question(
        "samples",
        "Are there enough starts for an interval?",
        f"An interval needs {FEWEST} starts of each way; the fewest are {fewest}"
        + ("." if fewest >= FEWEST else ": run it with --repeats 5."),
        "answered" if fewest >= FEWEST else "open",
    )
    off, question = document["cold"]["unexplained_max_fraction"], "Do the stages explain the whole?"
    if off is None:
        yield Question("stages", question, "No start was measured.", "open")
    else:
        text = f"In the worst start {format_fraction(off)} of the whole is in no stage; allowed is "
        yield Question(
            "stages", question, f"{text}{format_fraction(SUM_OFF)}.", "answered" if off <= SUM_OFF else "open"
        )
    failed = sum(len(cell["failed"]) for cell in tried)
    text = f"{plural(failed, 'start')} failed and are in no figure." if failed else "No start failed."
    if not tried:
        text = "No start was measured."
    yield Question("failures", "Did starts fail?", text, "open" if failed or not tried else "answered")
    emptied = [c for c in tried if c["start"]["page_cache"] == "cold" and not c["start"].get("keep_warm")]
    if emptied:
        left = [cell["resident_fraction"] for cell in emptied]
        known = [fraction for fraction in left if fraction is not None]
        text = (
            f"At most {format_fraction(max(known))} of a model's files were still in memory."
            if len(known) == len(left)
            else "Whether the files had left memory could not be seen of every way to start."
        )
        good = len(known) == len(left) and max(known) <= STILL_RESIDENT
        yield Question("page_cache", "Was the page cache cold?", text, "answered" if good else "open")


def _about_what_was_served(
    document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]
) -> Asked:
    if declared.get("judge"):
        equal = all_equal(document["answers"]) if document["answers"] else ""
        question = "Do all settings give the same answers?"
        if equal:
            yield Question("answers", question, equal, "answered")
        elif document["answers"]:
            yield Question("answers", question, "They differ; see the verdict.", "open")
        else:
            yield Question("answers", question, "It was not checked in this run.", "open")
    if _has(document, "changed"):
        text = "Settings were changed by hand while the load ran, and whole-run figures mix them."
        yield Question("changed", "Was one thing measured?", text, "open")
    if document["state"] != "done":
        text = f"The run is {document['state']}: what was not reached is missing."
        yield Question("partial", "Was it measured to the end?", text, "open")


def _about_the_place(
    document: Mapping[str, Any], declared: Mapping[str, Any], summaries: list[dict[str, Any]]
) -> Asked:
    environment = document["environment"]
    load, cores = environment.get("load_average_before"), environment.get("cores")
    question = "Was the machine quiet?"
    if isinstance(load, int | float) and isinstance(cores, int) and cores:
        quiet = load <= IDLE_LOAD * cores
        text = f"Its load average before the run was {load:.2f} on {plural(cores, 'core')}"
        text += "." if quiet else ": something else ran. Stop it and measure again."
        yield Question("quiet", question, text, "answered" if quiet else "open")
    else:
        yield Question("quiet", question, "The load before the run was not noted.", "open")
    text = (
        f"It was measured on {machine(environment, declared['model'].get('device', 'cpu'))}, whose cores the load "
        "generator shared. Ratios may carry over to another machine; milliseconds and costs do not."
    )
    yield Question("elsewhere", "Would it be so on another machine?", text, "open")
    yield from about_the_code(environment)


def _has(document: Mapping[str, Any], code: str) -> bool:
    return any(problem["code"] == code for problem in document["problems"])


def _steady(summaries: list[dict[str, Any]]) -> str:
    judged = [s for s in summaries if s["steady"] is not None]
    return f"{sum(bool(s['steady']) for s in judged)} of {plural(len(judged), 'block')} that could be judged"


def _workload(declared: Mapping[str, Any]) -> str:
    """What was asked, in a few words."""
    model, workload = declared["model"], declared["workload"]
    words = [f"{workload['arrival']['kind']} arrivals at {model['name']}"]
    if model["family"] == "llm":
        lengths = [workload[name] for name in ("prompt_tokens", "output_tokens")]
        prompt, output = (f"{n[0]} to {n[1]}" if isinstance(n, list | tuple) else str(n) for n in lengths)
        words += [f"prompts of {prompt} tokens", f"answers of {output}"]
    varied = [path for path in declared["factors"] if path.startswith("workload.")]
    if varied:
        words.append(f"{join([path.rpartition('.')[2].replace('_', ' ') for path in varied])} varied as declared")
    return ", ".join(words)
