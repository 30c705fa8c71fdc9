"""Adapters beside full copies: the figures and sentences, from events with known answers."""

from __future__ import annotations

from typing import Any

import pytest

from lab.measure import lora

MIB = 2**20


def events(copies: int = 2) -> list[dict[str, Any]]:
    """A base of 500 MiB, two adapters of 1 MiB each, and copies that take 500 and then 250 MiB more each."""
    lesson = {"title": "Loud", "teaches": "shouts", "questions": ["a?", "b?"]}
    return [
        {"kind": "lora_base", "model": "llm", "load_s": 1.0, "process_bytes": 500 * MIB, "t_ns": 1},
        *(
            {
                "kind": "lora_adapter",
                "name": f"n{n}",
                "bytes": MIB,
                "predicted_bytes": MIB,
                "load_s": 0.01 * (n + 1),
                "process_bytes": (501 + n) * MIB,
                "t_ns": 2,
            }
            for n in range(2)
        ),
        *(
            {
                "kind": "lora_copy",
                "name": f"n{n}",
                "load_s": 1.5,
                "total_bytes": (500 + 502 * n) * MIB,
                "predicted_bytes": (500 + 500 * n) * MIB,
                "t_ns": 3,
            }
            for n in range(copies)
        ),
        {
            "kind": "lora_lesson",
            "name": "n0",
            **lesson,
            "answers": {"base": ["x", "y"], "adapter": ["X", "Y"], "copy": ["X", "Z"]},
            "passed": {"base": 0.0, "adapter": 1.0, "copy": 0.5},
            "t_ns": 4,
        },
    ]


def effect(level: dict[str, Any], ratio: float, low: float, high: float) -> dict[str, Any]:
    return {"metric": "output_tokens_per_s", "level": level, "ratio": ratio, "ci_low": low, "ci_high": high}


ADAPTERS, COPIES = {"adapters": ["n0", "n1"]}, {"adapters": ["n0", "n1"], "merge_adapters": True}


def found(low: float = 0.9, high: float = 0.98, copies: int = 2) -> lora.Lora:
    told = lora.lora(events(copies))
    assert told is not None
    return lora.with_effects(told, [effect(ADAPTERS, 0.94, low, high), effect(COPIES, 0.5, 0.45, 0.55)])


def test_nothing_is_said_of_a_run_without_adapters() -> None:
    assert lora.lora([{"kind": "block_start"}]) is None


def test_memory_is_what_processes_take_and_was_predicted_from_the_base() -> None:
    one = found()
    assert lora.added_fraction(one) == pytest.approx(2 / 500)
    assert lora.copies_ratio(one) == pytest.approx(1002 / 502)
    assert one["with_adapters_predicted_bytes"] == 502 * MIB
    assert one["copies_predicted_bytes"] == 1000 * MIB
    assert lora.memory(one) == (
        "2 adapters on one base take 502 MiB, 0.4 % more than the base alone; 2 full copies take 1,002 MiB, 2.0× as "
        "much. The adapters themselves are 2.0 MiB of 500 MiB."
    )


def test_speed_is_told_against_the_base_alone_with_its_interval() -> None:
    assert lora.speed(found()).startswith(
        "With the same users, the adapters write 0.94× the base's tokens a second (0.90 to 0.98×) and the copies write "
        "0.50× the base's tokens a second (0.45 to 0.55×): each copy"
    )


def test_answers_count_as_taught_or_not_and_copies_to_the_letter() -> None:
    one = found()
    assert [lora.passed(one, who) for who in lora.WHO] == [0.0, 1.0, 0.5]
    assert lora.same_text(one) == 0.5
    assert "100 % of the answers are as the adapter was taught, 0 % of the base's; 50 % of the" in lora.taught(one)
    assert lora.loading(one) == (
        "An adapter was loaded in 15.0 ms at the median, while the base served; a full copy in 1.50 s."
    )


@pytest.mark.parametrize(
    ("low", "high", "holds"), [(0.86, 0.99, True), (0.80, 0.95, None), (0.70, 0.84, False), (0.85, 0.85, True)]
)
def test_the_whole_interval_decides(low: float, high: float, holds: bool | None) -> None:
    one = {**found(low, high), "copies_bytes": 1200 * MIB}
    assert lora.holds(one) is holds


def test_copies_that_take_little_more_refute_it_and_missing_ones_decide_nothing() -> None:
    assert lora.holds(found()) is False  # 1002 / 502 is less than 2
    assert lora.holds(found(copies=0)) is None
    heavy = {**found(), "copies_bytes": 2000 * MIB, "with_adapters_bytes": 560 * MIB}
    assert lora.holds(heavy) is False  # 12 % more than the base


def test_the_table_has_a_row_a_fine_tune() -> None:
    header, first, second = lora.table(found())
    assert header == ["fine-tune", "adapter", "loaded in", "as taught", "base", "copy"]
    assert first == ["n0", "1.0 MiB", "10.0 ms", "100 %", "0 %", "50 %"]
    assert second[3:] == ["n/a"] * 3
