"""S4, T15, T16 and P20 of the case list, on the schedule alone: arrivals are what they say they are."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import InputError
from lab.load.schedule import CHUNK, HIGHEST_RPS, arrivals, chunks, share
from lab.spec import Arrival, ClosedLoop, Constant, Gamma, Poisson, Trace


@pytest.fixture(scope="module")
def gaps_s() -> np.ndarray:
    """5,000 gaps of a Poisson process at 50/s."""
    offsets = arrivals(Poisson(rate_rps=50), 120.0, seed=1)
    return np.diff(offsets)[:5000] / 1e9


def test_poisson_gaps_have_the_asked_mean(gaps_s: np.ndarray) -> None:
    assert len(gaps_s) == 5000
    assert gaps_s.mean() == pytest.approx(1 / 50, rel=0.02)


def test_poisson_gaps_vary_like_an_exponential(gaps_s: np.ndarray) -> None:
    assert 0.95 < gaps_s.std() / gaps_s.mean() < 1.05
    assert scipy.stats.kstest(gaps_s, "expon", args=(0, 1 / 50)).pvalue > 0.01
    assert (gaps_s < gaps_s.mean()).mean() == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_poisson_gaps_are_independent(gaps_s: np.ndarray) -> None:
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 0.05


def test_poisson_counts_per_second_vary_like_poisson_counts() -> None:
    # A process rescaled to hit the mean exactly fails this one.
    counts = np.array([len(arrivals(Poisson(rate_rps=50), 1.0, seed)) for seed in range(2000)])
    assert counts.mean() == pytest.approx(50, rel=0.02)
    assert 0.8 < counts.var() / counts.mean() < 1.2


def test_equal_seeds_give_equal_schedules_and_0_is_a_seed() -> None:
    for seed in (0, 7):
        assert np.array_equal(arrivals(Poisson(rate_rps=50), 20.0, seed), arrivals(Poisson(rate_rps=50), 20.0, seed))
    assert not np.array_equal(
        arrivals(Poisson(rate_rps=50), 20.0, 0)[:50], arrivals(Poisson(rate_rps=50), 20.0, 1)[:50]
    )


def test_a_longer_block_starts_with_the_shorter_ones_arrivals() -> None:
    short, long = arrivals(Poisson(rate_rps=90), 2.0, 3), arrivals(Poisson(rate_rps=90), 2.001, 3)
    assert np.array_equal(long[: len(short)], short)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_chunks_are_the_pieces_of_one_long_draw(cv: float, seed: int) -> None:
    shape = 1 / cv**2
    gaps_s = np.random.default_rng(seed).gamma(shape, 1 / (shape * 2000), 60_000)
    whole = np.rint(np.cumsum(gaps_s) * 1e9).astype(np.int64)
    whole = whole[whole < 20_000_000_000]
    assert len(whole) > 8 * CHUNK
    arrival = Poisson(rate_rps=2000) if cv == 1 else Gamma(rate_rps=2000, cv=cv)
    parts = list(chunks(arrival, 20.0, seed))
    assert max(map(len, parts)) <= CHUNK
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(arrivals(arrival, 20.0, seed), whole)


def test_chunks_of_a_metronome_are_its_pieces() -> None:
    parts = list(chunks(Constant(rate_rps=3000), 20.0, 0))
    assert np.array_equal(np.concatenate(parts), [round(k / 3000 * 1e9) for k in range(60_000)])
    assert max(map(len, parts)) <= CHUNK


@pytest.mark.parametrize("arrival", [Poisson(rate_rps=1e6), Gamma(rate_rps=1e6, cv=2), Constant(rate_rps=1e6)])
def test_a_long_block_is_not_drawn_before_it_is_asked_for(arrival: Arrival) -> None:
    # 86 thousand million arrivals: 690 GB, if they were.
    first, second = islice(chunks(arrival, 86_400.0, 0), 2)
    assert len(first) == len(second) == CHUNK
    assert first[-1] <= second[0]


@pytest.mark.parametrize("kind", [Poisson, Constant])
def test_a_rate_that_nobody_can_send_is_refused(kind: type[Poisson] | type[Constant]) -> None:
    assert HIGHEST_RPS == 1_000_000
    with pytest.raises(InputError, match=r"^rate_rps 1e\+08: allowed is above 0, up to 1,000,000 requests a second$"):
        chunks(kind(rate_rps=1e8), 3600.0, 0)


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gamma_gaps_have_the_asked_mean_and_variation(cv: float) -> None:
    gaps = np.diff(arrivals(Gamma(rate_rps=1000, cv=cv), 100.0, 5)) / 1e9
    assert gaps.mean() == pytest.approx(1e-3, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_constant_is_a_metronome() -> None:
    offsets = arrivals(Constant(rate_rps=10), 60.0, 0)
    assert len(offsets) == 600
    assert (offsets < 1_000_000_000).sum() == 10
    assert set(np.diff(offsets)) == {100_000_000}


def test_constant_does_not_drift_where_the_gap_is_no_whole_nanosecond() -> None:
    offsets = arrivals(Constant(rate_rps=3000), 100.0, 0)
    assert len(offsets) == 300_000
    assert offsets[-1] == round((300_000 - 1) / 3000 * 1e9)
    assert offsets[150_000] == 50_000_000_000


def test_no_arrival_is_due_at_or_after_the_end() -> None:
    assert list(arrivals(Constant(rate_rps=10), 0.5, 0)) == [0, 100_000_000, 200_000_000, 300_000_000, 400_000_000]
    for arrival in (Poisson(rate_rps=333), Gamma(rate_rps=333, cv=2)):
        offsets = arrivals(arrival, 3.0, 0)
        assert offsets.min() >= 0
        assert offsets.max() < 3_000_000_000
        assert (np.diff(offsets) >= 0).all()


def test_trace_replays_a_file_up_to_the_duration(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0\n0.25\n0.25\n1.5\n2.0\n")
    assert list(arrivals(Trace(path=str(path)), 2.0, 0)) == [0, 250_000_000, 250_000_000, 1_500_000_000]


@pytest.mark.parametrize("text", ["", "0.1\n0.05\n", "-1\n0\n", "0.1\nsoon\n", "nan\n"])
def test_a_bad_trace_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=r"trace\.txt"):
        arrivals(Trace(path=str(path)), 2.0, 0)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        arrivals(Trace(path=str(tmp_path / "nowhere")), 2.0, 0)


def test_what_has_no_schedule_says_so() -> None:
    with pytest.raises(InputError, match="users decide"):
        arrivals(ClosedLoop(concurrency=1), 1.0, 0)
    with pytest.raises(InputError, match="saturation_fraction"):
        arrivals(Poisson(saturation_fraction=0.8), 1.0, 0)


@given(total=st.integers(0, 5000), workers=st.integers(1, 32))
def test_shares_are_dealt_out_in_turn(total: int, workers: int) -> None:
    shares = [share(total, worker, workers) for worker in range(workers)]
    assert shares == [len(range(worker, total, workers)) for worker in range(workers)]
    assert sum(shares) == total
