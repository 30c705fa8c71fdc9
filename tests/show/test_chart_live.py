"""The flight recorder, as a dict."""

from typing import Any

import numpy as np
import pytest

from lab.measure.records import OK, Requests
from lab.measure.series import RequestSeries
from lab.show.charts.figure import MAX_POINTS, Chart, values_of
from lab.show.charts.live import recorder, thin

NAMES = ("offered_rps", "throughput_rps", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "queue_ms",
         "compute_ms", "error_fraction")  # fmt: skip


def series(seconds: int) -> dict[str, Any]:
    columns = {name: np.full(seconds, i + 1.0, dtype=np.float32) for i, name in enumerate(NAMES)}
    return {**columns, "t_s": np.arange(seconds, dtype=np.float32), "error_fraction": np.full(seconds, 0.25)}


def draw(seconds: int, **more: Any) -> Chart:
    memory = {"model:digits": np.full(seconds, 250.0), "server": np.full(seconds, 44.0)}
    events, columns = more.pop("events", []), more.pop("series", series(seconds))
    asked = {"limits": {"latency_s": 0.02}, "window_s": None, "log": True, "view": "run", **more}
    return recorder(columns, memory, events, **asked)


def trace(chart: Chart, name: str) -> dict[str, Any]:
    return next(trace for trace in chart.figure["data"] if trace["name"] == name)


def test_thin_keeps_the_extremes_and_at_most_so_many_points() -> None:
    t = np.arange(10_000, dtype=np.float32)
    y = np.sin(t / 50).astype(np.float32)
    y[4321], y[7777] = 99.0, -99.0
    kept_t, kept_y = thin(t, y, MAX_POINTS)
    assert len(kept_t) <= MAX_POINTS
    assert kept_y.max() == 99.0 and kept_y.min() == -99.0
    assert kept_t[np.argmax(kept_y)] == 4321.0
    assert np.all(np.diff(kept_t) > 0)


def test_thin_leaves_a_gap_a_gap() -> None:
    y = np.ones(10_000, dtype=np.float32)
    y[3000:6000] = np.nan
    kept_t, kept_y = thin(np.arange(10_000, dtype=np.float32), y, MAX_POINTS)
    assert np.isnan(kept_y[(kept_t > 3100) & (kept_t < 5900)]).all()


@pytest.mark.parametrize("seconds", [1, 2, 3, 5, 5000])
def test_any_length_of_run_is_drawn_within_the_cap(seconds: int) -> None:
    chart = draw(seconds)
    assert all(0 < len(values_of(line["y"])) <= MAX_POINTS for line in chart.figure["data"])
    assert all(value == 2.0 for value in chart.table["served, req/s"])


def test_no_panel_has_more_than_four_lines_and_every_axis_names_its_unit() -> None:
    chart = draw(10)
    panels: dict[str, int] = {}
    for line in chart.figure["data"]:
        panels[line["yaxis"]] = panels.get(line["yaxis"], 0) + 1
    assert len(panels) == 5 and max(panels.values()) <= 4
    titles = [chart.figure["layout"][f"yaxis{i}"]["title"]["text"] for i in ("", "2", "3", "4", "5")]
    assert titles == ["requests/s", "latency, ms", "mean, ms", "failed, %", "host memory (PSS), MiB"]


def test_an_event_crosses_all_panels_with_its_number() -> None:
    chart = draw(10, events=[(3.5, 1, "batching on, 2 ms delay")])
    (line,) = [shape for shape in chart.figure["layout"]["shapes"] if shape["xref"] == "x"]
    assert (line["x0"], line["yref"], line["y0"], line["y1"]) == (3.5, "paper", 0, 1)
    assert [a["text"] for a in chart.figure["layout"]["annotations"]] == ["1"]
    assert chart.notes == ("① batching on, 2 ms delay (4 s)",)
    assert "batching on, 2 ms delay" in chart.alt


def test_the_window_shows_the_newest_seconds_and_their_events_only() -> None:
    chart = draw(100, window_s=30, events=[(5.0, 1, "old"), (90.0, 2, "new")])
    assert chart.figure["layout"]["xaxis"]["range"] == [70.0, 100.0]
    assert values_of(trace(chart, "served")["x"])[0] >= 69.0
    assert chart.notes == ("② new (90 s)",)


def test_seconds_that_are_still_being_written_are_left_out() -> None:
    whole = series(10)
    whole["throughput_rps"][-1] = 0.1  # the second has only begun
    chart = draw(10, series=whole, unfinished_s=1)
    assert values_of(trace(chart, "served")["y"]).min() == 2.0
    assert "2.00 req/s" in chart.alt


def test_nothing_finished_yet_is_said() -> None:
    chart = recorder({}, {}, [], limits={}, window_s=None, log=True, view="run")
    assert chart.figure["data"] == []
    assert "no request has finished yet" in chart.alt


def test_a_latency_that_is_withheld_is_a_gap_on_either_scale() -> None:
    short = series(3)
    short["latency_p99_ms"][:] = np.nan
    for log in (True, False):
        chart = draw(3, series=short, log=log)
        assert np.isnan(values_of(trace(chart, "p99")["y"])).all()
        assert chart.table["p99, ms"] == [None, None, None]
    assert "p99 is withheld" in chart.alt


def test_the_view_changes_only_with_its_settings() -> None:
    assert draw(10).figure["layout"]["uirevision"] == draw(11).figure["layout"]["uirevision"]
    assert draw(10, view="other").figure["layout"]["uirevision"] != draw(10).figure["layout"]["uirevision"]


def test_memory_of_processes_and_of_gpus_stands_apart_and_says_which_it_is() -> None:
    memory = {"gpu0": np.full(3, 900.0), "model:a": np.full(3, 100.0), "gpu1": np.full(3, 10.0)}
    chart = recorder(series(3), memory, [], limits={}, window_s=None, log=True, view="run")
    titles = {
        a["yaxis"]: chart.figure["layout"][f"yaxis{a['yaxis'][1:]}"]["title"]["text"] for a in chart.figure["data"]
    }
    found = {line["name"]: titles[line["yaxis"]] for line in chart.figure["data"] if line["name"] in memory}
    gpu = "GPU memory (NVML), MiB"
    assert found == {"model:a": "host memory (PSS), MiB", "gpu0": gpu, "gpu1": gpu}
    alone = recorder(series(3), {"gpu0": memory["gpu0"]}, [], limits={}, window_s=None, log=True, view="run")
    assert "host" not in str(alone.figure["layout"])


def test_a_server_that_froze_is_a_stall_in_the_chart() -> None:
    """T4: 100 requests a second for 30 s, the server frozen from second 10 to second 16, all that waited answered at
    once then. From the records alone to what is drawn."""
    due_ms = np.arange(0, 30_000, 10)
    done_ms = np.where((due_ms >= 10_000) & (due_ms < 16_000), 16_000, due_ms + 5)
    order = np.argsort(done_ms, kind="stable")
    due, done = due_ms[order] * 1_000_000, done_ms[order] * 1_000_000
    followed = RequestSeries(0)
    for part in np.array_split(np.arange(len(due)), 30):  # as they are read while it goes on
        followed.add(Requests(due[part], due[part], done[part], np.full(len(part), OK, np.uint8)))
    columns = {**series(30), **followed.columns(30), "t_s": np.arange(30, dtype=np.float32)}
    chart = draw(30, series=columns, log=False)
    served, p95 = chart.table["served, req/s"], chart.table["p95, ms"]
    assert max(served[11:16]) == 0 and served[16] >= 600  # nobody, then everybody
    assert min(served[:10]) >= 99 and chart.table["offered, req/s"][12] == 100
    assert max(p95[:10]) == pytest.approx(5, abs=0.01)
    assert max(p95[17:19]) > 4000  # of 6 s to nothing
    assert p95[25] == pytest.approx(5, abs=0.01)
    drawn = values_of(trace(chart, "served")["y"])
    assert (drawn[11:16] == 0).all() and drawn[16] == served[16]


def test_models_come_first_when_there_is_more_memory_than_room() -> None:
    memory = {name: np.ones(3) for name in ("client", "host", "model:a", "model:b", "server", "worker")}
    chart = recorder(series(3), memory, [], limits={}, window_s=None, log=True, view="run")
    assert [t["name"] for t in chart.figure["data"] if t["yaxis"] == "y5"] == ["model:a", "model:b", "client", "host"]
