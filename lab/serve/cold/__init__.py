"""One process that serves one model by itself, without Triton, and how it comes up: every stage stamped on one clock.

starter.py    the owner's side: prepares what a remedy keeps and starts workers; started.py: one that is up;
              line.py: its connection with its owner
worker.py     the process: `python -m lab.serve.cold.worker`; zygote.py: the parent that forks it, imports done
models.py     the lab's models in it, loaded stage by stage; pb_utils.py: what they know of Triton
http.py       how it is asked: Triton's /infer and /generate_stream
packed.py     weights as the kernels read them, on disk, mapped
page_cache.py, limit.py   what the operating system keeps of files; how much memory a worker may take
in_triton.py  the same start inside a Triton; marked.py: what stands there before a model's own code
"""
