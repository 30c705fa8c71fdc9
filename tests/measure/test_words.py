import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.measure.words import (
    format_bytes,
    format_fraction,
    format_metric,
    format_range,
    format_rate,
    format_ratio,
    format_seconds,
    format_setting_s,
    join,
    level_label,
    metric_label,
    objective_label,
    plural,
)
from lab.spec import Slo


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "n/a"),
        (0.0, "0 ms"),
        (0.0051, "5.1 ms"),
        (0.012, "12.0 ms"),
        (0.00085, "0.85 ms"),
        (85e-6, "85 µs"),
        (500e-9, "500 ns"),
        (0.1234, "123 ms"),
        (0.9999, "1.00 s"),
        (1.9, "1.90 s"),
        (12.34, "12.3 s"),
        (9.999, "10.0 s"),
        (125.0, "125 s"),
        (-0.0051, "−5.1 ms"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "n/a"),
        (1900.4, "1,900 req/s"),
        (45.23, "45.2 req/s"),
        (0.5, "0.50 req/s"),
        (0, "0 req/s"),
        (99.97, "100 req/s"),
    ],
)
def test_rates(rate, text):
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "n/a"),
        (512, "512 B"),
        (195 * 2**20, "195 MiB"),
        (12.3 * 2**20, "12.3 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**20 - 1, "1.0 MiB"),
    ],
)
def test_bytes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "n/a"),
        (2.6, "2.6×"),
        (1.03, "1.03×"),
        (0.97, "0.97×"),
        (12.4, "12×"),
        (1999.6, "2,000×"),
    ],
)
def test_ratios(ratio, text):
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "n/a"),
        (0.047619, "4.76 %"),
        (1.2, "120 %"),
        (0.8, "80 %"),
        (0.992, "99.2 %"),
        (0.99999, "over 99.99 %"),
        (1e-6, "under 0.01 %"),
        (0, "0 %"),
        (1, "100 %"),
    ],
)
def test_fractions(fraction, text):
    assert format_fraction(fraction) == text


@given(st.floats(1e-5, 1e4), st.floats(1e-5, 1e4))
def test_a_longer_time_never_reads_shorter(a, b):
    """Rounding at a change of unit must not turn the order round."""
    unit = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}

    def read(seconds):
        number, name = format_seconds(seconds).split()
        return float(number.replace(",", "")) * unit[name]

    shorter, longer = sorted([a, b])
    assert read(shorter) <= read(longer) * (1 + 1e-9)
    assert read(a) == pytest.approx(a, rel=0.051)


@pytest.mark.parametrize(
    ("path", "level", "text"),
    [
        ("model.batching", None, "batching off"),
        ("model.batching", {"max_batch_size": 32, "max_queue_delay_us": 500}, "batching on, 0.5 ms delay"),
        ("model.batching", {"max_batch_size": 32, "max_queue_delay_us": 5000}, "batching on, 5 ms delay"),
        ("model.batching", {"max_batch_size": 32}, "batching on, no delay"),
        ("workload.arrival.saturation_fraction", 1.2, "120 % of saturation"),
        ("workload.arrival.rate_rps", 150, "150 req/s"),
        ("workload.arrival.concurrency", 8, "8 in flight"),
        ("model.instances", 1, "1 instance"),
        ("model.instances", 2, "2 instances"),
        ("model.precision", "bf16", "bf16"),
        ("model.batching.max_queue_delay_us", 2000, "max queue delay 2 ms"),
        ("workload.timeout_s", 0.5, "timeout 500 ms"),
        ("workload.arrival", {"kind": "poisson", "rate_rps": 10}, "poisson rate rps 10"),
    ],
)
def test_levels(path, level, text):
    assert level_label(path, level) == text


def test_levels_that_read_the_same_are_told_apart():
    small, large = {"max_batch_size": 8, "max_queue_delay_us": 0}, {"max_batch_size": 32, "max_queue_delay_us": 0}
    assert level_label("model.batching", small, among=[None, small, large]) == (
        "batching on, no delay (max batch size 8, max queue delay us 0)"
    )
    assert level_label("model.batching", small, among=[None, small]) == "batching on, no delay"


def test_metrics_by_name():
    assert metric_label("latency_p99_s") == "p99"
    assert metric_label("goodput_rps") == "goodput"
    assert metric_label("service_p50_s") == "service p50"
    assert format_metric("latency_p99_s", 0.0051) == "5.1 ms"
    assert format_metric("memory_peak_bytes", 195 * 2**20) == "195 MiB"
    assert format_metric("error_fraction", 0.5) == "50 %"
    assert format_metric("batch_mean", 7.5) == "7.50"
    assert format_metric("batch_mean", None) == "n/a"


def test_lists_and_plurals():
    assert [join(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert (plural(1, "request"), plural(1050, "request")) == ("1 request", "1,050 requests")


@pytest.mark.parametrize(
    ("path", "level", "text"),
    [
        ("model.kv_cache", True, "KV cache on"),
        ("model.kv_cache", False, "KV cache off"),
        ("model.scheduler", "one", "one at a time"),
        ("model.scheduler", "continuous", "continuous batching"),
        ("workload.output_tokens", 256, "answers of 256 tokens"),
        ("workload.output_tokens", [8, 128], "answers of 8 to 128 tokens"),
        ("workload.output_tokens", (8, 8), "answers of 8 tokens"),
        ("workload.prompt_tokens", 1, "prompts of 1 token"),
        ("model.stream_interval", 4, "chunks of 4 tokens"),
        ("model.threads", None, "threads as the engine chooses"),
        ("model.threads", 2, "2 threads"),
        ("model.precision", "int8_weight", "int8 weights"),
        ("model.kv_cache_precision", "int8", "KV cache in int8"),
        ("model", {"precision": "int8", "quantizer": "rtn"}, "int8"),
        ("model", {"precision": "int8", "quantizer": "smoothquant"}, "int8 SmoothQuant"),
        ("model", {"precision": "int4", "quantizer": "gptq"}, "int4 GPTQ"),
        ("model", {"precision": "int4", "quantizer": "awq", "group_size": 64}, "int4 AWQ, group size 64"),
        ("model", {"kv_cache": False, "scheduler": "one"}, "KV cache off, one at a time"),
    ],
)
def test_levels_of_a_language_model(path, level, text):
    assert level_label(path, level) == text


@pytest.mark.parametrize(
    ("name", "value", "label", "text"),
    [
        ("output_tokens_per_s", 187.2, "output token rate", "187 tok/s"),
        ("decode_tokens_per_s_user", 30.12, "token rate of one answer", "30.1 tok/s"),
        ("ttft_p95_s", 0.1, "TTFT p95", "100 ms"),
        ("itl_mean_s", 0.0333, "mean ITL", "33.3 ms"),
        ("output_tokens", 1079, "output tokens", "1,079"),
        ("preemptions", 0, "preemptions", "0"),
    ],
)
def test_token_figures_in_words(name, value, label, text):
    assert metric_label(name) == label
    assert format_metric(name, value) == text


@pytest.mark.parametrize(
    ("slo", "text"),
    [
        (Slo(latency_s=0.02), "20 ms"),
        (Slo(ttft_s=0.5, itl_s=0.06), "500 ms to the first token and 60 ms between tokens"),
        (Slo(latency_s=10, itl_s=0.06), "10 s in all and 60 ms between tokens"),
    ],
)
def test_objectives(slo, text):
    assert objective_label(slo) == text


@pytest.mark.parametrize(
    ("low", "high", "write", "text"),
    [
        (0.0049, 0.0053, format_seconds, "4.9 to 5.3 ms"),
        (0.0435, 177.0, format_seconds, "43.5 ms to 177 s"),
        (85e-6, 1.5, format_seconds, "85 µs to 1.50 s"),
        (40 * 2**10, 2 * 2**20, format_bytes, "40.0 KiB to 2.0 MiB"),
        (2.4, 2.8, format_ratio, "2.4 to 2.8×"),
    ],
)
def test_both_ends_of_a_range_have_a_whole_unit(low, high, write, text):
    assert format_range(low, high, write) == text


def test_long_settings_are_hours():
    assert [format_setting_s(s) for s in (0.02, 90, 3600, 5400, 14_400, 3601)] == [
        "20 ms", "90 s", "1 h", "1.5 h", "4 h", "3601 s",
    ]  # fmt: skip
