"""An autoscaler's decisions: what was seen in, how many instances out. The same code decides in the simulator
(autoscale_sim.py) and on a real server (lab/run/scaler.py).

The formulas are Knative's pod autoscaler's (knative.dev, "KPA-specific configuration": stable and panic window, panic
threshold, scale-down delay) and Kubernetes' HorizontalPodAutoscaler's (kubernetes.io, "Algorithm details": ceil(current
× metric ÷ target), tolerance, stabilisation window); lab/spec/scaling.py names each. Both act on averages over windows,
so a burst is seen late by about the window, and answered a start of an instance after that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from lab.spec import Scaling

SAMPLE_S = 0.1
"""Between two looks at the queue; a mean over a window is one over these."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Sample:
    """`in_flight`: requests in the system; `waiting`: those of them that no instance works on; `arrived`: since the
    beginning."""

    t_s: float
    in_flight: float
    waiting: float
    arrived: int


class Autoscaler:
    """Rules at work. `observe` every SAMPLE_S, `decide` every `rules.tick_s`; times ascend."""

    def __init__(self, rules: Scaling) -> None:
        self.rules = rules
        self._samples: deque[Sample] = deque()
        self._wanted: deque[tuple[float, int]] = deque()
        self._panic_until_s = -math.inf
        self._panic_most = 0
        self._changed_s = -math.inf

    def observe(self, sample: Sample) -> None:
        self._samples.append(sample)
        while self._samples[0].t_s < sample.t_s - self.rules.window_s - SAMPLE_S:
            self._samples.popleft()

    def decide(self, t_s: float, current: int) -> int:
        """How many instances there should be; `current` of them serve."""
        wanted = self._within(self._want(t_s, current))
        self._wanted.append((t_s, wanted))
        while self._wanted[0][0] < t_s - self.rules.down_after_s:
            self._wanted.popleft()
        if wanted < current:
            wanted = min(current, max(one for _, one in self._wanted))
        if wanted != current and t_s < self._changed_s + self.rules.cooldown_s:
            return current
        if wanted != current:
            self._changed_s = t_s
        return wanted

    def _want(self, t_s: float, current: int) -> int:
        rules = self.rules
        metric = self.metric(t_s, rules.window_s)
        stable = self._instances(metric, current)
        if rules.panic_window_s is None:
            return stable
        sudden = self._instances(self.metric(t_s, rules.panic_window_s), current)
        if sudden >= rules.panic_threshold * current:
            self._panic_until_s = t_s + rules.window_s
        if t_s >= self._panic_until_s:
            self._panic_most = 0
            return stable
        self._panic_most = max(self._panic_most, sudden, current)
        return self._panic_most

    def _instances(self, metric: float, current: int) -> int:
        rules = self.rules
        if current and abs(metric / (current * rules.target) - 1) <= rules.tolerance:
            return current
        return math.ceil(metric / rules.target - ROUNDING)

    def metric(self, t_s: float, window_s: float) -> float:
        """The mean over the window; at the beginning over as much as there is. 0 before anything was seen."""
        samples = list(self._samples)
        own = samples[bisect_left(samples, t_s - window_s - ROUNDING, key=lambda one: one.t_s) :]
        if not own:
            return 0.0
        if self.rules.metric == "rps":
            seconds = own[-1].t_s - own[0].t_s
            return (own[-1].arrived - own[0].arrived) / seconds if seconds > 0 else 0.0
        values = [one.in_flight if self.rules.metric == "concurrency" else one.waiting for one in own]
        return sum(values) / len(values)

    def _within(self, count: int) -> int:
        return min(max(count, self.rules.least), self.rules.most)
