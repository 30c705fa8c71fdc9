"""The same prompts to the lab's engine in Triton, to vLLM and to TorchServe: speed, and how far their words agree.

    .venv/bin/python benchmarks/engines.py [--json] [--vllm-cpu PATH] [--torchserve PATH] [--quick]     about 4 minutes

SmolLM2-135M in bf16, 4 in flight, prompts of 32 tokens, answers of 64. The peers are started here, by their scripts
beside the project, and stay up together; TorchServe (Java 17) serves transformers by benchmarks/torchserve_handler.py.
Then `lab engines` measures all in one run. A peer that is missing is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.decode import START_LIMIT_S, running
from benchmarks.measuring import own_home
from benchmarks.table import Row, main, say
from lab.serve import installation, llama_weights, weights
from lab.serve.ports import pick
from lab.spec import ModelSpec

PEERS = Path(__file__).parents[2] / "shared" / "peers"
HANDLER = Path(__file__).with_name("torchserve_handler.py")
ARCHIVE = "writer"


def measure(vllm_cpu: Path, torchserve: Path, quick: bool) -> list[Row]:
    installation.fetch()
    weights.prepare(ModelSpec(name="llm"))
    folder = llama_weights.prepare()
    with own_home(), ExitStack() as up:
        engines = []
        if vllm_cpu.is_file():
            engines.append(f"openai+{up.enter_context(vllm(vllm_cpu, folder))}={folder.name}")
        if torchserve.is_file():
            engines.append(f"torchserve+{up.enter_context(served(torchserve, folder))}={ARCHIVE}")
        if not engines:
            return [Row("engines beside the lab's", None, "", None, 0, f"neither {vllm_cpu} nor {torchserve}")]
        command = [sys.executable, "-m", "lab", "engines", "--json", *(["--quick"] if quick else [])]
        command += [f"--engine={engine}" for engine in engines]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], check=False)
    if done.returncode:
        raise SystemExit(f"lab engines ended with status {done.returncode}")
    return rows_of(json.loads(done.stdout))


def rows_of(document: dict[str, Any]) -> list[Row]:
    found = document["engines"]
    say(found["text"])
    rows = []
    for row in found["rows"]:
        name, figures, n, note = row["name"], row["figures"], row["blocks"], row["error"] or ""
        rows += [
            Row(f"output tokens/s, {name}", figures["output_tokens_per_s"], "tokens/s", None, n, note),
            Row(f"answers/s, {name}", figures["throughput_rps"], "req/s", None, n, note),
            Row(f"TTFT p50, {name}", _ms(figures["ttft_p50_s"]), "ms", None, n, note),
        ]
        if agreed := row["agreement"]:
            what = f"answers in the same words as {found['against']}, {name}"
            rows.append(Row(what, agreed["equal"], f"of {agreed['of']}", None, agreed["of"]))
    return rows


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


@contextmanager
def vllm(peer: Path, folder: Path) -> Iterator[str]:
    (port,), _ = pick(count=1)
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}"}
    command = [str(peer), str(folder), str(port)]
    with running("vLLM", command, f"http://127.0.0.1:{port}", environment=environment) as url:
        yield url


@contextmanager
def served(peer: Path, folder: Path) -> Iterator[str]:
    """The URL of a TorchServe of our own, which serves `folder` by HANDLER."""
    (port, *_), _ = pick(count=3)  # its management and metrics take the next two
    ours = {"PYTHONPATH": sysconfig.get_path("purelib"), "LAB_WEIGHTS": str(folder), "TORCHSERVE_PORT": str(port)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as store:  # its workers log until they are gone
        environment = {**os.environ, **ours, "LOG_LOCATION": store, "METRICS_LOCATION": store}
        archive = ["--archiver", "--model-name", ARCHIVE, "--version", "1", "--handler", str(HANDLER)]
        subprocess.run([str(peer), *archive, "--export-path", store], env=environment, check=True, stdout=sys.stderr)
        command, url = [str(peer), store, f"{ARCHIVE}.mar"], f"http://127.0.0.1:{port}"
        with running("TorchServe", command, url, environment=environment, asked="/ping"):
            _first_answer(f"{url}/predictions/{ARCHIVE}")
            yield url


def _first_answer(url: str) -> None:
    """TorchServe says that it is well before its worker has loaded the model; an answer means that it has."""
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 4}).encode()
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=START_LIMIT_S) as answer:
        answer.read()


def options() -> argparse.Namespace:
    """Those of this benchmark, taken out of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--vllm-cpu", type=Path, default=PEERS / "vllm-cpu")
    parser.add_argument("--torchserve", type=Path, default=PEERS / "torchserve")
    parser.add_argument("--quick", action="store_true")
    found, sys.argv[1:] = parser.parse_known_args()
    return found


if __name__ == "__main__":
    asked = options()
    sys.exit(main(str(__doc__).splitlines()[0], lambda: measure(asked.vllm_cpu, asked.torchserve, asked.quick)))
