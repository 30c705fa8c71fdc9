"""The lab's models in a process of their own, loaded stage by stage; the code is what Triton runs (lab/serve/models).

    import_torch   numpy and torch, where the family computes with it
    import_model   the model's own code and what that brings: tokenizers, numba, scikit-learn
    read           every byte of the weights' files, from the disk or from the page cache
    convert        tensors out of them, as the kernels or the network want them: parsed, dequantized, packed
    compile        the kernels: compiled, or loaded from what an earlier start kept
    runtime        tokenizer, KV cache, engine; then the server (worker.py)
    warm_up        one request that nobody waits for (worker.py)

The order is that of a real start. A stage that a family or a remedy has not is not told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.serve.cold import limit, packed, pb_utils

Stage = Callable[[str], AbstractContextManager[None]]

TORCH = ("digits", "embedder", "network", "llm")
"""Families whose code imports torch."""
PIECE = 1 << 20
LLM_MODULES = ("llama_config", "quantized_reader", "packed_weights", "compiled_decoder", "engine", "engine_thread")
PLAIN_LLM_MODULES = ("llama_config", "decoder", "engine", "engine_thread")
"""Where torch computes: the other precisions."""


def load(job: Mapping[str, Any], stage: Stage) -> Tensors | Llm:
    """`job`: task.Task as a dict. Whatever goes wrong is raised."""
    family = job["family"]
    imports(job, stage)
    limit.apply(job["memory_limit_bytes"], job["cgroup"])  # before the weights come in; see limit.py why not earlier
    return Llm(job, stage) if family == "llm" else Tensors(job, stage)


def imports(job: Mapping[str, Any], stage: Stage) -> None:
    """What the family's code imports; a zygote has done it before it forks."""
    if job["family"] in TORCH:
        with stage("import_torch"):
            import numpy  # noqa: F401  what its import takes is a stage
            import torch

            torch.set_num_threads(1)
    with stage("import_model"):
        if job["folder"] not in sys.path:
            sys.path.insert(0, job["folder"])
        if job["family"] == "llm":
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            import_module("tokenizers")
            for name in _llm_modules(job):
                import_module(f"1.{name}")
        else:
            pb_utils.install()
            import_module("1.model")


def load_kernels(job: Mapping[str, Any]) -> None:
    """The compiled decoder's machine code into this process, by a decoder of one tiny layer: what is compiled does not
    depend on sizes. For a zygote: what it has loaded, its children have."""
    if job["family"] != "llm" or not _is_compiled(job):
        return
    import numpy as np

    config_of, reader = import_module("1.llama_config"), import_module("1.packed_weights")
    compiled = import_module("1.compiled_decoder")
    config = config_of.LlamaConfig(
        layers=1, hidden=64, mlp=64, heads=2, kv_heads=1, head_dim=32, vocabulary=64, context_tokens=32,
        rope_theta=1e4, norm_eps=1e-5, tied_embeddings=True, eos_tokens=frozenset(),
    )  # fmt: skip
    compiled.CompiledDecoder(config, reader.read(_Zeros(np), config), threads=1)


class _Zeros:
    """A folder of weights that are all zero, as packed_weights.read asks for them."""

    folder, precision, group_size = Path("zeros"), None, None

    def __init__(self, numpy: Any) -> None:
        self._np = numpy
        self._shapes = {"norm": (64,), "layernorm": (64,), "k_proj": (32, 64), "v_proj": (32, 64)}

    def bits(self, name: str) -> None:
        return None

    def check_alike(self, names: Any) -> None:
        return None

    def tensor(self, name: str) -> Any:
        import torch

        kind = name.removesuffix(".weight").rpartition(".")[2]
        return torch.zeros(self._shapes.get("layernorm" if kind.endswith("norm") else kind, (64, 64)))

    matrix = tensor


class Tensors:
    """A model that answers a request once: its TritonPythonModel, without Triton."""

    streams = False
    inputs: Mapping[str, tuple[str, int]]
    """{name: (datatype, length of an item)}, all of which a request must have."""

    def __init__(self, job: Mapping[str, Any], stage: Stage) -> None:
        served = import_module("1.model")
        self._pb = sys.modules["triton_python_backend_utils"]
        self._sample = job["sample"]
        self.inputs = {name: (kind, len(values)) for name, (kind, values) in self._sample.items()}
        if job["files"] and not job["mapped_weights"]:
            with stage("read"):
                read_through(job["files"])
        with stage("convert"):
            self._model = served.TritonPythonModel()
            if hasattr(self._model, "initialize"):
                self._model.initialize(dict(job["arguments"]))
        if job["torch_compile"]:
            with stage("compile"):
                compile_network(self._model)
                self.warm_up()

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """{output name: array}; RuntimeError when the model says what is wrong."""
        (response,) = self._model.execute([self._pb.InferenceRequest(inputs)])
        if response.error is not None:
            raise RuntimeError(str(response.error))
        return {tensor.name(): tensor.as_numpy() for tensor in response.tensors}

    def warm_up(self) -> None:
        import numpy as np

        made = {}
        for name, (kind, values) in self._sample.items():
            is_text = kind == "BYTES"
            made[name] = np.array([[v.encode() for v in values] if is_text else values], object if is_text else "f4")
        self.infer(made)


def compile_network(model: Any) -> None:
    """The network of a TritonPythonModel through torch.compile, in place. ValueError for one without such a network."""
    import torch

    if hasattr(model, "network"):
        # A size that is no example: else each new length of a text is compiled anew, while somebody waits for it.
        model.network = torch.compile(model.network, dynamic=True)
        return
    layers = list(getattr(model, "layers", ()))
    if not layers:
        raise ValueError(f"torch_compile true: {type(model).__module__} has no network that torch computes")

    def chain(x: Any) -> Any:
        for layer in layers[:-1]:
            x = layer(x).relu()
        return layers[-1](x)

    model.layers = [torch.compile(chain)]


class Llm:
    """The language model: the lab's engine in this process."""

    streams = True

    def __init__(self, job: Mapping[str, Any], stage: Stage) -> None:
        folder = Path(job["folder"]) / "1" / "weights"
        decoder = self._compiled(job, folder, stage) if _is_compiled(job) else self._plain(job, folder, stage)
        with stage("runtime"):
            engine, thread = import_module("1.engine"), import_module("1.engine_thread")
            tokenizer = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._engine = thread.EngineThread(engine.Engine(decoder, tokenizer, engine.Options(**job["options"])))

    @staticmethod
    def _compiled(job: Mapping[str, Any], folder: Path, stage: Stage) -> Any:
        compiled = import_module("1.compiled_decoder")
        if job["mapped_weights"]:
            with stage("read"):
                config = import_module("1.llama_config").LlamaConfig.read(folder)
                weights = import_module("1.forward").Weights(*packed.mapped(Path(job["packed"])))
        else:
            with stage("read"):
                read_through(job["files"])
            with stage("convert"):
                config = import_module("1.llama_config").LlamaConfig.read(folder)
                reader = import_module("1.quantized_reader").WeightsFolder(folder)
                weights = import_module("1.packed_weights").read(reader, config)
        with stage("compile"):
            return compiled.CompiledDecoder(
                config, weights, job["threads"], job["kv_cache_precision"], job["precision"]
            )

    @staticmethod
    def _plain(job: Mapping[str, Any], folder: Path, stage: Stage) -> Any:
        if not job["mapped_weights"]:
            with stage("read"):
                read_through(job["files"])
        with stage("convert"):
            decoder = import_module("1.decoder")
            kept = job["kv_cache_precision"]
            return decoder.decoder_of(folder, job["precision"], "cpu", job["threads"], kept)

    def generate(self, prompt: str, parameters: Mapping[str, Any]) -> Iterator[Any]:
        """Outputs of the engine (lab/serve/models/request.py), as they come. ValueError when the request is wrong."""
        outputs: Iterator[Any] = self._engine.generate(prompt, parameters)
        return outputs

    def warm_up(self) -> None:
        for _ in self.generate("Hello", {"max_tokens": 2, "temperature": 0.0, "ignore_eos": True}):
            pass


def read_through(files: list[str]) -> int:
    """Every byte of these files once; how many. From the disk where the page cache lacks them."""
    total, buffer = 0, bytearray(PIECE)
    for path in files:
        with Path(path).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def _is_compiled(job: Mapping[str, Any]) -> bool:
    return job["precision"] in ("bf16", "int8", "int8_weight", "int4")


def _llm_modules(job: Mapping[str, Any]) -> tuple[str, ...]:
    return LLM_MODULES if _is_compiled(job) else PLAIN_LLM_MODULES
