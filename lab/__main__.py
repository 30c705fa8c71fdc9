"""The command line: what a page does, a script can do.

`--json` prints one JSON document on stdout; everything else goes to stderr. Exit status: 0 done, 1 the work failed,
2 the user's input is wrong, 130 stopped by Ctrl-C. Errors are one line; LAB_DEBUG=1 adds the traceback.
Imports stay inside the commands: `python -m lab runs` must not wait for torch or gRPC.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lab.errors import FolderError, InputError, LabError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "µ" gets "?", not a traceback
    try:
        options = _parser().parse_args(argv)
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except LabError as error:
        if os.environ.get("LAB_DEBUG") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # `lab runs | head` closed our stdout; a complaint at exit would follow
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if os.environ.get("LAB_DEBUG") == "1":
            raise
        print(f"error: {error.filename or 'this command'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(prog="python -m lab", description="An interactive serving lab.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_OneLineParser)

    def command(name: str, function: Any, help_text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help_text, description=help_text)
        added.set_defaults(command=function)
        return added

    command("doctor", doctor, "what is here, what is missing, what to do about it").add_argument(
        "--json", action="store_true"
    )
    command("fetch", fetch, "download ahead of time").add_argument("what", nargs="*", metavar="triton|MODEL")

    sub = command("up", up, "the dashboard with a managed Triton behind it, until Ctrl-C")
    sub.add_argument("--port", type=int, default=8501)

    sub = command("serve", serve, "a managed Triton in the foreground, until Ctrl-C")
    sub.add_argument("--model", action="append", default=[], metavar="NAME")
    sub.add_argument("--budget", metavar="SIZE", help="memory for all models, such as 500MiB; loaded when asked for")
    sub.add_argument("--pin", action="append", default=[], metavar="NAME", help="with --budget: never evicted")

    sub = command("run", run_experiment, "run an experiment")
    sub.add_argument("experiment")
    sub.add_argument("--quick", action="store_true", help="a minute or two, rough figures")
    sub.add_argument("--repeats", type=int)
    _run_options(sub)

    sub = command("load", load, "put one load on one model")
    sub.add_argument("--model", required=True)
    sub.add_argument("--url", help="grpc://, http:// or openai+http://HOST:PORT of a server that runs already")
    rate = sub.add_mutually_exclusive_group(required=True)
    rate.add_argument("--rate", type=float, metavar="RPS", help="open loop: Poisson arrivals a second")
    rate.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    sub.add_argument("--duration", type=float, required=True, metavar="SECONDS")
    sub.add_argument("--warmup", type=float, metavar="SECONDS", help="left out of every figure; default a tenth")
    sub.add_argument("--prompt-tokens", type=_lengths, metavar="N|N-M", help="language model: length of the prompts")
    sub.add_argument("--output-tokens", type=_lengths, metavar="N|N-M", help="language model: length of the answers")
    sub.add_argument("--stream", action=argparse.BooleanOptionalAction, help="language model: answers token by token")
    _run_options(sub)

    sub = command("leak", leak, "load and unload a model again and again: does its memory come back?")
    sub.add_argument("model", metavar="MODEL", help="a model of the lab, or a model folder with its config.pbtxt")
    sub.add_argument("--cycles", type=int, default=10, help="counted cycles, after two that are not; default 10")
    sub.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    sub.add_argument("--json", action="store_true")

    sub = command("quantize", quantize, "find the integer weights of a language model ahead of time")
    _model_options(sub)
    sub = command("quality", quality, "what a format costs in quality, beside the unquantized weights")
    _model_options(sub)
    sub.add_argument("--all", action="store_true", help="every format of the model on this machine")
    sub.add_argument("--blocks", action="store_true", help="also what each block costs when it alone is quantized")

    command("runs", runs, "the runs that are kept").add_argument("--json", action="store_true")
    sub = command("show", show, "one run's figures")
    sub.add_argument("run")
    sub.add_argument("--json", action="store_true")
    _price_option(sub)
    sub = command("export", export, "write ended runs into MLflow")
    sub.add_argument("runs", nargs="+", metavar="RUN")
    sub = command("mlflow", mlflow, "MLflow's own page on what was exported, until Ctrl-C")
    sub.add_argument("--port", type=int, default=5000)
    sub.add_argument("--install", action="store_true", help="only make the environment that MLflow lives in")
    command("prices", prices, "what an hour of which machine costs, by which source").add_argument(
        "--json", action="store_true"
    )
    sub = command("compare", compare, "two to six runs against the first")
    sub.add_argument("runs", nargs="+", metavar="RUN[.CELL]")
    sub.add_argument("--json", action="store_true")
    sub = command("report", report, "one file for a review: HTML, or Markdown by its name")
    sub.add_argument("runs", nargs="+", metavar="RUN[.CELL]")
    sub.add_argument("-o", "--out", required=True, metavar="FILE.html")
    sub.add_argument("--claim", metavar="TEXT", help="what it is to show; default: the experiment's hypothesis")
    sub.add_argument("--waive", action="append", default=[], metavar="QUESTION=WHO AND WHY")
    _price_option(sub)
    command("selftest", selftest, "the lab measures itself against servers whose truth is known").add_argument(
        "--json", action="store_true"
    )
    return parser


def _model_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--model", default="llm", metavar="NAME")
    sub.add_argument("--set", action="append", default=[], metavar="model.FIELD=VALUE", dest="settings")
    sub.add_argument("--json", action="store_true")


def _run_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    sub.add_argument("--json", action="store_true")
    sub.add_argument("--run-id", help=argparse.SUPPRESS)
    sub.add_argument("--mlflow", action="store_true", help="write it into MLflow once it is over, on the side")
    _price_option(sub)


def _price_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--price", metavar="ID", help="say what it cost at that price; `prices` lists them")


def _lengths(text: str) -> Any:
    """8 or [8, 128] from "8" or "8-128"."""
    try:
        least, dash, most = text.partition("-")
        return [int(least), int(most)] if dash else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a number of tokens, or two such as 8-128") from None


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def doctor(options: argparse.Namespace) -> int:
    from lab.serve.doctor import checks

    found = checks()
    if options.json:
        _print_json({"checks": [{"name": c.name, "ok": c.ok, "found": c.found, "remedy": c.remedy} for c in found]})
    else:
        for check in found:
            print(f"{'ok     ' if check.ok else 'MISSING'} {check.name}: {check.found}")
            if not check.ok:
                print(f"        {check.remedy}")
    return 0 if all(check.ok for check in found) else 1


def fetch(options: argparse.Namespace) -> int:
    from lab.serve import installation, weights
    from lab.spec import FAMILIES, ModelSpec, nearest, parse

    allowed = ("triton", *FAMILIES)
    for what in options.what:
        if what not in allowed:
            raise InputError(f"fetch {what!r}: there is no such thing{nearest(what, allowed)}")
    for what in dict.fromkeys(options.what) or allowed:
        if what == "triton":
            installation.fetch()
        else:
            weights.prepare(parse(ModelSpec, {"name": what}))
        say(f"{what} is here")
    return 0


def up(options: argparse.Namespace) -> int:
    from lab.run.dashboard import run_dashboard

    if not 0 <= options.port <= 65_535:
        raise InputError(f"port {options.port}: allowed are 1 to 65535, or 0 for any that is free")
    return run_dashboard(options.port, say)


def serve(options: argparse.Namespace) -> int:
    from lab.serve.triton import serve_forever
    from lab.spec import ModelSpec, parse

    models = [parse(ModelSpec, {"name": name}) for name in dict.fromkeys(options.model)]
    if options.budget is None:
        if options.pin:
            raise InputError(f"--pin {options.pin[0]} without --budget: nothing is ever evicted; allowed: both or none")
        serve_forever(models)
        return 0
    from lab.run.gate import behind_budget, parse_size

    budget = parse_size(options.budget)
    names = [model.name for model in models]
    if stranger := next((name for name in options.pin if name not in names), None):
        raise InputError(f"--pin {stranger}: no --model of that name; allowed: {', '.join(names) or 'none is given'}")
    serve_forever([], lambda server: behind_budget(server, models, budget, options.pin))
    return 0


def run_experiment(options: argparse.Namespace) -> int:
    from lab.run.catalogue import experiment
    from lab.run.plan import settle
    from lab.spec import parse_setting, set_path

    chosen = settle(experiment(options.experiment), [parse_setting(s) for s in options.settings], quick=options.quick)
    if options.repeats is not None:
        chosen = set_path(chosen, "repeats", options.repeats)
    return _run(chosen, options, quick=options.quick)


def load(options: argparse.Namespace) -> int:
    from lab.run.catalogue import single

    url = options.url or ""
    arrival: dict[str, Any] = {"kind": "closed", "concurrency": options.concurrency}
    if options.rate is not None:
        arrival = {"kind": "poisson", "rate_rps": options.rate}
    model: dict[str, Any] = {"name": options.model}
    workload: dict[str, Any] = {
        "arrival": arrival,
        "duration_s": options.duration,
        "warmup_s": options.duration / 10 if options.warmup is None else options.warmup,
        "protocol": "http" if url.lower().startswith("http://") else "grpc",
    }
    if url.lower().startswith("openai+"):
        model = {"name": "llm"}
        workload |= {"protocol": "openai", "served_model": options.model}
    for field in ("prompt_tokens", "output_tokens", "stream"):
        if getattr(options, field) is not None:
            workload[field] = getattr(options, field)
    chosen = single(model, workload, options.settings)
    if options.url is not None:
        _check_server(options.url, options.model)
    return _run(chosen, options, quick=False, url=options.url)


def _check_server(url: str, model: str) -> None:
    """Somebody else's server must answer and serve the model before there is a run."""
    from lab.run.bench import at
    from lab.spec import nearest

    with at(url) as server:
        states = {state.name: state for state in server.states()}
        if model not in states:
            raise InputError(f"model {model!r}: the server at {url} has none of that name{nearest(model, states)}")
        if not states[model].ready:
            raise InputError(f"model {model!r} is not ready at {url}: {states[model].reason}")


def _free(run_id: str) -> str:
    """The run id that was asked for, if a run can be made under it."""
    from lab.home import home
    from lab.run.folder import RUN_ID

    if not RUN_ID.fullmatch(run_id):
        raise InputError(f"--run-id {run_id!r}: allowed are 8 to 60 lower-case letters, digits and dashes")
    if (home() / "runs" / run_id).exists():
        raise InputError(f"--run-id {run_id!r}: that run exists already; watch it, or start one under another id")
    return run_id


def _run(chosen: Any, options: argparse.Namespace, *, quick: bool, url: str | None = None) -> int:
    from lab.run import devices, preflight, results, runner
    from lab.run.folder import new_run_id
    from lab.run.prices import find

    chosen, missing = (chosen, []) if url is not None else devices.without_missing(chosen)
    if options.price is not None:
        find(options.price)  # before there is a run that cannot be priced
    preflight.check(chosen, url)
    run_id = new_run_id(chosen.id) if options.run_id is None else _free(options.run_id)
    stop = runner.Stop().on_signals()
    folder = runner.create(chosen, run_id, quick=quick, settings=options.settings, url=url, missing=missing)
    say(f"run {folder.run_id}")
    failure: LabError | None = None

    def report(line: str) -> None:
        folder.log(line)
        say(line)

    try:
        runner.run(chosen, folder, stop=stop, report=report, url=url)
    except LabError as error:
        failure = error
    if options.mlflow:
        from lab.track import mlflow_export

        mlflow_export.start(folder.run_id)
    _tell(results.document(folder), folder.document["experiment"], options)
    if failure is not None:
        raise failure
    return INTERRUPTED if stop() else 0


def leak(options: argparse.Namespace) -> int:
    from lab.run import leak as hunt
    from lab.spec import parse_setting

    model = hunt.subject(options.model, [parse_setting(s) for s in options.settings])
    found = hunt.leak(model, options.cycles, report=say)
    if options.json:
        _print_json({"model": model.name, **found.to_dict()})
    else:
        print(found.text)
    return 1 if found.verdict == "leak" else 0


def _model(options: argparse.Namespace) -> Any:
    """The model of --model and --set model.FIELD=VALUE."""
    from lab.spec import ModelSpec, parse, parse_setting

    fields: dict[str, Any] = {"name": options.model}
    for path, value in map(parse_setting, options.settings):
        if not path.startswith("model."):
            raise InputError(f"--set {path}: there is only a model here; allowed: model.FIELD=VALUE")
        fields[path.removeprefix("model.")] = value
    return parse(ModelSpec, fields)


def quantize(options: argparse.Namespace) -> int:
    from lab.serve import quantized, weights

    model = _model(options)
    if not quantized.is_quantized(model):
        allowed = f"family llm with precision {', '.join(quantized.PRECISIONS)}"
        raise InputError(f"quantize: {model.family} in {model.precision} has no weights of its own; allowed: {allowed}")
    weights.prepare(model)
    document, place = quantized.document(model) or {}, quantized.folder(model)
    if options.json:
        _print_json({**document, "folder": str(place)})
    else:
        print(place)
    return 0


def quality(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lab.run import quality, quality_text
    from lab.run.lock import MeasureLock

    model = _model(options)
    quality.check(model)  # before it waits for its turn
    models = quality.formats(model) if options.all else [model]
    for each in models:
        quality.check(each)
    if options.blocks:
        quality.check_blocks(model)
    with MeasureLock("quality") as lock:  # it takes all processors, and a run would measure that
        lock.acquire(_waiting())
        found = [quality.evaluate(each) for each in models]
        blocks = quality.evaluate_blocks(model) if options.blocks else ()
    if options.json:
        _print_json({"formats": [each.to_dict() for each in found], "blocks": [asdict(block) for block in blocks]})
    else:
        print(
            "\n".join([*quality_text.table(found), *(quality_text.blocks(found[-1].format, blocks) if blocks else ())])
        )
    return 0


def _waiting() -> Any:
    """Tells once behind whom it waits."""
    told: set[str] = set()

    def tell(place: int, holder: str) -> None:
        if holder not in told:
            told.add(holder)
            say(f"waiting: place {place} behind {holder}")

    return tell


def runs(options: argparse.Namespace) -> int:
    from lab.run.folder import runs as kept

    found = kept()
    if options.json:
        _print_json({"runs": [{"run": r.run_id, "state": r.state, "created_utc": r.created_utc} for r in found]})
    else:
        for info in found:
            print(f"{info.run_id}  {info.state}")
    return 0


def show(options: argparse.Namespace) -> int:
    from lab.run import results
    from lab.run.folder import RunFolder

    try:
        folder = RunFolder.open(options.run)
        document = results.document(folder)
    except FolderError as error:
        raise InputError(str(error)) from None
    _tell(document, folder.document["experiment"], options)
    return 0


def _tell(document: dict[str, Any], declared: dict[str, Any], options: argparse.Namespace) -> None:
    """A run's document, with its cost where a price is asked for."""
    from lab import deciding
    from lab.run.text import lines

    document = deciding.add_price(document, options.price, declared)
    if options.json:
        _print_json(deciding.as_json(document))
    else:
        print("\n".join([*lines(document), *deciding.cost_lines(document, declared)]))


def export(options: argparse.Namespace) -> int:
    from lab import deciding

    return deciding.export(options.runs, say)


def mlflow(options: argparse.Namespace) -> int:
    from lab.track import mlflow_export

    if not options.install:
        mlflow_export.serve_ui(options.port, say)
    mlflow_export.install(say)
    say("MLflow is here")
    return 0


def prices(options: argparse.Namespace) -> int:
    from lab import deciding

    if options.json:
        _print_json(deciding.prices_as_json())
    else:
        print("\n".join(deciding.show_prices()))
    return 0


def compare(options: argparse.Namespace) -> int:
    from lab import deciding

    try:
        lines, document = deciding.compare(options.runs)
    except FolderError as error:
        raise InputError(str(error)) from None
    if options.json:
        _print_json(document)
    else:
        print("\n".join(lines))
    return 0


def report(options: argparse.Namespace) -> int:
    from lab import deciding

    try:
        print(deciding.write_report(options))
    except FolderError as error:
        raise InputError(str(error)) from None
    return 0


def selftest(options: argparse.Namespace) -> int:
    from lab.run.selftest import run_selftest

    outcomes = run_selftest(say)
    if options.json:
        _print_json({"tests": [outcome.to_dict() for outcome in outcomes]})
    else:
        for outcome in outcomes:
            print(outcome.line())
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
