"""How many instances serve a model, decided again and again from what is asked of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lab.spec.value import NonNegativeFloat, PositiveFloat, Value

Metric = Literal["concurrency", "queue", "rps"]


class Scaling(Value):
    """An autoscaler's rules. Every `tick_s` it wants

        ceil(mean of `metric` over `window_s` ÷ `target`)

    instances, within `least` and `most`. That is Knative's rule (KPA: stable window 60 s, tick 2 s), and with an
    average value as its metric Kubernetes' (HPA: ceil(current × metric ÷ target), tick 15 s).

    `metric`          "concurrency": requests in the system, those that wait included; "queue": those that wait alone;
                      "rps": arrivals a second
    `panic_window_s`  a short window beside: where it wants `panic_threshold` times as many instances as there are or
                      more, the short window decides, and nothing goes down until `window_s` after that (KPA: 6 s, 2)
    `tolerance`       the metric may be off its target by that share before anything changes (HPA: 0.1)
    `down_after_s`    down only to the most that was wanted within that time (HPA's stabilisation window: 300 s; KPA's
                      scale-down-delay: 0)
    `cooldown_s`      after a change nothing changes for so long
    """

    metric: Metric = "concurrency"
    target: PositiveFloat = 1.0
    least: Annotated[int, Field(ge=1, le=16)] = 1
    most: Annotated[int, Field(ge=1, le=16)] = 4
    tick_s: PositiveFloat = 1.0
    window_s: PositiveFloat = 10.0
    panic_window_s: PositiveFloat | None = None
    panic_threshold: Annotated[float, Field(ge=1, le=100)] = 2.0
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    down_after_s: NonNegativeFloat = 0.0
    cooldown_s: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _bounds_fit(self) -> Scaling:
        if self.least > self.most:
            raise ValueError(f"least {self.least} is above most {self.most}; allowed: 1 to {self.most}")
        if self.panic_window_s is not None and self.panic_window_s > self.window_s:
            raise ValueError(
                f"panic_window_s {self.panic_window_s:g} is longer than window_s {self.window_s:g}; "
                f"allowed: up to {self.window_s:g}, or null"
            )
        return self
