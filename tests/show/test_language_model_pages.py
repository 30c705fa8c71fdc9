"""The pages KV cache and Continuous batching."""

import re
from pathlib import Path
from typing import Any

import pytest

from lab.run.folder import RunFolder
from lab.show.ui import reads
from tests.show.conftest import KV_CACHE, LLM_BATCHING
from tests.show.pages import charts, open_page

pytestmark = pytest.mark.pages


def test_the_cache_shows_flat_against_rising(full_home: Path) -> None:
    app = open_page("kv_cache", run=KV_CACHE, k_output="128 tokens")
    assert [metric.label for metric in app.metric] == [
        "Tokens a second", "Between tokens, mean", "To the first token, mean", "Peak host memory (PSS)",
    ]  # fmt: skip
    alt = charts(app)[0]["alt"]
    found = re.findall(
        r"with KV cache (on|off) a token takes ([\d.]+) ms at the start and ([\d.]+) ms at token 128", alt
    )
    times = {level: (float(first), float(last)) for level, first, last in found}
    # 16 + 128 tokens are read anew at 0.18 ms each, from 16 + 1 on: some 20 ms more at the end.
    assert times["off"][1] - times["off"][0] == pytest.approx(20, abs=2)
    assert times["on"][1] - times["on"][0] == pytest.approx(0, abs=1)


def test_the_link_chooses_the_lengths(full_home: Path) -> None:
    said = [charts(open_page("kv_cache", run=KV_CACHE, k_output=f"{n} tokens"))[0]["alt"] for n in (32, 128)]
    assert "answers of 32 tokens" in said[0] and "answers of 128 tokens" in said[1]


def test_static_wastes_slots_that_continuous_fills(full_home: Path) -> None:
    notes = [c.value for c in open_page("scheduling", run=LLM_BATCHING).caption if "a request waited" in c.value]
    static, continuous = (float(re.search(r"([\d.]+) %", note)[1]) for note in notes)
    assert static > 5 * continuous


def test_a_run_is_linked_to_the_page_of_its_experiment(full_home: Path) -> None:
    pages = {link.proto.page for link in open_page("runs").get("page_link")}
    assert {"batching", "kv_cache", "scheduling"} <= pages


def test_the_forms_hand_on_what_was_chosen(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    for page, params in (("kv_cache", {"k_users": "4"}), ("scheduling", {"s_batch": "16", "s_depth": "whole"})):
        app = open_page(page, **params)
        app.button(key="run_ab").click().run()
        assert not app.exception
        RunFolder.open(started[-1][3]).set_status("done")
        reads.run_lines.clear()
    assert [call[:3] for call in started] == [
        ("kv_cache", ["workload.arrival.concurrency=4"], True),
        ("llm_batching", ["model.max_batch_size=16"], False),
    ]
