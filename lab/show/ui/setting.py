"""What a plan asks about, as sliders: each in the link, and the setting they make."""

from __future__ import annotations

import streamlit as st

from lab.measure.planner.calibrated import Calibrated
from lab.measure.planner.setting import Setting
from lab.measure.words import format_fraction, format_setting_s, objective_label, plural
from lab.run import accelerators
from lab.spec import Slo

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
DELAYS_MS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
HERE = "this machine"
MOST_REPLICAS = 16


def controls(model: Calibrated, own: Slo) -> tuple[Setting, Slo, float]:
    """(what is asked about, the objective, the headroom); the run's `own` objective unless another is given."""
    first = st.columns([3, 2, 2])
    capacity = model.capacity_rps(Setting(1.0))
    step = _step(capacity)
    usual = max(step, _tidy(round(0.5 * capacity / step) * step))
    rate = first[0].slider(
        "Requests a second, all replicas",
        step,
        _tidy(400 * step),
        usual,
        step,
        "%g",
        key="p_qps",
        bind="query-params",
    )
    limit_ms = first[1].number_input(
        "p95 within, ms",
        0.1,
        600_000.0,
        None,
        key="p_ms",
        bind="query-params",
        placeholder="as the run",
        help=f"Empty: the run's own objective, {format_fraction(own.percentile)} within {objective_label(own)}.",
    )
    spare = first[2].slider("Headroom, %", 0, 100, 20, 5, key="p_head", bind="query-params")
    second = iter(st.columns(4 if model.is_engine else 5))
    size = next(second).select_slider(
        "Batch of up to", SIZES, _nearest(model), key="p_batch", bind="query-params", format_func=str
    )
    delay_s: float | None = None
    if not model.is_engine:
        delay_ms = next(second).select_slider(
            "Queue delay, ms",
            DELAYS_MS,
            _delay(model),
            key="p_delay",
            bind="query-params",
            format_func="{:g}".format,
        )
        delay_s = delay_ms / 1e3
    own_precision = model.precisions.index(model.model.precision)
    precision = next(second).selectbox(
        "Precision", model.precisions, own_precision, key="p_precision", bind="query-params"
    )
    replicas = next(second).slider("Replicas", 1, MOST_REPLICAS, 1, key="p_replicas", bind="query-params")
    names = [HERE, *(row.name for row in accelerators.catalogue())] if model.is_engine and model.machine else [HERE]
    name = next(second).selectbox(
        "Accelerator",
        names,
        key="p_acc",
        bind="query-params",
        disabled=len(names) == 1,
        help="Of a language model whose run probed this machine: its step is scaled by data sheets.",
    )
    slo = own if limit_ms is None else Slo(latency_s=limit_ms / 1e3, percentile=0.95)
    setting = Setting(
        _tidy(rate),
        replicas,
        int(size),
        delay_s,
        precision or model.model.precision,
        None if name in (None, HERE) else accelerators.find(name),
    )
    return setting, slo, spare / 100


def in_words(setting: Setting, model: Calibrated) -> str:
    size = setting.max_batch_size or 1
    parts = [f"batches of up to {size}" if size > 1 else "requests alone"]
    if setting.delay_s and size > 1:
        parts.append(f"{format_setting_s(setting.delay_s)} delay")
    if setting.precision and len(model.precisions) > 1:
        parts.append(setting.precision)
    parts.append(plural(setting.replicas, "replica"))
    if setting.accelerator is not None:
        parts.append(setting.accelerator.name)
    return ", ".join(parts)


def _step(capacity_rps: float) -> float:
    """Of the slider, so that it reaches about eight times the capacity in 400 steps: 1, 2 or 5 of a power of ten."""
    least = 8 * capacity_rps / 400
    power = 10.0 ** int(f"{least:e}".partition("e")[2])
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= least)
    return _tidy(step)


def _tidy(value: float) -> float:
    """Without what binary multiples of a decimal step leave behind: 3.4 and not 3.4000000000000004."""
    return float(f"{value:.6g}")


def _nearest(model: Calibrated) -> int:
    own = model.model.max_batch_size if model.is_engine else 1
    if not model.is_engine and model.model.batching is not None:
        own = model.model.batching.max_batch_size
    return min(SIZES, key=lambda size: abs(size - own))


def _delay(model: Calibrated) -> float:
    batching = model.model.batching
    own_ms = 0.0 if batching is None else batching.max_queue_delay_us / 1e3
    return min(DELAYS_MS, key=lambda delay_ms: abs(delay_ms - own_ms))
