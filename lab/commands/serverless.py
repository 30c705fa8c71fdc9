"""`lab serverless`: one model behind a runner that scales to zero, in the foreground."""

from __future__ import annotations

import argparse
from typing import Any

from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="a worker without a request ends")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests a worker answers at a time")
    parser.add_argument("--max-workers", type=int, default=1, metavar="N")
    parser.add_argument("--keep-warm", type=int, default=0, metavar="N", help="workers that never end")
    parser.add_argument("--memory-limit", metavar="SIZE", help="of a worker, such as 500MiB")
    parser.add_argument("--zygote", action="store_true", help="workers are forked from a parent with all imports done")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the model")


def run(options: argparse.Namespace) -> int:
    if not 0 <= options.port <= 65535:
        raise InputError(f"--port {options.port}: allowed: 1 to 65535, or 0 for any that is free")
    import signal
    import threading

    from lab.home import home
    from lab.measure.words import format_seconds
    from lab.run.gate import parse_size
    from lab.run.preflight import check_model
    from lab.run.serverless import Front
    from lab.spec import ModelSpec, Serverless, parse, parse_setting, set_paths

    model = set_paths(parse(ModelSpec, {"name": options.model}), [parse_setting(text) for text in options.set])
    check_model(model)
    maps = model.family in ("llm", "embedder", "digits") and model.precision != "fp16"
    asked = {
        "idle_s": options.idle,
        "concurrency": options.concurrency,
        "max_workers": options.max_workers,
        "keep_warm": options.keep_warm,
        "memory_limit_bytes": None if options.memory_limit is None else parse_size(options.memory_limit),
        "start": {
            "page_cache": "warm",
            "compile_cache": True,
            "mapped_weights": maps and not (model.family == "llm" and model.precision == "fp32"),
            "zygote": options.zygote,
        },
    }

    def told(kind: str, fields: dict[str, Any]) -> None:
        said = (
            fields.get("text")
            or fields.get("why")
            or (format_seconds(fields["seconds"]) if "seconds" in fields else "")
        )
        print(f"{kind.replace('_', ' ')} {fields['worker']}{f': {said}' if said else ''}", flush=True)

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    log = home() / "serverless.log"
    with Front(model, parse(Serverless, asked), log=log, on_event=told, port=options.port) as front:
        if front.runner.refusal:
            print(front.runner.refusal, flush=True)
        print(f"{model.name} behind a runner that scales to zero: {front.http_url}", flush=True)
        over.wait()
    return 0
