"""The names of a summary's figures, by subject. One name = one column = one metric; its unit is in the name.

A figure that was not measured, or is not worth showing, is None, and the summary's notes say why.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequestFields:
    """Load and latency, from the client's records. Counts cover the whole block, warm-up included, so that they add up:
    planned = sent + dropped, sent = ok + refused + timeout + cancelled + truncated + error. All else covers the window.

    offered_rps              arrivals due in the window ÷ its length (live: up to the last arrival that was answered,
                             since an unanswered request has no record yet)
    throughput_rps           successes that ended in the window ÷ its length
    goodput_rps              the same for successes within every limit of the objective
    slo_attainment_fraction  of the requests due in the window, the share that succeeded within the objective
    latency_*                from the scheduled arrival; _low_s and _high_s bound the percentile with 95 % confidence
    service_*                from the actual send; send_lag_* is the difference, the client's own wait
    in_flight_mean           requests sent and not answered, averaged over the window
    little_ratio             mean number of later successes in the system ÷ (throughput × mean latency): 1 in a steady
                             state (Little's law)
    """

    window_s: float | None
    planned: int | None
    sent: int
    ok: int
    refused: int
    timeout: int
    cancelled: int
    truncated: int
    error: int
    dropped: int | None
    error_fraction: float | None
    offered_rps: float | None
    sent_rps: float | None
    throughput_rps: float | None
    goodput_rps: float | None
    slo_attainment_fraction: float | None
    latency_n: int
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p90_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    latency_p999_s: float | None
    latency_max_s: float | None
    latency_p50_low_s: float | None
    latency_p50_high_s: float | None
    latency_p95_low_s: float | None
    latency_p95_high_s: float | None
    latency_p99_low_s: float | None
    latency_p99_high_s: float | None
    service_mean_s: float | None
    service_p50_s: float | None
    service_p95_s: float | None
    service_p99_s: float | None
    service_max_s: float | None
    send_lag_mean_s: float | None
    send_lag_p50_s: float | None
    send_lag_p99_s: float | None
    send_lag_max_s: float | None
    in_flight_mean: float | None
    little_ratio: float | None
    steady: bool | None


@dataclass(frozen=True, kw_only=True)
class TokenFields:
    """What a language model wrote, by the server's own count. `output_tokens` and its rate cover the window by arrival,
    answers that broke off included (live: answers that ended in the window, since one still being written has no
    record yet). All else is of successes due in the window. c_i is the arrival of the i-th chunk that held tokens,
    n_i how many, N all of them, a the send.

    output_tokens_incomplete  of output_tokens, those of requests that did not end ok
    good_tokens_per_s         of output_tokens, those of answers within every limit of the objective ÷ the window
    ttft_*                    time to first token, c_1 - a, a token of reasoning being one
    ttfo_p50_s                the same to the first token that is no reasoning
    itl_*                     inter-token latency, one value an answer: (c_last - c_1) / (N - n_1); an answer that came
                              in one chunk has none
    icl_*                     inter-chunk latency: every gap between two chunks, whatever they hold; never an ITL
    ntpot_mean_s              normalised time per output token, (c_last - a) / N: the wait for the first included
    decode_tokens_per_s_user  1 / itl_mean_s: how fast one answer is read
    """

    output_tokens: int | None
    output_tokens_incomplete: int | None
    output_tokens_per_s: float | None
    good_tokens_per_s: float | None
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    ttft_p50_low_s: float | None
    ttft_p50_high_s: float | None
    ttft_p95_low_s: float | None
    ttft_p95_high_s: float | None
    ttft_p99_low_s: float | None
    ttft_p99_high_s: float | None
    ttfo_p50_s: float | None
    itl_mean_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None
    icl_mean_s: float | None
    icl_p50_s: float | None
    icl_p99_s: float | None
    ntpot_mean_s: float | None
    decode_tokens_per_s_user: float | None


@dataclass(frozen=True, kw_only=True)
class EngineFields:
    """What the language model's engine says of itself, from its counters (lab/serve/metrics.py) in the window.

    engine_running_mean, engine_waiting_mean   requests being answered, and admitted to no step yet, over time, idle
                                               stretches included
    cache_tokens_used_peak, cache_tokens_total tokens whose keys and values are held, and how many there is room for
    engine_weight_bytes, engine_cache_bytes    what the engine has allocated for weights and for the cache
    engine_scale_bytes                         of engine_weight_bytes what scales and zero points take
    engine_adapters, engine_adapter_bytes      LoRA adapters that are loaded, and what they take besides
    preemptions                                requests put back to waiting because the cache was full
    engine_batch_mean                          answers that shared a step, mean over steps: tokens written ÷ steps
    step_mean_s                                seconds of decoding a step, whatever the number of requests in it
    prefill_fraction                           of the seconds that the engine computed, the share spent on prompts
    prefill_step_mean_s, prefill_tokens_mean   of a step that reads prompts the seconds this takes, and their tokens
    engine_busy_fraction                       of the window the share in which the engine computed
    prompt_cached_fraction                     of the prompts' tokens, those that a prefix cache had: by what an OpenAI
                                               server tells with its answers, over the whole block
    """

    engine_running_mean: float | None = None
    engine_waiting_mean: float | None = None
    cache_tokens_used_peak: int | None = None
    cache_tokens_total: int | None = None
    engine_weight_bytes: float | None = None
    engine_scale_bytes: float | None = None
    engine_cache_bytes: float | None = None
    engine_adapters: int | None = None
    engine_adapter_bytes: float | None = None
    preemptions: int | None = None
    engine_batch_mean: float | None = None
    step_mean_s: float | None = None
    prefill_fraction: float | None = None
    prefill_step_mean_s: float | None = None
    prefill_tokens_mean: float | None = None
    engine_busy_fraction: float | None = None
    prompt_cached_fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class ServerFields:
    """Triton's own counters (queue_*, compute_*: seconds a request), and what the block cost the machine."""

    queue_mean_s: float | None
    compute_mean_s: float | None
    compute_infer_mean_s: float | None
    server_mean_s: float | None
    batch_mean: float | None
    executions: int | None
    server_success_delta: int | None
    cache_hit_fraction: float | None
    memory_base_bytes: float | None
    memory_peak_bytes: float | None
    cpu_mean_fraction: float | None
    gpu_memory_peak_bytes: float | None
    gpu_utilization_mean_fraction: float | None
    gpu_power_mean_w: float | None
