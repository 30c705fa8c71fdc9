"""What the gateway says of itself to Prometheus, in its text format 0.0.4. A request is in lab_gateway_requests_total
once it has a version; one that was turned away before is in lab_gateway_http_responses_total alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SCORE = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)

Labels = tuple[str, ...]


class Count:
    """A counter by labels."""

    def __init__(self, name: str, help_text: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help_text, labels
        self.values: dict[Labels, float] = {}

    def add(self, at: Labels, more: float = 1) -> None:
        self.values[at] = self.values.get(at, 0) + more

    def lines(self) -> list[str]:
        head = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} counter"]
        return head + [f"{self.name}{_labelled(self.labels, at)} {value:g}" for at, value in self.values.items()]


class Histogram:
    """Observations by labels, in buckets up to each bound."""

    def __init__(self, name: str, help_text: str, labels: Labels, bounds: tuple[float, ...]) -> None:
        self.name, self.help, self.labels, self.bounds = name, help_text, labels, bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, at: Labels, value: float) -> None:
        if at not in self.counts:
            self.counts[at], self.sums[at] = [0] * (len(self.bounds) + 1), 0.0
        self.counts[at][bisect_left(self.bounds, value)] += 1
        self.sums[at] += value

    def lines(self) -> list[str]:
        found = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"]
        for at, counts in self.counts.items():
            below = 0
            for bound, count in zip((*self.bounds, "+Inf"), counts, strict=True):
                below += count
                told = _labelled((*self.labels, "le"), (*at, bound if isinstance(bound, str) else f"{bound:g}"))
                found.append(f"{self.name}_bucket{told} {below}")
            plain = _labelled(self.labels, at)
            found += [f"{self.name}_sum{plain} {self.sums[at]:.9g}", f"{self.name}_count{plain} {below}"]
        return found


class Metrics:
    def __init__(self) -> None:
        by = ("model", "version")
        self.responses = Count(
            "lab_gateway_http_responses_total", "Answers over HTTP; 499: the client went away before.",
            ("path", "status"),
        )  # fmt: skip
        self.requests = Count("lab_gateway_requests_total", "Requests that ended, by how they ended.", (*by, "outcome"))
        self.tokens = Count("lab_gateway_output_tokens_total", "Tokens that were generated.", by)
        self.shadows = Count(
            "lab_gateway_shadow_requests_total", "Copies sent to a shadowing version, by what they said.",
            (*by, "answer"),
        )  # fmt: skip
        self.refusals = Count(
            "lab_gateway_doubted_refusals_total",
            "Requests that one version of a rollout refused, by what the other then did.", (*by, "other"),
        )  # fmt: skip
        self.latency = Histogram(
            "lab_gateway_request_seconds", "From arrival to the end of answered requests.", by, LATENCY_S
        )
        self.first = Histogram(
            "lab_gateway_first_token_seconds", "From arrival to the first part of a streamed answer.", by, LATENCY_S
        )
        self.scores = Histogram("lab_gateway_score", "Scores that answers were given.", by, SCORE)

    def text(self, in_flight: Mapping[tuple[str, str], int]) -> str:
        lines: list[str] = []
        families = (
            self.responses, self.requests, self.tokens, self.shadows, self.refusals, self.latency, self.first,
            self.scores,
        )  # fmt: skip
        for family in families:
            lines += family.lines()
        lines += [
            "# HELP lab_gateway_in_flight Requests under way.",
            "# TYPE lab_gateway_in_flight gauge",
            *(f"lab_gateway_in_flight{_labelled(('model', 'version'), at)} {n}" for at, n in in_flight.items()),
        ]
        return "\n".join(lines) + "\n"


def _labelled(names: Labels, values: Labels) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{n}="{quoted(v)}"' for n, v in zip(names, values, strict=True)) + "}"
