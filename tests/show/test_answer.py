"""One answer as it was received, its timeline, and the records that figures are made of."""

import pytest

from lab.measure.definitions import rescore
from lab.run.conversation import Piece
from lab.show.answer import Answer
from lab.show.charts.answer import MOST_ROWS, timeline
from lab.show.charts.figure import values_of

MS = 1_000_000


def answer(*pieces: tuple[int, int, str], label: str = "KV cache on") -> Answer:
    """(ms after the send, tokens, text) each."""
    last = len(pieces) - 1
    return Answer(
        label,
        5 * MS,
        tuple(
            Piece(text, tokens, 5 * MS, (5 + ms) * MS, "length" if i == last else None, 12, None)
            for i, (ms, tokens, text) in enumerate(pieces)
        ),
    )


FOUR_THREE_THREE = answer((100, 4, "a "), (200, 3, "b "), (300, 3, "c"))


@pytest.mark.parametrize(("tool", "itl_ms"), [("lab", 33.3), ("AIPerf", 22.2), ("vLLM", 100.0), ("LLMPerf", 100.0)])
def test_one_answer_is_scored_as_each_tool_would(tool: str, itl_ms: float) -> None:
    requests, window = FOUR_THREE_THREE.records()
    found = rescore(requests, window, tool)
    assert found["itl_mean_s"] == pytest.approx(itl_ms / 1e3, abs=1e-4)
    assert found["ttft_mean_s"] == pytest.approx(0.1)


def test_text_tokens_and_ending_are_those_of_the_pieces() -> None:
    assert (FOUR_THREE_THREE.text, FOUR_THREE_THREE.tokens, FOUR_THREE_THREE.prompt_tokens) == ("a b c", 10, 12)
    assert FOUR_THREE_THREE.finish_reason == "length"
    assert Answer("x", 0, FOUR_THREE_THREE.pieces[:1]).finish_reason is None  # stopped


def test_a_final_piece_without_a_token_is_no_tick() -> None:
    found = answer((100, 1, "a"), (200, 1, "b"), (230, 0, ""))
    assert len(found.chunks) == 2
    ticks = timeline([found]).figure["data"][1]
    assert values_of(ticks["x"]) == pytest.approx([0.1, 0.2])


def test_an_answer_without_a_token_has_no_figures() -> None:
    with pytest.raises(ValueError, match="without a token"):
        Answer("x", 0, ()).records()
    assert "no token has come yet" in timeline([Answer("x", 0, ())]).alt


def test_the_prompt_is_a_bar_and_each_chunk_a_tick_newest_on_top() -> None:
    off = answer((200, 1, "a"), (500, 1, "b"), label="KV cache off")
    chart = timeline([off, FOUR_THREE_THREE])
    prompt, ticks = chart.figure["data"]
    assert prompt["y"] == ["1  KV cache off", "2  KV cache on"]
    assert values_of(prompt["x"]) == pytest.approx([0.2, 0.1])
    assert values_of(ticks["x"]) == pytest.approx([0.2, 0.5, 0.1, 0.2, 0.3])
    assert chart.table["token"] == [1, 2, 4, 7, 10]
    assert chart.alt == "With KV cache off the first of 2 tokens came after 200 ms, the last after 500 ms."


def test_only_the_last_answers_are_drawn() -> None:
    assert len(timeline([FOUR_THREE_THREE] * 9).figure["data"][0]["y"]) == MOST_ROWS
