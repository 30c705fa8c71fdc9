"""Counters as rows: exact where there are some, a reason where there are none (T32, P17, P18)."""

import http.server
import threading
from types import SimpleNamespace

import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from lab.measure.records import SERVER
from lab.serve.metrics import COUNTERS, GPU_FAMILIES, MODEL_FAMILIES, Sample, parse_prometheus, scrape

TEXT = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="digits",version="1"} 20
nv_inference_request_success{model="null",version="1"} 7
nv_inference_request_failure{model="digits",reason="REJECTED",version="1"} 3
nv_inference_request_failure{model="digits",reason="OTHER",version="1"} 1
nv_inference_queue_duration_us{model="digits",version="1"} 6000
nv_cpu_memory_used_bytes 5000
nv_gpu_power_usage{gpu_uuid="GPU-a"} 61.5
nv_gpu_power_usage{gpu_uuid="GPU-b"} 70.5
"""


def test_a_line_is_family_labels_and_value():
    samples = parse_prometheus(TEXT)
    assert samples[0] == Sample("nv_inference_request_success", {"model": "digits", "version": "1"}, 20.0)
    assert Sample("nv_cpu_memory_used_bytes", {}, 5000.0) in samples
    assert len(samples) == 8


def test_label_values_may_hold_anything():
    line = 'f{a="x,y} 1",b="say \\"hi\\"",c="back\\\\slash\\nline",d=""} 2.5e3 1700000000'
    assert parse_prometheus(line) == [
        Sample("f", {"a": "x,y} 1", "b": 'say "hi"', "c": "back\\slash\nline", "d": ""}, 2500.0)
    ]


@pytest.mark.parametrize("text", ["", '{"error": "not found"}', "<html>no</html>", "f{a=", 'f{a="b', "f", "f x"])
def test_what_is_no_metrics_text_has_no_samples(text):
    assert parse_prometheus(text) == []


@pytest.fixture
def metrics_page():
    """Serves what `answer(status, text)` was last told; the address is `answer.url`."""
    told = {"status": 200, "text": ""}

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(told["status"])
            self.end_headers()
            self.wfile.write(told["text"].encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, args=(0.01,), daemon=True).start()

        def answer(status, text):
            told.update(status=status, text=text)

        answer.url = f"http://127.0.0.1:{page.server_address[1]}/metrics"
        yield answer
        page.shutdown()


def statistics(model, client_timeout):
    if model != "digits":
        raise InferenceServerException(f"requested model '{model}' is not found")
    answer = service_pb2.ModelStatisticsResponse()
    found = answer.model_stats.add(name=model, inference_count=24, execution_count=4)
    found.inference_stats.success.count, found.inference_stats.success.ns = 20, 9_000
    found.inference_stats.queue.count, found.inference_stats.queue.ns = 20, 6_000
    for size, count, ns in ((1, 1, 100), (8, 3, 2_400)):
        batch = found.batch_stats.add(batch_size=size)
        batch.compute_infer.count, batch.compute_infer.ns = count, ns
    return answer


def server(url):
    return SimpleNamespace(client=SimpleNamespace(get_inference_statistics=statistics), metrics_url=url)


def rows_of(table):
    assert table.schema == SERVER
    return {(row["model"], row["field"]): (row["value"], row["reason"]) for row in table.to_pylist()}


def test_counters_and_batch_sizes_are_read(metrics_page):
    metrics_page(200, TEXT)
    rows = rows_of(scrape(server(metrics_page.url), ["digits"]))
    assert rows["digits", "success_count"] == (20.0, None)
    assert rows["digits", "queue_ns"] == (6000.0, None)
    assert rows["digits", "inference_count"] == (24.0, None)
    assert rows["digits", "batch_count:8"] == rows["digits", "batch_infer_count:8"] == (3.0, None)
    assert rows["digits", "batch_infer_ns:8"] == (2400.0, None)
    assert rows["digits", "prometheus:nv_inference_request_failure"] == (4.0, None)
    assert rows["digits", "prometheus:nv_inference_request_failure:REJECTED"] == (3.0, None)
    assert rows["gpu:GPU-a", "prometheus:nv_gpu_power_usage"] == (61.5, None)
    assert rows["gpu:GPU-b", "prometheus:nv_gpu_power_usage"] == (70.5, None)


def test_a_family_that_is_missing_costs_only_itself(metrics_page):
    metrics_page(200, TEXT)
    rows = rows_of(scrape(server(metrics_page.url), ["digits"]))
    value, reason = rows["digits", "prometheus:nv_inference_exec_count"]
    assert value is None
    assert "nv_inference_exec_count" in reason
    value, reason = rows["gpu", "prometheus:nv_gpu_utilization"]
    assert value is None
    assert reason == "Triton reports no GPU"


@pytest.mark.parametrize(("status", "text", "why"), [(404, "no", "answered 404"), (200, '{"a": 1}', "have no")])
def test_no_metrics_page_leaves_the_statistics(metrics_page, status, text, why):
    metrics_page(status, text)
    rows = rows_of(scrape(server(metrics_page.url), ["digits"]))
    assert all(rows["digits", name][0] is not None for name in COUNTERS)
    for family in MODEL_FAMILIES:
        value, reason = rows["digits", f"prometheus:{family}"]
        assert value is None
        assert why in reason


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9/metrics"])
def test_metrics_that_are_off_are_never_zero(url):
    rows = rows_of(scrape(server(url), ["digits"]))
    for subject, family in [("digits", f) for f in MODEL_FAMILIES] + [("gpu", f) for f in GPU_FAMILIES]:
        value, reason = rows[subject, f"prometheus:{family}"]
        assert value is None
        assert reason


def test_a_model_that_is_not_loaded_costs_only_itself():
    rows = rows_of(scrape(server(None), ["gone", "digits"]))
    assert rows["gone", "success_count"] == (None, "requested model 'gone' is not found")
    assert rows["digits", "success_count"] == (20.0, None)


def test_no_models_is_an_empty_question():
    assert {row["model"] for row in scrape(server(None), []).to_pylist()} == {"gpu"}


ENGINES = """
lab_engine_steps{model="digits",version="1",instance="a",loaded="100"} 900
lab_engine_steps{model="digits",version="1",instance="a",loaded="2000"} 3
lab_engine_steps{model="digits",version="1",instance="b",loaded="2001"} 4
lab_engine_steps{model="other",version="1",instance="c",loaded="2002"} 5000
lab_engine_cache_tokens_used{model="digits",version="1",instance="a",loaded="100"} 70
lab_engine_running{model="digits",version="1",instance="a",loaded="2000"} 0
"""


def test_an_engines_counters_are_the_newest_loads_summed_over_instances(metrics_page):
    """An engine before a reload lives on while its last answers are under way; its cache is not the newer one's."""
    metrics_page(200, ENGINES)
    rows = rows_of(scrape(server(metrics_page.url), ["digits"]))
    assert rows["digits", "engine_steps"] == (3.0 + 4.0, None)
    assert rows["digits", "engine_running"] == (0.0, None)
    assert rows["digits", "engine_cache_tokens_used"] == (None, "the engine tells no cache_tokens_used")


def test_a_model_without_an_engine_has_no_rows_of_one(metrics_page):
    metrics_page(200, TEXT)
    assert not [field for _, field in rows_of(scrape(server(metrics_page.url), ["digits"])) if "engine" in field]
