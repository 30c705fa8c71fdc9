"""The commands of `python -m lab`, one file each: `add_options(parser)` and `run(options)`, which returns the exit
status. A command of several words has its name with underscores as its file's.

Nothing of the lab is imported before a command runs: `python -m lab runs` must not wait for torch or gRPC, and
`--help` reads no more than this table. What commands share: terminal.py, model_options.py, execution.py (an experiment
becomes a run), run_document.py (a run is told).
"""

from __future__ import annotations

COMMANDS = {
    "doctor": "what is here, what is missing, what to do about it",
    "fetch": "download ahead of time",
    "up": "the dashboard with a managed Triton behind it, until Ctrl-C",
    "serve": "a managed Triton in the foreground, until Ctrl-C",
    "serverless": "one model behind a runner that scales to zero, until Ctrl-C",
    "gateway": "models behind OpenAI's protocol, with routes between their versions, until Ctrl-C",
    "registry": "versions of what is served: register, name, compare, deploy",
    "rollout": "where the traffic of a served name goes, and who moves it",
    "run": "run an experiment",
    "call": "one request to one model, and what it answers",
    "load": "put one load on one model",
    "batch": "a file of inputs through a model into a file of answers; goes on where it was stopped",
    "neighbours": "of each row of vectors the nearest others, exactly; goes on where it was stopped",
    "search": "the highest rate that meets an objective",
    "sweep": "many settings of a few knobs under one load: which are worth having",
    "engines": "the same prompts to the lab's engine and to others', in one table",
    "fit": "what models take together, and whether that fits, before they are loaded",
    "adapters": "the LoRA adapters of a loaded language model: listed, loaded, unloaded while it serves",
    "leak": "load and unload a model again and again: does its memory come back?",
    "quantize": "find the integer weights of a language model ahead of time",
    "quality": "what a format costs in quality, beside the unquantized weights",
    "passport": "this machine's noise, by measuring equals against each other",
    "runs": "the runs that are kept",
    "show": "one run's figures",
    "cassette": "record a run as a small text file, play one back, or list those that come with the lab",
    "export": "write ended runs into MLflow",
    "mlflow": "MLflow's own page on what was exported, until Ctrl-C",
    "prices": "what an hour of which machine costs, by which source",
    "compare": "two to six runs against the first",
    "plan": "replicas, cost and limits at a target, predicted from a run, with the error of such predictions",
    "review": "what a sceptic would ask of a run, and what is waived by name",
    "report": "one file for a review: HTML, or Markdown by its name",
    "selftest": "the lab measures itself against servers whose truth is known",
}
"""{name: what `--help` says of it}, in the order in which it lists them."""
