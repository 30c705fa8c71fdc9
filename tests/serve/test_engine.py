"""The engine on a tiny Llama: whatever the company, each request gets the tokens it gets alone."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.serve.models.engine import Engine, Options, run_to_end
from lab.serve.models.request import Output
from tests.serve.conftest import END

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = [104, 111, 119]


@pytest.fixture(scope="session")
def make(tiny: Any, tiny_tokenizer: Any) -> Callable[..., Engine]:
    return lambda **options: Engine(tiny, tiny_tokenizer, Options(**{"max_request_tokens": 64, **options}))


@pytest.fixture(scope="session")
def alone(make: Callable[..., Engine]) -> Callable[..., list[int]]:
    """The tokens of a request that has the engine for itself; each asked once only."""
    known: dict[Any, list[int]] = {}

    def ask(prompt: list[int], **parameters: Any) -> list[int]:
        key = (tuple(prompt), tuple(sorted(parameters.items())))
        if key not in known:
            known[key] = tokens(answer(make(scheduler="one"), prompt, **parameters))
        return known[key]

    return ask


def answer(engine: Engine, prompt: Any, **parameters: Any) -> list[Output]:
    return run_to_end(engine, [engine.request("a", prompt, {**GREEDY, **parameters})])["a"]


def tokens(outputs: list[Output]) -> list[int]:
    return [output.token for output in outputs if output.token is not None]


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def nothing_left(engine: Engine) -> bool:
    counters = engine.counters
    return (
        not engine.has_work
        and not engine.running
        and not engine.waiting
        and not engine._cancelled
        and (counters.running, counters.waiting, counters.cache_tokens_used or 0) == (0, 0, 0)
    )


# --- the same tokens, whatever happens around ---------------------------------------------------------------------


def test_greedy_tokens_are_transformers_own(make: Callable[..., Engine], truth: Any) -> None:
    expected = truth.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert tokens(answer(make(), PROMPT, max_tokens=24)) == expected[0, len(PROMPT) :].tolist()


@dataclass(frozen=True)
class Visit:
    """A request of a made-up day: comes before step `arrives`, may be cancelled before step `cancelled`."""

    arrives: int
    prompt: tuple[int, ...]
    parameters: dict[str, Any] = field(hash=False)
    cancelled: int | None = None


visits = st.builds(
    Visit,
    arrives=st.integers(0, 12),
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=20).map(tuple),
    parameters=st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 12),
            "temperature": st.sampled_from([0, 0.8, 1.5]),
            "seed": st.integers(0, 3),
            "top_k": st.sampled_from([0, 5]),
            "top_p": st.sampled_from([1.0, 0.9]),
            "ignore_eos": st.just(True),
        }
    ),
    cancelled=st.none() | st.integers(0, 20),
)


@settings(max_examples=60, deadline=None)
@given(
    day=st.lists(visits, min_size=1, max_size=8),
    scheduler=st.sampled_from(["one", "static", "continuous"]),
    kv_cache=st.booleans(),
    max_batch_size=st.integers(1, 4),
    max_tokens_in_cache=st.none() | st.integers(32, 60),
    prefill_tokens=st.sampled_from([3, 7, 512]),
)
def test_any_mix_gives_each_request_its_own_tokens(
    make: Callable[..., Engine], alone: Callable[..., list[int]], day: list[Visit], **options: Any
) -> None:
    engine = make(max_request_tokens=32, **options)
    outputs: dict[str, list[Output]] = {str(i): [] for i in range(len(day))}
    for step in range(2000):
        for i, visit in enumerate(day):
            if visit.arrives == step:
                engine.add(engine.request(str(i), list(visit.prompt), visit.parameters))
            if visit.cancelled == step:
                engine.cancel(str(i))
        for output in engine.step():
            outputs[output.id].append(output)
        if step > 20 and not engine.has_work:
            break
    assert nothing_left(engine)
    for visit, got in zip(day, outputs.values(), strict=True):
        expected = alone(list(visit.prompt), **visit.parameters)
        if got[-1].finish_reason == "cancelled":
            assert visit.cancelled is not None
            assert tokens(got) == expected[: len(tokens(got))]
        else:
            assert got[-1].finish_reason == "length"
            assert tokens(got) == expected
        assert [output.output_tokens for output in got if output.token is not None] == list(
            range(1, len(tokens(got)) + 1)
        )


def test_five_hundred_requests_with_cancels_leave_nothing_behind(make: Callable[..., Engine]) -> None:
    chance = random.Random(3)
    engine = make(max_batch_size=6, max_request_tokens=48, max_tokens_in_cache=120, prefill_tokens=16)

    def day(count: int) -> dict[str, str]:
        ends, doomed = {}, []
        for i in range(count):
            prompt = [chance.randrange(256) for _ in range(chance.randint(1, 30))]
            wish = {"max_tokens": chance.randint(1, 16), "temperature": 1.0, "stop": ["q"]}
            engine.add(engine.request(str(i), prompt, wish))
            if chance.random() < 0.4:
                doomed.append(str(i))
        while engine.has_work:
            if doomed and chance.random() < 0.5:
                engine.cancel(doomed.pop(chance.randrange(len(doomed))))
            for output in engine.step():
                if output.finish_reason:
                    assert output.id not in ends
                    ends[output.id] = output.finish_reason
        return ends

    def grown() -> float:
        gc.collect()
        before = psutil.Process().memory_info().rss
        ends = day(500)
        assert len(ends) == 500
        assert {"cancelled", "length", "stop"} <= set(ends.values())
        assert engine.counters.preemptions > 0
        assert nothing_left(engine)
        gc.collect()
        return float(psutil.Process().memory_info().rss - before)

    day(50)
    # What leaks does so each day. What a thousand other tests left in this process grows and shrinks as it likes.
    assert any(grown() < 4e6 for _ in range(4))


# --- schedulers ---------------------------------------------------------------------------------------------------


def batch_sizes(engine: Engine, lengths: list[int]) -> list[int]:
    """How many requests wrote a token in each step; all wait from the start, one request a length."""
    for i, length in enumerate(lengths):
        engine.add(engine.request(str(i), PROMPT, {**GREEDY, "max_tokens": length}))
    sizes = []
    while engine.has_work:
        sizes.append(len(engine.step()))
    return sizes


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("one", [1] * 8),
        ("static", [2, 1, 1, 1, 2, 1]),  # 1 and 4 together, and nobody in until the 4 is through; then 1 and 2
        ("continuous", [2, 2, 2, 2]),  # whoever ends is replaced at once
    ],
)
def test_who_runs_together(make: Callable[..., Engine], scheduler: str, expected: list[int]) -> None:
    assert batch_sizes(make(scheduler=scheduler, max_batch_size=2), [1, 4, 1, 2]) == expected


@pytest.mark.parametrize(("scheduler", "expected"), [("static", [2, 2, 2]), ("continuous", [2, 1, 1])])
def test_a_static_batch_computes_the_rows_of_those_that_ended(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, scheduler: str, expected: list[int]
) -> None:
    engine, computed = make(scheduler=scheduler, max_batch_size=2), []
    decode = type(engine.decoder).decode

    def spy(self: Any, tokens: list[int], *rest: Any) -> Any:
        computed.append(len(tokens))
        return decode(self, tokens, *rest)

    monkeypatch.setattr(type(engine.decoder), "decode", spy)
    assert batch_sizes(engine, [2, 4]) == [2, 2, 1, 1]
    assert computed == expected


def test_padding_does_not_touch_a_prompt_that_is_still_being_read(
    make: Callable[..., Engine], alone: Callable[..., list[int]]
) -> None:
    engine, long = make(scheduler="static", max_batch_size=2, prefill_tokens=8), list(range(40))
    wish = {**GREEDY, "max_tokens": 10}
    outputs = run_to_end(engine, [engine.request("short", PROMPT, wish), engine.request("long", long, wish)])
    assert tokens(outputs["short"]) == alone(PROMPT, **wish)
    assert tokens(outputs["long"]) == alone(long, **wish)


def test_first_come_first_served_even_when_a_later_one_would_fit(make: Callable[..., Engine]) -> None:
    engine = make(max_batch_size=4, max_tokens_in_cache=40)
    for id, length, answer_length in (("a", 20, 8), ("big", 30, 4), ("small", 1, 2)):
        engine.add(engine.request(id, [1] * length, {**GREEDY, "max_tokens": answer_length}))
    ends = []
    while engine.has_work:
        ends += [output.id for output in engine.step() if output.finish_reason]
    assert ends.index("a") < ends.index("big")
    assert "small" not in ends[: ends.index("a") + 1]


def test_a_long_prompt_does_not_stop_the_others(make: Callable[..., Engine], alone: Callable[..., list[int]]) -> None:
    engine = make(prefill_tokens=4)
    engine.add(engine.request("short", PROMPT, {**GREEDY, "max_tokens": 20}))
    engine.step()
    long = list(range(40))
    engine.add(engine.request("long", long, {**GREEDY, "max_tokens": 5}))
    seen = [output for _ in range(10) for output in engine.step()]  # 40 tokens by 4 are 10 steps
    assert [output.id for output in seen].count("short") == 10
    assert [output.token for output in seen if output.id == "long"] == alone(long, max_tokens=5, **GREEDY)[:1]


def test_a_full_cache_preempts_the_youngest_and_loses_nothing(
    make: Callable[..., Engine], alone: Callable[..., list[int]]
) -> None:
    engine = make(max_batch_size=2, max_tokens_in_cache=30)
    wish = {**GREEDY, "max_tokens": 20}
    outputs = run_to_end(engine, [engine.request(id, PROMPT, wish) for id in ("old", "young")])
    assert engine.counters.preemptions == 1  # 2 × (3 + 12) are 30: the 13th token of both finds no room
    assert {id: tokens(got) for id, got in outputs.items()} == dict.fromkeys(outputs, alone(PROMPT, **wish))


def test_without_cache_there_is_no_memory_for_one(make: Callable[..., Engine]) -> None:
    engine = make(kv_cache=False)
    assert engine.cache is None
    assert (engine.counters.cache_tokens_used, engine.counters.cache_tokens_total) == (None, None)


def test_counters_say_what_happens_now(make: Callable[..., Engine]) -> None:
    engine = make(max_batch_size=2)
    for id in "abc":
        engine.add(engine.request(id, PROMPT, {**GREEDY, "max_tokens": 3}))
    engine.step()
    counters = engine.counters
    assert (counters.running, counters.waiting) == (2, 1)
    assert (counters.cache_tokens_used, counters.cache_tokens_total) == (6, 128)
    assert (counters.steps, counters.prefill_tokens, counters.output_tokens) == (1, 6, 2)
    engine.step()
    assert counters.cache_tokens_used == 8
    assert counters.step_s is not None and counters.step_s > 0


# --- ends ---------------------------------------------------------------------------------------------------------


def test_max_tokens_ends_with_length(make: Callable[..., Engine]) -> None:
    last = answer(make(), PROMPT, max_tokens=5)[-1]
    assert (last.finish_reason, last.output_tokens, last.prompt_tokens) == ("length", 5, 3)


def test_the_end_token_ends_counts_and_is_no_text(tiny: Any, tiny_tokenizer: Any) -> None:
    engine = Engine(tiny, tiny_tokenizer, Options(max_request_tokens=64))
    # A uniform draw (temperature 100 flattens all logits) meets the end token once in 257 draws.
    outputs = next(
        got
        for seed in range(1000)
        if (got := answer(engine, PROMPT, temperature=100, seed=seed, max_tokens=50, ignore_eos=False))
        and got[-1].finish_reason == "stop"
    )
    assert outputs[-1].token == END
    assert outputs[-1].output_tokens == len(outputs)
    assert text(outputs) == tiny_tokenizer.decode(tokens(outputs)[:-1]).rstrip("\ufffd")


def test_a_stop_string_across_tokens_ends_before_itself(make: Callable[..., Engine]) -> None:
    whole = text(answer(make(), PROMPT, max_tokens=40))
    stop = next(whole[at : at + 3] for at in range(5, 30) if whole[at : at + 3].isprintable())
    got = answer(make(), PROMPT, max_tokens=40, stop=stop)
    assert got[-1].finish_reason == "stop"
    assert text(got) == whole[: whole.index(stop)]
    assert len(got) < 40


def test_a_cancelled_request_gets_no_further_token(make: Callable[..., Engine]) -> None:
    engine = make()
    engine.add(engine.request("a", PROMPT, {**GREEDY, "max_tokens": 50}))
    engine.add(engine.request("b", PROMPT, {**GREEDY, "max_tokens": 4}))
    engine.step()
    engine.cancel("a")
    engine.cancel("never heard of")
    outputs = engine.step()
    assert [(output.id, output.token, output.finish_reason) for output in outputs if output.id == "a"] == [
        ("a", None, "cancelled")
    ]
    assert engine.counters.running == 1


# --- wrong requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "parameters", "words"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ([257], {}, "outside 0 to 256"),
        ("x" * 60, {"max_tokens": 5}, "prompt of 60 tokens and max_tokens 5 make 65; allowed: 64 together"),
        ("x", {"max_tokens": 0}, "max_tokens 0: allowed is an integer from 1"),
        ("x", {"max_tokens": "9"}, "max_tokens '9'"),
        ("x", {"temperature": -0.1}, "temperature -0.1: allowed is 0"),
        ("x", {"temperature": float("nan")}, "temperature nan"),
        ("x", {"top_p": 0}, "top_p 0: allowed is above 0, to 1"),
        ("x", {"top_k": True}, "top_k True"),
        ("x", {"seed": -1}, "seed -1"),
        ("x", {"stop": [""]}, "stop"),
        ("x", {"temprature": 1}, "unknown sampling parameter 'temprature'; did you mean \"temperature\""),
    ],
    ids=str,
)
def test_a_wrong_request_is_told_why_and_harms_nobody(
    make: Callable[..., Engine], alone: Callable[..., list[int]], prompt: Any, parameters: dict[str, Any], words: str
) -> None:
    engine = make()
    wish = {**GREEDY, "max_tokens": 4}
    engine.add(engine.request("good", PROMPT, wish))
    got = engine.step()
    with pytest.raises(ValueError, match=words):
        engine.request("bad", prompt, parameters)
    while engine.has_work:
        got += engine.step()
    assert tokens(got) == alone(PROMPT, **wish)


def test_more_than_the_cache_holds_is_refused_with_the_numbers(make: Callable[..., Engine]) -> None:
    with pytest.raises(ValueError, match="make 25; allowed: 24 together"):
        make(max_tokens_in_cache=24).request("a", [1] * 20, {"max_tokens": 5})


def test_the_cache_holds_what_its_slots_do(make: Callable[..., Engine]) -> None:
    """One slot of 64 tokens for "one", whatever would be allowed to eight."""
    engine = make(scheduler="one", max_batch_size=8, max_tokens_in_cache=500)
    assert engine.counters.cache_tokens_total == engine.cache.slots * engine.cache.tokens == 64
    assert make(scheduler="one", max_batch_size=8, max_tokens_in_cache=40).counters.cache_tokens_total == 40


def test_an_id_in_use_is_refused(make: Callable[..., Engine]) -> None:
    engine = make()
    engine.add(engine.request("a", PROMPT, GREEDY))
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add(engine.request("a", PROMPT, GREEDY))


@pytest.mark.parametrize("options", [{"scheduler": "fast"}, {"max_batch_size": 0}, {"prefill_tokens": 0}], ids=str)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Options(**options)
