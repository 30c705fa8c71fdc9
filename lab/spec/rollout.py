"""A change of version that is tried out under load, and what the new version may cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lab.spec.value import Value

Challenger = Literal["good", "slower", "errs", "worse"]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Tolerance(Value):
    """What a challenger may cost. `alpha`: how often one that is no worse may be rolled back, and, apart from that,
    one that is worse be promoted. `errors` and `quality` are differences of rates, `latency` is of the ratio.
    `least_requests`: of the challenger at each step. `needs_quality`: no promotion before quality was shown to be fine,
    which takes scores."""

    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    errors: Fraction = 0.005
    latency: Fraction = 0.10
    quality: Fraction = 0.02
    least_requests: Annotated[int, Field(ge=1)] = 100
    needs_quality: bool = False


class Rollout(Value):
    """Version 2 of the experiment's model beside version 1, behind a real gateway (lab/track/rehearsal).

    `way`: "canary": version 2 gets the share of each step in turn, and the guard promotes it or rolls it back;
    "blue_green": both stand in a Triton of their own, all traffic is switched to the second and back
    `challenger`: what version 2 is: the model in bf16, "good"; with a planted fault: 20 ms more in one answer of ten,
    "slower"; 2 % errors, "errs"; wrong in 5 % more, "worse"
    `streams`: users beside it whose language model's answers are on their way when the switch comes
    """

    way: Literal["canary", "blue_green"]
    challenger: Challenger = "good"
    steps: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=2)] = (0.05, 0.25, 1.0)
    tolerance: Tolerance = Tolerance()
    streams: Annotated[int, Field(ge=0, le=64)] = 0

    @model_validator(mode="after")
    def _steps_ascend(self) -> Rollout:
        if list(self.steps) != sorted(set(self.steps)) or self.steps[-1] != 1:
            raise ValueError(f"steps {list(self.steps)}; allowed: shares that ascend to 1, such as [0.05, 0.25, 1]")
        return self
