"""A language model's step in a precision or on an accelerator that was not measured, scaled by what floors are made of.

    write_fixed_s   reading the weights once: × bytes there ÷ bytes here × bandwidth here ÷ bandwidth there
    write_held_s    reading keys and values: the same with their bytes
    write_row_s     what each answer adds, its products and all between: on one machine it stays, on another it takes
                    as many times as long as the arithmetic there is slower
    read_fixed_s    reading the weights once for a prompt, as write_fixed_s
    read_token_s    what each token of a prompt adds is arithmetic: × operations a second here ÷ those there, of what
                    is multiplied; on one machine never more in fewer bits (a disturbed probe has said so, and no
                    engine showed it)

So the share of the bandwidth that was reached here is taken to be reached there (lab/measure/floors.py). What does not
shrink with it, such as starting a kernel or Python between two steps, makes a real accelerator slower than this: the
figure is a bound. Models of other kinds are not scaled: what they take here is mostly the server's own work.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.errors import InputError
from lab.measure.floors import ARITHMETIC, Machine
from lab.measure.planner.accelerators import Accelerator
from lab.measure.planner.steps import Steps
from lab.measure.words import format_bytes, format_ratio
from lab.spec import Precision


@dataclass(frozen=True)
class Format:
    """What a step reads in one precision: weights with their scales, and keys and values of each token held.
    `predicted`: by the ledger, not by what an engine said that it holds."""

    precision: Precision
    weight_bytes: float
    kv_bytes_per_token: float
    predicted: bool = False


def in_precision(steps: Steps, here: Format, there: Format, machine: Machine | None) -> tuple[Steps, str]:
    """(the steps in another precision on the same machine, how they were found in a sentence)."""
    fewer, kept = there.weight_bytes / here.weight_bytes, there.kv_bytes_per_token / here.kv_bytes_per_token
    read, arithmetic = 1.0, ""
    if machine is not None:
        now, then = machine.arithmetic(here.precision), machine.arithmetic(there.precision)
        if now and then:
            read = now / then if there.weight_bytes >= here.weight_bytes else min(1.0, now / then)
            arithmetic = f", and prompts {format_ratio(read)} the time, as {ARITHMETIC[there.precision]} is multiplied"
    told = (
        f"{there.precision} was not measured: scaled from {here.precision}, of whose {format_bytes(here.weight_bytes)} "
        f"of weights a step then reads {format_bytes(there.weight_bytes)} ({format_ratio(fewer)}){arithmetic}"
    )
    return steps.scaled(fixed=fewer, held=kept, read=read), told


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
