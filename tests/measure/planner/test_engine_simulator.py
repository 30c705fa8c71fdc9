"""Steps that can be counted on fingers, and the real engine's own steps."""

from __future__ import annotations

import numpy as np
import pytest

from lab.errors import InputError
from lab.measure.planner.engine_simulator import Asked, EngineRules, simulate_engine
from lab.measure.planner.steps import Steps, fit_steps

A_SECOND = Steps(write_fixed_s=1.0, read_fixed_s=1.0)


def asked(due, prompts, outputs, users=None):
    return Asked(np.array(due, float), np.array(prompts), np.array(outputs), users)


def test_an_answer_alone_takes_one_reading_and_a_step_a_token():
    found = simulate_engine(asked([0], [5], [4]), EngineRules(), A_SECOND)
    assert (found.first_s[0], found.done_s[0], found.itl_s[0]) == (1, 4, 1)


def test_one_at_a_time_waits_for_the_other():
    found = simulate_engine(asked([0, 0], [1, 1], [3, 2]), EngineRules("one"), A_SECOND)
    assert found.done_s.tolist() == [3, 5]


def test_a_static_batch_lets_nobody_in_until_its_last_member_ends():
    found = simulate_engine(asked([0, 0, 0], [1, 1, 1], [2, 6, 2]), EngineRules("static", 2), A_SECOND)
    assert found.done_s.tolist() == [2, 6, 8]


def test_continuous_batching_fills_a_place_at_once():
    found = simulate_engine(asked([0, 0, 0], [1, 1, 1], [2, 6, 2]), EngineRules("continuous", 2), A_SECOND)
    # The third is read within the turn that follows the first one's end, which the second one shares.
    assert found.done_s.tolist() == [2, 7, 5]


def test_a_long_prompt_is_read_in_pieces_between_the_steps_of_others():
    rules = EngineRules(prefill_tokens=10)
    found = simulate_engine(asked([0, 0.5], [1, 25], [6, 1]), rules, A_SECOND)
    assert found.first_s.tolist() == [1, 7]  # read at 2-3, 4-5 and 6-7, with a step of the first before each
    assert found.done_s[0] == 9


def test_a_static_batch_computes_the_places_of_those_that_ended():
    steps = Steps(write_fixed_s=0, write_row_s=1.0)
    static = simulate_engine(asked([0, 0], [1, 1], [2, 4]), EngineRules("static", 2), steps)
    continuous = simulate_engine(asked([0, 0], [1, 1], [2, 4]), EngineRules("continuous", 2), steps)
    assert (static.done_s[1], continuous.done_s[1]) == (6, 4)


def test_a_step_that_reads_keeps_what_it_wrote_until_its_end():
    steps = Steps(write_fixed_s=1.0, read_fixed_s=10.0)
    found = simulate_engine(asked([0, 10.5], [1, 1], [2, 1]), EngineRules(), steps)
    assert found.done_s.tolist() == [11, 21]  # nobody was there to be read when the first one's last step began
    found = simulate_engine(asked([0, 10], [1, 1], [2, 1]), EngineRules(), steps)
    assert found.done_s.tolist() == [21, 21]


def test_who_comes_takes_from_the_others_and_from_nobody_when_alone():
    steps = Steps(write_fixed_s=1.0, read_fixed_s=1.0, intake_s=0.5)
    found = simulate_engine(asked([0, 1.5], [1, 1], [4, 1]), EngineRules(), steps)
    # Read until 1, a step until 2, half a second for the second one, a step and its prompt until 4.5, a step more.
    assert (found.first_s[1], found.done_s[0]) == (4.5, 5.5)


def test_users_ask_again_when_answered():
    found = simulate_engine(asked([0] * 4, [1] * 4, [2] * 4, users=1), EngineRules(), A_SECOND)
    assert found.due_s.tolist() == [0, 2, 4, 6]
    assert found.latency_s.tolist() == [2] * 4


def test_tokens_held_make_a_step_longer():
    steps = Steps(write_fixed_s=0, write_held_s=1.0)
    found = simulate_engine(asked([0], [3], [3]), EngineRules(), steps)
    assert found.stretches == ((7, 1, 2),)  # of 3 and of 4 seconds
    assert (found.busy_s, found.batch_mean, found.most_held) == (7, 1, 5)


def test_a_step_of_parts_is_taken_apart():
    truth = (0.008, 0.0007, 0.000002)
    seen = [
        (truth[0] + rows * truth[1] + held * truth[2], rows, held)
        for rows, held in ((1, 60), (4, 300), (8, 500), (8, 2000))
    ]
    assert fit_steps(seen) == pytest.approx(truth)
    assert fit_steps(seen[:1]) == pytest.approx((seen[0][0], 0, 0))


def test_nothing_to_calibrate_on_is_said():
    with pytest.raises(InputError, match="nothing to calibrate on"):
        fit_steps([])


def test_an_answer_of_no_token_is_refused():
    with pytest.raises(InputError, match="no token"):
        simulate_engine(asked([0], [1], [0]), EngineRules(), A_SECOND)


def step_by_step(due, prompts, outputs, slots, steps):
    """The same engine written plainly: one step at a time, as lab/serve/models/engine.py runs it."""
    now, running, waiting = 0.0, [], list(range(len(due)))
    first, done = {}, {}
    while running or waiting:
        if not running:
            now = max(now, due[waiting[0]])
        while waiting and len(running) < slots and due[waiting[0]] <= now:
            number = waiting.pop(0)
            running.append([number, prompts[number], 0, outputs[number]])
        ready = [answer for answer in running if answer[1] == 0]
        if ready:
            held = sum(answer[2] for answer in ready)
            now += steps.write_fixed_s + len(ready) * steps.write_row_s + held * steps.write_held_s
            for answer in ready:
                answer[2], answer[3] = answer[2] + 1, answer[3] - 1
        through = [answer[0] for answer in ready if answer[3] == 0]
        running = [answer for answer in running if answer[3] > 0]
        reading = [answer for answer in running if answer[1] > 0]
        if reading:
            now += steps.read_fixed_s + sum(answer[1] for answer in reading) * steps.read_token_s
            for answer in reading:
                answer[1], answer[2], answer[3] = 0, answer[1], answer[3] - 1
                first[answer[0]] = now
                if answer[3] == 0:
                    done[answer[0]] = now
            running = [answer for answer in running if answer[3] > 0]
        done.update(dict.fromkeys(through, now))  # what a step gave leaves at its end
    return [first[n] for n in range(len(due))], [done[n] for n in range(len(due))]


@pytest.mark.parametrize("rate_rps", [1, 5, 12])
def test_steps_that_are_taken_together_are_those_taken_one_by_one(rate_rps):
    rng = np.random.default_rng(rate_rps)
    due = rng.exponential(1 / rate_rps, 80).cumsum()
    prompts, outputs = rng.integers(1, 20, 80), rng.integers(1, 40, 80)
    steps = Steps(0.008, 0.0007, 0.00001, 0.003, 0.0005)
    found = simulate_engine(Asked(due, prompts, outputs), EngineRules(max_batch_size=4), steps)
    first, done = step_by_step(due.tolist(), prompts.tolist(), outputs.tolist(), 4, steps)
    assert found.first_s == pytest.approx(first, abs=1e-9)
    assert found.done_s == pytest.approx(done, abs=1e-9)


def test_replicas_in_turn_each_have_every_second_request():
    due, ones = np.arange(8) * 0.5, np.ones(8, int)
    found = simulate_engine(Asked(due, ones, 3 * ones), EngineRules(replicas=2), A_SECOND)
    alone = simulate_engine(Asked(due[::2], ones[::2], 3 * ones[::2]), EngineRules(), A_SECOND)
    assert found.done_s[::2].tolist() == alone.done_s.tolist()


def test_a_router_that_looks_sends_nobody_behind_a_long_answer():
    # The first answer takes 50 s; the others come one by one and are short.
    due, prompts, outputs = [0, *range(1, 20, 3)], [1] * 8, [50, *[2] * 7]
    tails = {
        routing: simulate_engine(
            asked(due, prompts, outputs), EngineRules("one", replicas=2, routing=routing), A_SECOND, seed=1
        ).latency_s[1:].max()
        for routing in ("round_robin", "least_outstanding", "two_choices")
    }  # fmt: skip
    assert tails["least_outstanding"] == tails["two_choices"] == 2  # of two replicas, two at random are both
    assert tails["round_robin"] > 30


def test_users_of_several_replicas_are_refused():
    with pytest.raises(InputError, match="replicas 2 with users"):
        simulate_engine(asked([0], [1], [1], users=1), EngineRules(replicas=2), A_SECOND)
