"""The guard: what it decides on counts whose right answer is known, and how often it is wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lab.measure.guard import Guard, Seen
from lab.measure.guard_words import GRID, told
from lab.measure.rollout_sim import Story, simulate
from lab.spec import Tolerance


def fed(
    guard: Guard,
    share: float,
    requests: int,
    *,
    slower: float = 1.0,
    errors: float = 0.0,
    bad: float = 0.05,
    seed: int = 0,
) -> Guard:
    """`requests` to both, in looks of 100; the challenger is so much slower, errs so often, answers so badly."""
    random = np.random.default_rng(seed)
    for _ in range(requests // 100):
        ours = int(random.binomial(100, share))

        def did(n: int, slower: float, errors: float, bad: float) -> Seen:
            failed = int(random.binomial(n, errors))
            times = random.lognormal(-3, 0.5, n - failed) * slower
            return Seen(n, failed, times, n - failed, int(random.binomial(n - failed, bad)))

        guard.see(share, did(100 - ours, 1.0, 0.0, 0.05), did(ours, slower, errors, bad))
    return guard


def standing(guard: Guard) -> dict[str, str]:
    return {c.name: c.standing for c in guard.verdict(last=True).comparisons}


def test_too_few_requests_wait_and_enough_go_on() -> None:
    guard = Guard(Tolerance(least_requests=50))
    assert guard.verdict(last=False).action == "wait"
    assert "of the 50" in fed(guard, 0.1, 200).verdict(last=False).text
    assert fed(guard, 0.1, 600).verdict(last=False).action == "advance"


def test_good_challenger_is_promoted_only_when_all_is_shown_to_be_fine() -> None:
    guard = Guard(Tolerance())
    early = fed(guard, 0.25, 1000).verdict(last=True)
    assert early.action == "wait" and "tolerated" in early.text
    late = fed(guard, 0.25, 30_000, seed=1).verdict(last=True)
    assert late.action == "promote"
    assert {c.name: c.standing for c in late.comparisons if c.name != "latency_p99"} == {
        "errors": "fine",
        "latency_p95": "fine",
        "quality": "fine",
    }


@pytest.mark.parametrize(
    ("harm", "name"),
    [({"slower": 1.2}, "latency_p95"), ({"errors": 0.02}, "errors"), ({"bad": 0.10}, "quality")],
)
def test_harm_is_named_and_rolled_back(harm: dict[str, float], name: str) -> None:
    verdict = fed(Guard(Tolerance()), 0.25, 20_000, **harm).verdict(last=True)
    assert verdict.action == "roll_back"
    worse = [c for c in verdict.comparisons if c.standing == "worse"]
    assert name in [c.name for c in worse]
    assert verdict.text.startswith("Roll back: ")


def test_ratio_of_the_percentiles_is_found_with_its_interval() -> None:
    guard = fed(Guard(Tolerance()), 0.5, 20_000, slower=1.3)
    (p95,) = [c for c in guard.verdict(last=True).comparisons if c.name == "latency_p95"]
    assert p95.low is not None and p95.high is not None and p95.effect is not None
    assert p95.low < 1.3 < p95.high and p95.high / p95.low < 1.25
    assert abs(p95.effect / 1.3 - 1) < 0.05
    assert p95.challenger is not None and p95.champion is not None
    assert abs(p95.challenger / p95.champion / 1.3 - 1) < 0.08


def test_small_harm_that_is_tolerated_is_no_reason_to_roll_back() -> None:
    verdict = fed(Guard(Tolerance(errors=0.02)), 0.5, 20_000, errors=0.01, slower=0.9).verdict(last=True)
    assert verdict.action == "promote"


def test_load_that_slows_both_is_nobodys_fault() -> None:
    guard, random = Guard(Tolerance()), np.random.default_rng(3)
    for second in range(120):
        slower = 1 + 3 * (second % 60 > 30)  # half of the time everything takes four times as long
        ours = int(random.binomial(100, 0.25))
        both = [random.lognormal(-3, 0.5, n) * slower for n in (100 - ours, ours)]
        guard.see(0.25, *(Seen(len(times), 0, times) for times in both))
        assert guard.verdict(last=False).action != "roll_back"


def test_version_that_hangs_is_told_by_who_gives_up_and_impatience_alone_is_nobodys_fault() -> None:
    random, guard, alike = np.random.default_rng(5), Guard(Tolerance()), Guard(Tolerance())
    for _ in range(30):
        champion = Seen(75, 0, random.lognormal(-3, 0.5, 75))
        guard.see(0.25, champion, Seen(given_up_s=np.full(25, 10.0)))  # and nothing else ever comes of it
        gave_up = [Seen(n, 0, random.lognormal(-3, 0.5, n), 0, 0, random.lognormal(-1, 1, n // 5)) for n in (75, 25)]
        alike.see(0.25, *gave_up)
        assert alike.verdict(last=False).action != "roll_back"
    verdict = guard.verdict(last=False)
    assert verdict.action == "roll_back" and "p95 is at least 3" in verdict.text
    assert guard.touched == 30 * 25


def sticky(seed: int, *, bad: tuple[float, ...], by_user: bool = True) -> tuple[str, Guard]:
    """Forty users with ten requests a look, each at one version by lot; each fails, and waits long, as often as its own
    requests make it so: `bad` of the champion's and of the challenger's users always."""
    random, guard = np.random.default_rng(seed), Guard(Tolerance())
    ours = random.random(40) < 0.25
    fails = random.random(40) < np.where(ours, bad[1], bad[0])
    for _ in range(30):
        did = []
        for side in (False, True):
            failed = [f"user {n}" for n in np.flatnonzero((ours == side) & fails) for _ in range(10)]
            well = [f"user {n}" for n in np.flatnonzero((ours == side) & ~fails) for _ in range(10)]
            times = random.lognormal(-3, 0.5, len(well))
            more: dict[str, Any] = {"failed_by": failed, "waits_by": well} if by_user else {}
            did.append(Seen(len(failed) + len(well), len(failed), times, **more))
        guard.see(0.25, *did)
        if guard.verdict(last=False).action == "roll_back":
            return "roll_back", guard
    return "wait", guard


def test_user_who_always_fails_is_no_more_evidence_than_one_failure() -> None:
    """Request by request, whoever has such users by lot is rolled back."""
    alike = (0.1, 0.1)
    assert [sticky(seed, bad=alike, by_user=False)[0] for seed in range(15)].count("roll_back") >= 5
    assert [sticky(seed, bad=alike)[0] for seed in range(15)].count("roll_back") <= 1
    end, guard = sticky(0, bad=(0.0, 1.0))
    assert end == "roll_back"
    again = Guard.from_dict(guard.tolerance, json.loads(json.dumps(guard.to_dict(), allow_nan=False)))
    assert again._firsts["errors"].worst == guard._firsts["errors"].worst != {}


def stalled(seed: int, looks: int, *, slower: float = 1.0) -> str:
    """Both versions stall by themselves, in one look of eight: a fifth of their answers wait for it, in a row."""
    random, guard = np.random.default_rng(seed), Guard(Tolerance())
    for _ in range(looks):
        both = []
        for n, times_as_slow in ((112, 1.0), (38, slower)):
            times = random.exponential(0.004, n) * times_as_slow
            if random.random() < 0.12:
                times[: n // 5] += np.linspace(0.2, 0.02, n // 5)
            both.append(Seen(n, 0, times))
        guard.see(0.25, *both)
        if guard.verdict(last=False).action == "roll_back":
            return "roll_back"
    return "wait"


def test_stalls_of_equal_versions_are_hardly_ever_a_reason_to_roll_back() -> None:
    """Answer by answer, 18 of 60 were rolled back: a clump of slow ones is no evidence of each of them."""
    assert [stalled(seed, 30) for seed in range(20)].count("roll_back") <= 2
    assert [stalled(seed, 120, slower=2.0) for seed in range(3)] == ["roll_back"] * 3


def test_ratio_lies_within_its_bounds_and_beyond_the_grid_only_a_bound_is_told() -> None:
    random, guard, looked = np.random.default_rng(0), Guard(Tolerance()), 0
    for _ in range(25):
        guard.see(0.25, Seen(112, 0, random.exponential(0.004, 112)), Seen(38, 0, random.exponential(0.024, 38)))
        for c in guard.verdict(last=False).comparisons:
            if c.name.startswith("latency") and c.effect is not None:
                looked += c.low is not None
                assert (c.low or 0) <= c.effect <= (c.high or np.inf)
    assert looked > 10
    (p95,) = [c for c in guard.verdict(last=False).comparisons if c.name == "latency_p95"]
    assert "p95 is at least 3.03 times the champion's" in told(p95) and "is 3.03" not in told(p95)


def test_word_that_rolls_back_gives_the_evidence_that_did() -> None:
    """Decided early in a step, whose own interval still holds 0."""
    guard = fed(Guard(Tolerance()), 0.25, 2000, errors=0.03)
    guard.begin_step()
    verdict = fed(guard, 0.25, 200, errors=0.06, seed=5).verdict(last=False)
    (errors,) = [c for c in verdict.comparisons if c.name == "errors"]
    assert errors.standing == "worse" and errors.low is not None and errors.low < 0
    assert "likelier from a worse version (80 decide)" in told(errors) and "points more are tolerated" in told(errors)
    assert "difference" not in told(errors)


def test_nothing_measured_is_no_figure() -> None:
    verdict = Guard(Tolerance(needs_quality=True)).verdict(last=True)
    assert all(c.effect is None and c.lacks for c in verdict.comparisons)
    assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False))["action"] == "wait"
    scoreless = Guard(Tolerance(needs_quality=True, least_requests=1))
    scoreless.see(0.25, Seen(1000, 0, np.full(1000, 0.1)), Seen(300, 0, np.full(300, 0.1)))
    assert "scored" in scoreless.verdict(last=True).text


def test_restart_loses_no_evidence() -> None:
    guard = fed(Guard(Tolerance()), 0.25, 4000, errors=0.004)
    again = Guard.from_dict(guard.tolerance, json.loads(json.dumps(guard.to_dict())))
    before, after = (g.verdict(last=True).comparisons for g in (guard, again))
    assert [(c.evidence, c.effect, c.low, c.high) for c in before[:1]] == [
        (c.evidence, c.effect, c.low, c.high) for c in after[:1]
    ]
    assert [c.evidence for c in before] == [c.evidence for c in after] or len(after) < len(before)
    assert again.touched == guard.touched


def test_new_step_begins_its_rates_anew_and_keeps_the_evidence() -> None:
    guard = fed(Guard(Tolerance()), 0.05, 4000, errors=0.01)
    before = guard.verdict(last=False).comparisons[0].evidence
    guard.begin_step()
    after = guard.verdict(last=False)
    assert after.comparisons[0].evidence == before and after.comparisons[0].effect is None
    assert after.action == "wait"


def test_grid_holds_one_exactly() -> None:
    assert 1.0 in GRID and GRID[0] < 0.51 and GRID[-1] > 2.9


def test_rollouts_end_as_they_should() -> None:
    """Few, as each takes half a second; benchmarks/rollout.py has 100 of each."""

    def ends(story: Story, count: int, **more: Any) -> list[str]:
        return [simulate(story, Tolerance(), seed=seed, **more).end for seed in range(count)]

    assert ends(Story(scored=0), 1) == ["promoted"]
    assert ends(Story(slower=1.2), 1) == ["rolled_back"]
    assert ends(Story(errors=0.02), 2) == ["rolled_back"] * 2
