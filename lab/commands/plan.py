"""`lab plan`: what a run's server is predicted to do at a target, how many replicas that takes and what they cost, with
how far such predictions were off on the run's own blocks."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from lab.commands.terminal import add_json, print_json
from lab.errors import FolderError, InputError

if TYPE_CHECKING:
    from lab.measure.planner.answers import Bill, Needed, Told
    from lab.measure.planner.calibrated import Calibrated
    from lab.measure.planner.limits import Limit
    from lab.measure.planner.setting import Setting
    from lab.measure.prices import Price
    from lab.spec import Slo

METRICS = ("throughput_rps", "latency_p50_s", "latency_p95_s", "latency_p99_s")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--qps", type=float, required=True, metavar="RPS", help="requests a second, of all replicas")
    parser.add_argument("--p95-ms", type=float, metavar="MS", help="95 %% within that; default: the run's objective")
    parser.add_argument("--headroom", type=float, default=0.2, metavar="SHARE", help="default 0.2: a fifth more")
    parser.add_argument("--batch", type=int, metavar="N", help="the largest batch; default: the run's best setting")
    parser.add_argument("--delay-ms", type=float, metavar="MS", help="the longest wait for company in Triton's queue")
    parser.add_argument("--precision", metavar="NAME")
    parser.add_argument("--accelerator", metavar="NAME", help="of lab/run/accelerators.csv; language models only")
    parser.add_argument("--replicas", type=int, metavar="N", help="ask about so many; default: as many as are needed")
    parser.add_argument("--price", metavar="ID", help="one of `lab prices`")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.measure.planner import answers, limits
    from lab.run import planning, prices
    from lab.run.folder import RunFolder
    from lab.spec import Slo, parse

    _check(options)
    price = None if options.price is None else prices.find(options.price)
    try:
        folder = RunFolder.open(options.run)
        found = planning.plannable(folder)
    except FolderError as error:
        raise InputError(str(error)) from None
    own = parse(Slo, folder.document["experiment"]["slo"])
    slo = own if options.p95_ms is None else Slo(latency_s=options.p95_ms / 1e3, percentile=0.95)
    setting = _setting(options, found.model)
    needed = answers.needed(found.model, setting, slo, options.headroom)
    replicas = options.replicas or needed.replicas or 1
    setting = dataclasses.replace(setting, replicas=replicas)
    told = answers.tell(found.model, setting, slo)
    every = limits.limits(found.model, setting, slo, found.around)
    bill = None if price is None else _bill(price, needed)
    routers = answers.balancing(found.model, setting, slo) if replicas > 1 else None
    if options.json:
        print_json(_document(found.model, options.run, slo, needed, told, every, bill, routers))
    else:
        lines = _lines(found.model, slo, needed, told, every, bill, routers)
        print("\n".join([_planned_for(options, setting, found.model), "", *lines]))
    return 0


def _check(options: argparse.Namespace) -> None:
    if not 0 < options.qps <= 1e9:
        raise InputError(f"--qps {options.qps:g}: allowed is above 0, up to 1,000,000,000 requests a second")
    if options.p95_ms is not None and not 0 < options.p95_ms <= 1e7:
        raise InputError(f"--p95-ms {options.p95_ms:g}: allowed is above 0, up to 10,000,000")
    if options.delay_ms is not None and not 0 <= options.delay_ms <= 10_000:
        raise InputError(f"--delay-ms {options.delay_ms:g}: allowed is 0 to 10,000")
    for name, most in (("batch", 1024), ("replicas", 1024)):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise InputError(f"--{name} {value}: allowed is 1 to {most:,}")


def _setting(options: argparse.Namespace, model: Calibrated) -> Setting:
    from lab.measure.planner.setting import Setting
    from lab.run import accelerators
    from lab.spec import nearest

    if options.precision is not None and options.precision not in model.precisions:
        raise InputError(
            f"--precision {options.precision!r}: not known of this run{nearest(options.precision, model.precisions)}"
        )
    return Setting(
        options.qps,
        max_batch_size=options.batch,
        delay_s=None if options.delay_ms is None else options.delay_ms / 1e3,
        precision=options.precision,
        accelerator=None if options.accelerator is None else accelerators.find(options.accelerator),
    )


def _planned_for(options: argparse.Namespace, setting: Setting, model: Calibrated) -> str:
    """Which setting the plan is of, and which parts of it nobody asked for."""
    from lab.measure.planner import plan_words
    from lab.measure.words import join

    given = {"batch": options.batch, "delay": options.delay_ms, "precision": options.precision}
    own = [name for name, value in given.items() if value is None and not (name == "delay" and model.is_engine)]
    as_run = f"; {join(own)} as the run's best setting has {'it' if len(own) == 1 else 'them'}" if own else ""
    return f"The setting planned for: {plan_words.setting_words(setting, model)}{as_run}."


def _bill(price: Price, needed: Needed) -> Bill | None:
    from lab.measure.planner import answers

    if needed.replicas is None or needed.at is None:
        return None
    return answers.bill(price, needed.replicas, needed.at.predicted.goodput_rps)


def _lines(
    model: Calibrated, slo: Slo, needed: Needed, told: Told, every: tuple[Limit, ...], bill: Bill | None, routers: Any
) -> list[str]:
    from lab.measure.cost_words import format_usd, price_label
    from lab.measure.planner import limits, plan_words
    from lab.measure.words import plural

    lines = [plan_words.trust_sentence(model.trust)]
    if any(h.judged and not h.fitted for h in model.trust.held_out):
        lines.append(plan_words.trust_sentence(model.trust, fitted=False))
    lines += ["", plan_words.needed_sentence(needed, slo), plan_words.told_sentence(told, slo)]
    lines += [f"- Outside of what was measured: {text}." for text in told.outside]
    lines += ["", plan_words.limit_sentence(limits.first(every))]
    lines += [f"- {limit.name} ({limit.known}): {limit.text}" for limit in every[1:]]
    if routers is not None:
        lines += ["", plan_words.balancing_sentence(routers)]
    if bill is not None:
        each = "" if bill.usd_per_million is None else f", {format_usd(bill.usd_per_million)} a million good requests"
        lines += [
            "",
            f"{plural(bill.machines, 'machine')} at {price_label(bill.price)}: {format_usd(bill.usd_per_month)} a month"
            f"{each}; predicted, and on all day.",
        ]
    return lines


def _document(
    model: Calibrated,
    run_id: str,
    slo: Slo,
    needed: Needed,
    told: Told,
    every: tuple[Limit, ...],
    bill: Bill | None,
    routers: Any,
) -> dict[str, Any]:
    return {
        "run": run_id,
        "objective": slo.model_dump(mode="json"),
        "held_out": {
            "blocks": [
                {"block": h.number, "setting": h.label, "fitted": h.fitted, "judged": h.judged, "errors": h.errors}
                for h in model.trust.held_out
            ],
            **{kind: _errors(model, fitted=fitted) for kind, fitted in (("fitted", True), ("unfitted", False))},
            "noise": {metric: model.trust.typical_noise(metric) for metric in METRICS},
        },
        "needed": {
            "replicas": needed.replicas,
            "at_best": needed.low,
            "at_worst": needed.high,
            "headroom_fraction": needed.headroom_fraction,
            "why": needed.why or None,
        },
        "predicted": {
            **dataclasses.asdict(told.predicted),
            "replicas": told.setting.replicas,
            "rate_rps": told.setting.rate_rps,
            "load_fraction": told.load_fraction,
            "intervals": {metric: list(bounds) for metric, bounds in told.bounds.items()},
            "outside": list(told.outside),
        },
        "limits": [dataclasses.asdict(limit) for limit in every],
        "routers": None if routers is None else {name: dataclasses.asdict(one) for name, one in routers.items()},
        "cost": None if bill is None else {**dataclasses.asdict(bill), "price": bill.price.id},
    }


def _errors(model: Calibrated, *, fitted: bool) -> dict[str, Any]:
    return {
        metric: {
            "median": model.trust.typical(metric, fitted=fitted),
            "worst": model.trust.worst(metric, fitted=fitted),
            "n": len(model.trust.errors(metric, fitted=fitted)),
        }
        for metric in METRICS
    }
