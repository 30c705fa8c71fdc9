"""A language model's step in a precision or on an accelerator that was not measured, scaled by what floors are made of.

On the same machine a part of a step changes by what its floor (lab/measure/floors.py) does, and what is above the floor
stays: starting kernels, Python, threads that meet, norms and attention take as long in any format.

    write_fixed_s   reading the weights once: less what fewer bytes save of bytes ÷ bandwidth
    write_held_s    reading keys and values: × bytes there ÷ bytes here
    write_row_s     what each answer adds, its products and all between, stays
    read_token_s    of what each token of a prompt adds, 2 operations a weight are arithmetic: less what a faster format
                    saves of them; never more in fewer bits (a disturbed probe has said so, and no engine showed it)
    read_fixed_s    stays where tokens cost what arithmetic does, since reading the weights is hidden behind it; else it
                    is reading them, as write_fixed_s

On an accelerator all is scaled: bytes by bandwidth, the rest by arithmetic, as if the share of either that was reached
here were reached there. What does not shrink with it, such as starting a kernel or Python between two steps, makes a
real accelerator slower than this: the figure is a bound. Models of other kinds are not scaled: what they take here is
mostly the server's own work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.errors import InputError
from lab.measure.floors import ARITHMETIC, OPERATIONS_PER_WEIGHT, Machine
from lab.measure.planner.accelerators import Accelerator
from lab.measure.planner.steps import Steps
from lab.measure.words import format_bytes, format_ratio
from lab.spec import Precision


@dataclass(frozen=True)
class Format:
    """What a step reads in one precision: weights with their scales, and keys and values of each token held.
    `elements`: weights that each token of a prompt is multiplied with. `predicted`: by the ledger, not by what an
    engine said that it holds."""

    precision: Precision
    weight_bytes: float
    kv_bytes_per_token: float
    elements: float
    predicted: bool = False


def in_precision(steps: Steps, here: Format, there: Format, machine: Machine | None) -> tuple[Steps, str]:
    """(the steps in another precision on the same machine, how they were found in a sentence)."""
    fewer, kept = there.weight_bytes / here.weight_bytes, there.kv_bytes_per_token / here.kv_bytes_per_token
    told = (
        f"{there.precision} was not measured: scaled from {here.precision}, of whose {format_bytes(here.weight_bytes)} "
        f"of weights a step then reads {format_bytes(there.weight_bytes)} ({format_ratio(fewer)})"
    )
    bandwidth = machine.read_bandwidth_bytes_s if machine is not None else None
    fixed = _less(steps.write_fixed_s, here.weight_bytes / bandwidth if bandwidth else None, fewer)
    now, then = (None, None) if machine is None else (machine.arithmetic(f.precision) for f in (here, there))
    if not now or not then:
        return steps.scaled(fixed=fixed, held=kept), told
    faster = now / then if there.weight_bytes >= here.weight_bytes else min(1.0, now / then)
    arithmetic_s = OPERATIONS_PER_WEIGHT * here.elements / now
    told += f", and the products of prompts take {format_ratio(faster)} the time, as {ARITHMETIC[there.precision]}"
    scaled = steps.scaled(fixed=fixed, held=kept, read=_less(steps.read_token_s, arithmetic_s, faster))
    return (replace(scaled, read_fixed_s=steps.read_fixed_s) if steps.read_token_s >= arithmetic_s else scaled), told


def _less(seconds: float, floor_s: float | None, factor: float) -> float:
    """The factor by which a part of a step changes whose floor changes by `factor`; all of it where no floor is known,
    or where it is faster than a floor that a disturbed probe made too high."""
    share = 1.0 if floor_s is None or seconds <= floor_s else floor_s / seconds
    return 1 - share * (1 - factor)


def on_accelerator(
    steps: Steps, precision: Precision, machine: Machine | None, accelerator: Accelerator
) -> tuple[Steps, str]:
    """(the steps on that accelerator, how they were found). InputError when one of the two does not say what it can
    do."""
    there = accelerator.machine
    bandwidth, arithmetic = (
        (None, None) if machine is None else (machine.read_bandwidth_bytes_s, machine.arithmetic(precision))
    )
    reached = there.arithmetic(precision)
    if not bandwidth or not arithmetic:
        raise InputError(
            f"accelerator {accelerator.name!r}: this run does not say what its own machine reads and multiplies a "
            "second; allowed: null, or a run of a language model that was probed"
        )
    if not reached or not there.read_bandwidth_bytes_s:
        raise InputError(
            f"accelerator {accelerator.name!r}: its row gives no rate for {ARITHMETIC[precision]}, in which "
            f"{precision} multiplies"
        )
    slower, computing = bandwidth / there.read_bandwidth_bytes_s, arithmetic / reached
    told = (
        f"{accelerator.name} was not measured: scaled by its bandwidth ({format_ratio(1 / slower)} this machine's) and "
        f"its arithmetic ({format_ratio(1 / computing)}), by {accelerator.source} ({accelerator.as_of}, certainty "
        f"{accelerator.certainty}). It is a bound: starting kernels and the server's own work do not get faster"
    )
    return steps.scaled(fixed=slower, row=computing, held=slower, read=computing), told
