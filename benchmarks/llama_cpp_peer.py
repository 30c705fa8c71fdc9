"""Tokens a second of llama.cpp, one sequence, greedy; run by the Python of an environment that has llama-cpp-python.

    PYTHON benchmarks/llama_cpp_peer.py FILE.gguf THREADS NEW_TOKENS < prompts.json      a rate for each prompt, as JSON

Through llama.cpp's own C functions: the package's Python layer copies logits and samples in Python, which at 10 ms a
token would count.
"""

import ctypes
import json
import sys
import time

import llama_cpp as llama


def main(file: str, threads: int, new_tokens: int) -> None:
    prompts = json.load(sys.stdin)
    llama.llama_log_set(SILENT, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
    wanted = llama.llama_context_default_params()
    wanted.n_ctx = max(len(prompt) for prompt in prompts) + new_tokens
    wanted.n_threads = wanted.n_threads_batch = threads
    context = llama.llama_init_from_model(model, wanted)
    sampler = llama.llama_sampler_init_greedy()
    print(json.dumps([rate(context, sampler, prompt, new_tokens) for prompt in prompts]))


def rate(context: object, sampler: object, prompt: list[int], new_tokens: int) -> float:
    """From the prompt's first token to the last new one."""
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    tokens = (llama.llama_token * len(prompt))(*prompt)
    began = time.perf_counter()
    for _ in range(new_tokens):
        if llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(tokens))):
            raise SystemExit("llama_decode failed")
        tokens = (llama.llama_token * 1)(llama.llama_sampler_sample(sampler, context, -1))
    return new_tokens / (time.perf_counter() - began)


@llama.llama_log_callback
def SILENT(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
