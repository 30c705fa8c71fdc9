"""The vocabulary: what is served, what is asked of it, and what question an experiment puts.

Every class is a frozen value that refuses unknown fields: a misspelt field that is silently dropped makes a run that
measured something else than its author believes. Units are in the names. `parse` and `set_path` turn pydantic's
report into one line that names the field, the value and what is allowed (lab/refusal.py).

Knows nothing of processes, files or clocks.
"""

from lab.refusal import nearest
from lab.spec.experiment import Cell, Experiment, Fleet, Judge, Reference, Store, fields_set
from lab.spec.given import DATATYPES, Datatype, Given, GivenInput
from lab.spec.model import (
    FAMILIES,
    LLM_FIELDS,
    PRECISIONS,
    QUANTIZERS,
    Batching,
    Family,
    ModelSpec,
    Precision,
    Quantizer,
    Scheduler,
)
from lab.spec.paths import parse, parse_setting, plain, set_path, set_paths
from lab.spec.rollout import Challenger, Rollout, Tolerance
from lab.spec.scaling import Scaling
from lab.spec.start import Serverless, Start
from lab.spec.value import Lengths, Name, NonNegativeFloat, PositiveFloat, Tokens, Value
from lab.spec.workload import Arrival, ClosedLoop, Constant, Gamma, Poisson, Protocol, Slo, Steps, Trace, Workload

__all__ = [
    "DATATYPES",
    "FAMILIES",
    "LLM_FIELDS",
    "PRECISIONS",
    "QUANTIZERS",
    "Arrival",
    "Batching",
    "Cell",
    "Challenger",
    "ClosedLoop",
    "Constant",
    "Datatype",
    "Experiment",
    "Family",
    "Fleet",
    "Gamma",
    "Given",
    "GivenInput",
    "Judge",
    "Lengths",
    "ModelSpec",
    "Name",
    "NonNegativeFloat",
    "Poisson",
    "PositiveFloat",
    "Precision",
    "Protocol",
    "Quantizer",
    "Reference",
    "Rollout",
    "Scaling",
    "Scheduler",
    "Serverless",
    "Slo",
    "Start",
    "Steps",
    "Store",
    "Tokens",
    "Tolerance",
    "Trace",
    "Value",
    "Workload",
    "fields_set",
    "nearest",
    "parse",
    "parse_setting",
    "plain",
    "set_path",
    "set_paths",
]
