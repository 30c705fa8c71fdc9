"""A plan in sentences: how far the model is off first, then what it says, never one without the other.

"Left out and predicted, 31 blocks of this run: p95 off by 5.5 % (worst 28 %). Two blocks of one cell are 6.2 % apart."
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.measure.planner.answers import Needed, Told, metric_of
from lab.measure.planner.calibrated import Calibrated
from lab.measure.planner.heldout import MOST_USED, Trust
from lab.measure.planner.limits import Limit
from lab.measure.planner.prediction import Prediction
from lab.measure.planner.queueing import Routing
from lab.measure.planner.setting import Setting
from lab.measure.samples import is_time
from lab.measure.words import (
    NOT_MEASURED,
    format_fraction,
    format_metric,
    format_range,
    format_rate,
    format_seconds,
    format_setting_s,
    join,
    metric_label,
    objective_label,
    plural,
)
from lab.spec import Slo

ROUTERS: Mapping[Routing, str] = {
    "round_robin": "round robin",
    "least_outstanding": "least outstanding",
    "two_choices": "random of two",
}
SAME = 0.02
"""A ratio that is no further from 1 is no difference to anybody."""
JUDGED = ("throughput_rps", "latency_p95_s", "latency_p99_s")


def setting_words(setting: Setting, model: Calibrated) -> str:
    """ "digits in fp32, batches of up to 32, 2 ms delay, 2 replicas", with what the setting leaves to the model."""
    served = model.model_of(setting)
    batching = served.batching
    size = served.max_batch_size if model.is_engine else batching.max_batch_size if batching else 1
    parts = [f"{served.name} in {served.precision}", f"batches of up to {size}" if size > 1 else "requests alone"]
    if not model.is_engine and batching is not None:
        delay_s = batching.max_queue_delay_us / 1e6
        parts.append(f"{format_setting_s(delay_s)} delay" if delay_s else "no delay")
    parts.append(plural(setting.replicas, "replica"))
    if setting.accelerator is not None:
        parts.append(setting.accelerator.name)
    return ", ".join(parts)


def trust_sentence(trust: Trust, *, fitted: bool = True) -> str:
    """What held-out blocks say of the model, and how far the machine is from itself."""
    count = len([h for h in trust.held_out if h.judged and h.fitted == fitted])
    if not count:
        kind = "" if fitted else " in a setting that no other had"
        return f"No block{kind} could be left out and predicted."
    parts = []
    for metric in JUDGED:
        usual, worst = trust.typical(metric, fitted=fitted), trust.worst(metric, fitted=fitted)
        if usual is not None:
            parts.append(f"{metric_label(metric)} off by {format_fraction(usual)} (worst {format_fraction(worst)})")
    kind = "" if fitted else " together with all others of their setting,"
    noise = trust.typical_noise("latency_p95_s")
    own = (
        f" Two blocks of one cell are {format_fraction(noise)} apart in p95: so much is the machine's."
        if noise is not None
        else " Every cell was measured once, so the machine's own noise is not known."
    )
    of = f"{plural(count, 'block')} of this run"
    return f"Left out{kind} and predicted, {of}: {join(parts)}.{own if fitted else ''}"


def figure(told: Told, metric: str) -> tuple[str, str]:
    """(the predicted figure, the interval that held-out blocks allow it, or why there is none)."""
    value = getattr(told.predicted, metric)
    if value is None:
        return NOT_MEASURED, ""
    if told.load_fraction > 1 and is_time(metric):
        return "without limit", "above its capacity the queue grows for as long as that lasts"
    if metric in told.bounds:
        low, high = told.bounds[metric]
        return format_metric(metric, value), format_range(low, high, lambda one: format_metric(metric, one))
    if told.busy:
        return format_metric(metric, value), f"above {format_fraction(MOST_USED)} of capacity: no interval"
    return format_metric(metric, value), "nothing like it was held out: no interval"


def needed_sentence(found: Needed, slo: Slo) -> str:
    """How many replicas the target takes, or why none do."""
    if found.replicas is None:
        return found.why
    within = f"{format_fraction(slo.percentile)} within {objective_label(slo)}"
    spare = f" with {format_fraction(found.headroom_fraction)} to spare" if found.headroom_fraction else ""
    verb = "keeps" if found.replicas == 1 else "keep"
    at = f"at {format_rate(found.target_rps)}{spare}"
    off = "if the model is off as held-out blocks were"
    if found.low is not None and found.high is None:
        return (
            f"It cannot be told how many replicas keep {within} {at}: {found.replicas:,} are predicted, but {off}, it "
            f"is {found.low:,} at best and no number at worst."
        )
    spread = ""
    if found.low is not None and (found.low, found.high) != (found.replicas, found.replicas):
        spread = f" ({found.low:,} at best, {found.high:,} at worst, {off})"
    return f"Predicted: {plural(found.replicas, 'replica')}{spread} {verb} {within} {at}."


def told_sentence(told: Told, slo: Slo) -> str:
    """What the setting is predicted to do at its rate."""
    metric = metric_of(slo)
    value, interval = figure(told, metric)
    share = told.predicted.slo_attainment_fraction
    setting = told.setting
    text = (
        f"Predicted at {format_rate(setting.rate_rps)} on {plural(setting.replicas, 'replica')}: "
        f"{metric_label(metric)} {value} ({interval}), {format_fraction(share)} within {objective_label(slo)}"
    )
    text = f"{text}, at {format_fraction(told.load_fraction)} of capacity."
    between = told.predicted.between(metric)
    if between is None or told.load_fraction > 1:
        return text
    runs = len(told.predicted.each[metric])
    return f"{text} The {runs} simulated runs behind it say {format_range(*between, format_seconds)}."


def curve_caption(requests: int) -> str:
    """How to read the predicted curve."""
    return (
        f"Whiskers: how far single simulated runs of {requests:,} requests are from each other; points whose whiskers "
        "overlap are not told apart, and a measurement of that length would not tell them apart either. The band adds "
        "how far the model was off on held-out blocks."
    )


def limit_sentence(first: Limit | None) -> str:
    if first is None:
        return "Nothing that is known breaks."
    return f"What breaks first: the {first.name}. {first.text}"


def balancing_sentence(found: Mapping[Routing, Prediction]) -> str:
    """What a router that looks at the replicas changes in the tail, where the simulated runs agree on it."""
    base = found["round_robin"]
    if base.latency_p99_s is None:
        return "No request was answered."
    others = [
        f"{ROUTERS[routing]} {format_seconds(one.latency_p99_s)} ({_against(one, base)})"
        for routing, one in found.items()
        if routing != "round_robin" and one.latency_p99_s is not None
    ]
    at = format_seconds(base.latency_p99_s)
    return f"Predicted p99 behind {ROUTERS['round_robin']}: {at}; behind {' and '.join(others)}."


def _against(one: Prediction, base: Prediction) -> str:
    """Run by run, since both were asked the same: a router is better or worse where it is in each of them."""
    ratio = (one.latency_p99_s or 0.0) / (base.latency_p99_s or 1.0)
    pairs = zip(one.each.get("latency_p99_s", ()), base.each.get("latency_p99_s", ()), strict=True)
    ratios = [mine / theirs for mine, theirs in pairs]
    if abs(ratio - 1) < SAME and all(abs(each - 1) < SAME for each in ratios):
        return "no different"
    if len(ratios) < 2:
        return _less(ratio)
    if min(ratios) <= 1 <= max(ratios):
        return f"not told apart: {_less(min(ratios))} to {_less(max(ratios))} in {len(ratios)} simulated runs"
    return f"{_less(ratio)}, and so in each of {len(ratios)} simulated runs"


def _less(ratio: float) -> str:
    return f"{format_fraction(abs(1 - ratio))} {'less' if ratio < 1 else 'more'}"
