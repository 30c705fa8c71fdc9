"""Self-tests without a server: arithmetic whose answer is known before it is done.

S4 arrivals, S6 enough samples, S14 identities, S17 stability. Each holds the lab's own functions against numpy, against
the tables of MLPerf LoadGen, or against figures made up so that the answer is on paper.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

from lab.load.schedule import arrivals
from lab.measure.cost import cost
from lab.measure.percentile import needed, percentile
from lab.measure.prices import Price
from lab.measure.records import OK, Requests, Streams, Window
from lab.measure.steady import steadiness
from lab.measure.summary import Summary, summarize
from lab.run.outcome import Outcome
from lab.spec import Constant, Poisson, Slo

SECOND = 1_000_000_000
LOADGEN = {0.9: 44, 0.95: 90, 0.99: 459, 0.999: 4603}


def all_of_them() -> Iterator[Outcome]:
    yield _arrivals()
    yield _samples()
    yield _identities()
    yield _stability()


def _arrivals() -> Outcome:
    """50,000 gaps at 50/s: enough of them that their mean is within 2 % (4.5 times its standard error, 1/√n) and that
    the counts of 1,000 seconds vary as Poisson counts do, within 20 % (4.5 times √(2/n))."""
    rate_rps, seconds = 50, 1000
    drawn = arrivals(Poisson(rate_rps=rate_rps), float(seconds), 0)
    gaps_s = np.diff(drawn) / 1e9
    mean, cv = float(np.mean(gaps_s)), float(np.std(gaps_s) / np.mean(gaps_s))
    a, b = gaps_s[:-1] - mean, gaps_s[1:] - mean
    lag = float(np.sum(a * b) / np.sum((gaps_s - mean) ** 2))
    below_mean = float((gaps_s < mean).mean())
    ks = float(stats.kstest(gaps_s, "expon", args=(0, 1 / rate_rps)).pvalue)
    counts = np.bincount(drawn // SECOND, minlength=seconds)
    dispersion = float(counts.var() / counts.mean())
    same = np.array_equal(drawn, arrivals(Poisson(rate_rps=rate_rps), float(seconds), 0))
    steady = np.diff(arrivals(Constant(rate_rps=1000), 5.0, 0)) / 1e9
    passed = (
        abs(mean * rate_rps - 1) < 0.02
        and 0.95 < cv < 1.05
        and ks > 0.01
        and abs(lag) < 0.05
        and 0.8 < dispersion < 1.2
        and abs(below_mean - (1 - np.exp(-1))) < 0.03
        and same
        and float(np.std(steady)) < 5e-5
    )
    text = (
        f"{len(gaps_s):,} Poisson gaps: mean {100 * (mean * rate_rps - 1):+.2f} % off, variation {cv:.3f}, KS p "
        f"{ks:.2f}, lag-1 correlation {lag:+.3f}; variance of the counts a second {dispersion:.2f} × their mean"
    )
    tolerance = "mean 2 %, variation 5 %, KS p > 0.01, |correlation| < 0.05, counts 20 %"
    return Outcome("S4", passed, cv, 1.0, tolerance, text)


def _samples() -> Outcome:
    """Percentiles are numpy's, and are shown from LoadGen's counts on and not one sample earlier."""
    rng = np.random.default_rng(6)
    wrong = [p for p, count in LOADGEN.items() if needed(p) != count]
    for n in (1, 2, 10, 459, 10_000):
        values = rng.exponential(size=n)
        wrong += [p for p in (0.5, 0.9, 0.99) if abs((percentile(values, p) or 0) - np.quantile(values, p)) > 1e-12]
    for n in (458, 459):
        shown = _figures(np.full(n, 0.01)).latency_p99_s is not None
        wrong += [n] if shown != (n >= 459) else []
    text = f"{len(wrong)} of 21 percentiles and thresholds are not numpy's and LoadGen's"
    return Outcome("S6", not wrong, float(len(wrong)), 0.0, "exact", text)


def _figures(latency_s: np.ndarray, streams: Streams | None = None, seconds: float = 10.0) -> Summary:
    n = len(latency_s)
    due = (np.arange(n) * seconds / max(n, 1) * SECOND).astype(np.int64)
    done = due + (latency_s * SECOND).astype(np.int64)
    requests = Requests(due, due, done, np.full(n, OK, np.uint8), None, streams)
    window = Window(0, 0, int(seconds * SECOND))
    return summarize(requests, window=window, planned=n, slo=Slo(latency_s=1.0))


def _identities() -> Outcome:
    """100 answers of 20 tokens, the first after 50 ms, one each 10 ms: E2E = TTFT + 19 × ITL = 240 ms; and the price of
    2 $/h at what they come to."""
    n, tokens = 100, 20
    first = (np.arange(n) * 0.1 * SECOND).astype(np.int64)
    stamps = (first[:, None] + ((0.05 + 0.01 * np.arange(tokens)) * SECOND).astype(np.int64)[None, :]).ravel()
    counts = np.full(n, tokens, np.int64)
    none, first_chunk = np.zeros(n, np.int64), np.arange(n + 1) * tokens
    streams = Streams(counts, counts, none, first_chunk, stamps, np.ones(n * tokens, np.int64))
    found = _figures(np.full(n, 0.05 + 0.01 * (tokens - 1)), streams)
    e2e = (found.ttft_mean_s or 0) + (tokens - 1) * (found.itl_mean_s or 0)
    price = Price("self-test", "none", "none", 1, "on_demand", 2.0, "arithmetic", "2000-01-01", "made up")
    asked = {**found.to_dict(), "output_tokens_per_s": 100.0, "good_tokens_per_s": 100.0}
    dollars = cost(asked, price).usd_per_million_tokens
    nothing = cost({**asked, "output_tokens_per_s": 0.0}, price).usd_per_million_tokens
    rate_s = (found.output_tokens_per_s or 0) * (found.window_s or 0)
    passed = (
        abs(e2e - (found.latency_mean_s or 0)) < 1e-6
        and abs(rate_s - (found.output_tokens or 0)) < 1e-6
        and dollars is not None
        and abs(dollars - 5.5556) < 1e-3
        and nothing is None
    )
    shown = "n/a" if dollars is None else f"{dollars:.3f} $"
    whole = 1e3 * (found.latency_mean_s or 0)
    text = f"TTFT + 19 × ITL = {1e3 * e2e:.1f} ms of {whole:.1f} ms; a million tokens at 2 $/h and 100/s cost {shown}"
    return Outcome("S14", passed, e2e, found.latency_mean_s, "exact; 5.556 $", text)


def _stability() -> Outcome:
    """A constant load is steady, and one whose latency doubles along the window is not."""
    rng = np.random.default_rng(8)

    def steady(latency_s: np.ndarray) -> bool | None:
        due = (np.arange(3000) * 0.01 * SECOND).astype(np.int64)
        done = due + (latency_s * SECOND).astype(np.int64)
        found = steadiness(Requests(due, due, done, np.full(3000, OK, np.uint8)), Window(0, 0, 30 * SECOND))
        return None if found is None else found.steady

    flat, rising = steady(rng.gamma(4, 0.0025, 3000)), steady(np.linspace(0.01, 0.02, 3000))
    text = f"a constant load is called {_called(flat)}, a latency that doubles {_called(rising)}"
    return Outcome("S17", flat is True and rising is False, None, None, "10 % over three thirds", text)


def _called(steady: bool | None) -> str:
    return {True: "steady", False: "not steady", None: "undecided"}[steady]
