"""Another objective, scored from a run's records: against a count by hand of the same records."""

import json
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.errors import InputError
from lab.measure.definitions import WHY
from lab.measure.words import format_seconds
from lab.run import rescore, results
from lab.run.folder import RunFolder
from lab.spec import Experiment, Slo, parse
from tests.show.synthetic import batching_run
from tests.show.synthetic_llm import load_run

RUN = "20261130-010101-batching-scored"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    batching_run(RUN, duration_s=1.0)
    return RunFolder.open(RUN)


def test_what_is_good_is_counted_anew_and_nothing_else_changes(folder: RunFolder) -> None:
    document = results.document(folder)
    limit_s = 0.004
    scored = rescore.against(folder, document, Slo(latency_s=limit_s))
    experiment = parse(Experiment, folder.document["experiment"])
    blocks = results.block_results(folder, experiment)
    changed = 0
    for before, after, block in zip(document["cells"], scored["cells"], blocks, strict=True):
        requests, window = block.requests, block.window
        inside = (requests.done_ns >= window.measured_from_ns) & (requests.done_ns < window.end_ns)
        good = inside & (requests.outcome == 0) & (requests.done_ns - requests.due_ns <= limit_s * 1e9)
        assert after["summary"]["goodput_rps"] == pytest.approx(np.count_nonzero(good) / block.summary.window_s)
        assert after["summary"]["throughput_rps"] == before["summary"]["throughput_rps"]
        changed += after["summary"]["goodput_rps"] != before["summary"]["goodput_rps"]
    assert changed > 0
    assert scored["verdict"] == document["verdict"]


def test_its_own_objective_is_the_document_itself(folder: RunFolder) -> None:
    document = results.document(folder)
    own = parse(Slo, folder.document["experiment"]["slo"])
    assert rescore.against(folder, document, own) is document


def test_a_recording_of_some_requests_keeps_its_own_objective(folder: RunFolder) -> None:
    path = folder.path / "run.json"
    path.write_text(json.dumps({**folder.document, "recorded": {"requests_one_in": 10}}))
    with pytest.raises(InputError, match="only 1 in 10 requests of this recording is kept"):
        rescore.against(RunFolder.open(RUN), results.document(folder), Slo(latency_s=0.001))


LLM = "20261130-010601-load-scored"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    load_run(LLM, 8.0)
    return RunFolder.open(LLM)


def test_the_records_of_a_run_are_scored_by_every_tool(written: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = rescore.by_tools(written)
    experiment = parse(Experiment, written.document["experiment"])
    (measured,) = results.block_results(written, experiment)
    assert block["scores"].keys() == WHY.keys()
    assert block["scores"]["lab"]["itl_mean_s"] == pytest.approx(measured.summary.itl_mean_s)
    # By hand, from the records: LLMPerf divides the whole time by the chunks.
    streams, requests, window = measured.requests.streams, measured.requests, measured.window
    whole_s = []
    for n in range(len(requests)):
        first, end = streams.first[n], streams.first[n + 1]
        if window.measured_from_ns <= requests.due_ns[n] < window.end_ns and requests.outcome[n] == 0:
            whole_s.append((streams.t_ns[end - 1] - requests.sent_ns[n]) / 1e9 / (end - first))
    assert block["scores"]["LLMPerf"]["itl_mean_s"] == pytest.approx(np.mean(whole_s))
    assert main(["show", LLM, "--definitions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"] == [block]
    assert main(["show", LLM, "--definitions"]) == 0
    told = capsys.readouterr().out
    assert format_seconds(float(np.mean(whole_s))) in next(line for line in told.splitlines() if "LLMPerf" in line)
    assert WHY["LLMPerf"] in told


def test_records_without_streams_or_without_all_chunks_have_no_other_definition(
    folder: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="hold no streamed tokens"):
        rescore.by_tools(folder)
    path = folder.path / "run.json"
    path.write_text(json.dumps({**folder.document, "recorded": {"requests_one_in": 1, "whole": False}}))
    with pytest.raises(InputError, match="does not keep every chunk"):
        rescore.by_tools(RunFolder.open(RUN))
