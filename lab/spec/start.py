"""How a model comes up from nothing, and when it goes again: what a cold start is made of, and scale to zero."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lab.spec.value import PositiveFloat, Value


class Start(Value):
    """A model started from "no process" to its first answer. The plain start keeps nothing; each remedy is a field.

    `runtime`         "process": one process serves the model by itself, as on a serverless platform; "triton": a
                      Triton server is started for it
    `page_cache`      of the weights' files: "cold" drops them before each start, "warm" has read them
    `compile_cache`   what the kernels' compiler made is kept on disk for the next start
    `torch_compile`   the network goes through torch.compile; for models that torch computes
    `mapped_weights`  the weights lie on disk as the kernels read them, and are mapped rather than read and converted
    `zygote`          a parent that has imported everything waits, and forks the process that serves
    `keep_warm`       the process is there already: its memory is the price
    """

    runtime: Literal["process", "triton"] = "process"
    page_cache: Literal["cold", "warm"] = "cold"
    compile_cache: bool = False
    torch_compile: bool = False
    mapped_weights: bool = False
    zygote: bool = False
    keep_warm: bool = False

    @model_validator(mode="after")
    def _triton_starts_its_own(self) -> Start:
        if self.runtime == "triton":
            for name in ("zygote", "mapped_weights", "torch_compile"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} true with runtime 'triton', which starts its own processes; allowed: false"
                    )
        return self


class Serverless(Value):
    """A runner that scales to zero: a worker is started when a request finds none free, and ends when it was idle.

    `idle_s`              a worker that has answered nothing for so long ends
    `concurrency`         requests that a worker answers at a time; one more waits, or starts another worker
    `max_workers`         that may live at a time
    `keep_warm`           workers that are there from the beginning and never end
    `memory_limit_bytes`  of a worker; one that needs more is refused, or ended while it starts. None: no limit
    `start_limit_s`       the longest that a start may take
    `queue_limit`         requests that may wait for a worker; one more is refused
    `start`               how a worker comes up
    """

    idle_s: PositiveFloat = 5.0
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    max_workers: Annotated[int, Field(ge=1, le=16)] = 1
    keep_warm: Annotated[int, Field(ge=0, le=16)] = 0
    memory_limit_bytes: Annotated[int, Field(ge=1)] | None = None
    start_limit_s: PositiveFloat = 120.0
    queue_limit: Annotated[int, Field(ge=0)] = 1024
    start: Start = Start(page_cache="warm", compile_cache=True)

    @model_validator(mode="after")
    def _consistent(self) -> Serverless:
        if self.keep_warm > self.max_workers:
            raise ValueError(
                f"keep_warm {self.keep_warm} with max_workers {self.max_workers}; allowed: 0 to {self.max_workers}"
            )
        if self.start.runtime != "process" or self.start.keep_warm:
            raise ValueError("start.runtime must be 'process' and start.keep_warm false: the runner starts its workers")
        return self
