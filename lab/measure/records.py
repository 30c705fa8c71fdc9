"""What a run writes down, row by row, before anybody interprets it.

Three tables, append-only Arrow IPC streams in the run folder (lab/run/folder.py):

    requests    one row a finished request, in order of completion
    telemetry   one row a reading: what the run cost the machine
    server      one row a counter and scrape: what Triton says of itself

All times are `time.perf_counter_ns()` of one machine (CLOCK_MONOTONIC, which Triton's traces use too).
A raw row and its interpretation are two types: `Requests` here, `Summary` in summary.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute  # makes pa.compute available

SCHEMA_VERSION = "2"

OUTCOMES = ("ok", "refused", "timeout", "cancelled", "truncated", "error")
"""How a request ended; the `outcome` column holds the position in this tuple.

ok         the whole answer arrived
refused    turned away unserved (queue full, connection refused, 429)
timeout    no answer within the workload's timeout_s
cancelled  given up by the client (Stop, Ctrl-C, end of the run's grace)
truncated  the answer began and broke off
error      anything else; `detail` says what
"""
OK, REFUSED, TIMEOUT, CANCELLED, TRUNCATED, ERROR = range(len(OUTCOMES))

REQUESTS = pa.schema(
    [
        pa.field("block", pa.int32()),  # which measured stretch of the run: a cell in one of its repeats
        pa.field("request", pa.int64()),  # position in the block's schedule, 0-based; unique within the block
        pa.field("due_ns", pa.int64()),  # scheduled arrival; closed loop: when the user was ready to send
        pa.field("sent_ns", pa.int64()),  # handed to the transport; null: never sent
        pa.field("done_ns", pa.int64()),  # answer complete, or given up
        pa.field("outcome", pa.uint8()),
        pa.field("detail", pa.string()),  # null when ok
        # Of answers that are generated; null for others, and where the server did not say.
        pa.field("prompt_tokens", pa.int32()),  # the server's count
        pa.field("output_tokens", pa.int32()),  # the server's count; of a request that failed, those that arrived
        pa.field("chunk_ns", pa.list_(pa.int64())),  # arrival of each chunk that held tokens, in order
        pa.field("chunk_tokens", pa.list_(pa.int32())),  # tokens in each of them
        pa.field("reasoning_chunks", pa.int32()),  # how many of them, from the first on, were reasoning
    ],
    metadata={"schema_version": SCHEMA_VERSION, "outcomes": ",".join(OUTCOMES)},
)

TELEMETRY = pa.schema(
    [
        pa.field("t_ns", pa.int64()),
        pa.field("subject", pa.string()),  # "model:digits", "server", "gpu:0", "client", "host"
        pa.field("field", pa.string()),  # "memory_bytes", "cpu_fraction", "power_w", …
        pa.field("value", pa.float64()),  # null: not measured
        pa.field("reason", pa.string()),  # why value is null
    ],
    metadata={"schema_version": SCHEMA_VERSION},
)

SERVER = pa.schema(
    [
        pa.field("t_ns", pa.int64()),
        pa.field("model", pa.string()),
        pa.field("field", pa.string()),  # see lab/serve/metrics.py: success_count, queue_ns, batch_count:8, …
        pa.field("value", pa.float64()),  # cumulative counter since the model's last load; null: not available
        pa.field("reason", pa.string()),
    ],
    metadata={"schema_version": SCHEMA_VERSION},
)

WAITS = pa.schema(
    [
        pa.field("t_ns", pa.int64()),  # arrival at the proxy
        pa.field("model", pa.string()),
        pa.field("request", pa.int64()),  # the load generator's number of it in its block; null: it gave none
        pa.field("waited_ns", pa.int64()),  # for its model to be loaded; 0: it was there
        pa.field("refused", pa.string()),  # why it was turned away (lab/serve/eviction.py: Reason); null: it was not
    ],
    metadata={"schema_version": SCHEMA_VERSION},
)
"""A fourth table, of runs with a fleet: what each request waited for its model (lab/serve/proxy.py)."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Streams:
    """What the requests of one block (n) generated, beside `Requests` and in its order. Token counts are -1 where the
    server gave none. The chunks of request i are rows first[i] to first[i + 1] of `t_ns` and `tokens`; a request whose
    chunks were not counted one by one has them with -1."""

    prompt_tokens: Int64s  # [n]
    output_tokens: Int64s  # [n]
    reasoning_chunks: Int64s  # [n]
    first: Int64s  # [n + 1]
    t_ns: Int64s
    tokens: Int64s

    @classmethod
    def from_table(cls, table: pa.Table) -> Streams:
        """The columns of a table with the REQUESTS schema."""
        chunks, held = (table[name].combine_chunks() for name in ("chunk_ns", "chunk_tokens"))
        lengths = pa.compute.list_value_length(chunks).fill_null(0).to_numpy(zero_copy_only=False)
        tokens = np.full(int(lengths.sum()), -1, dtype=np.int64)
        counted = np.repeat(held.is_valid().to_numpy(zero_copy_only=False), lengths)
        tokens[counted] = pa.compute.list_flatten(held).to_numpy(zero_copy_only=False)

        def counts(name: str, missing: int) -> Int64s:
            return np.asarray(table[name].fill_null(missing), dtype=np.int64)

        return cls(
            prompt_tokens=counts("prompt_tokens", -1),
            output_tokens=counts("output_tokens", -1),
            reasoning_chunks=counts("reasoning_chunks", 0),
            first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            t_ns=pa.compute.list_flatten(chunks).to_numpy(zero_copy_only=False),
            tokens=tokens,
        )


@dataclass(frozen=True)
class Requests:
    """The finished requests of one block as columns of equal length, in any order. `sent_ns` is -1 where the
    request was never sent."""

    due_ns: Int64s
    sent_ns: Int64s
    done_ns: Int64s
    outcome: npt.NDArray[np.uint8]
    detail: pa.ChunkedArray | None = None  # only read when failures are explained
    streams: Streams | None = None  # None where nothing was generated

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def given_up(self) -> npt.NDArray[np.bool_]:
        """Under way when the run was stopped: whoever stopped it gave them up, so they are no server's failures."""
        given_up: npt.NDArray[np.bool_] = (self.sent_ns >= 0) & (self.outcome == CANCELLED)
        return given_up

    @classmethod
    def from_table(cls, table: pa.Table, block: int | None = None) -> Requests:
        """The rows of `block` (all rows when None) of a table with the REQUESTS schema."""
        if block is not None:
            table = table.filter(pa.compute.equal(table["block"], block))
        return cls(
            due_ns=table["due_ns"].to_numpy(),
            sent_ns=table["sent_ns"].fill_null(-1).to_numpy(),
            done_ns=table["done_ns"].to_numpy(),
            outcome=table["outcome"].to_numpy(),
            detail=table["detail"],
            streams=None if table["chunk_ns"].null_count == len(table) else Streams.from_table(table),
        )


@dataclass(frozen=True)
class Window:
    """When a block ran. Figures use [measured_from_ns, end_ns); what lies before is warm-up."""

    start_ns: int
    measured_from_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.measured_from_ns) / 1e9
