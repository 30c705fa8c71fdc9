"""The gRPC stream against gRPC's own server, whose book says when each chunk left it."""

from __future__ import annotations

from lab.load.payload import requests_for
from lab.load.targets.triton_stream import TritonStream
from lab.measure.records import OK
from lab.spec import ClosedLoop, ModelSpec, Workload
from tests.load.fakes.streams import Chunk, Story, grpc_stream_server
from tests.load.fakes.using import Using, use

REQUESTS = requests_for(ModelSpec(name="llm"), Workload(arrival=ClosedLoop(concurrency=1), duration_s=1), 50)


def answered(story: Story, count: int = 1) -> Using:
    async def script(using: Using) -> None:
        for number in range(count):
            using.ask(number)
        await using.until(*range(count))

    with grpc_stream_server(story) as server:
        return use(TritonStream, server.url, REQUESTS, script)


def test_chunks_and_their_tokens_are_the_servers() -> None:  # T1, T26, T36, P8
    story = Story([Chunk(0.1, 4), Chunk(0.2, 3), Chunk(0.3, 3)])
    using = answered(story)
    end = using.ends[0]
    assert (end.outcome, end.detail) == (OK, None)
    assert end.generated is not None
    assert end.generated.chunk_tokens == [4, 3, 3]
    assert (end.generated.prompt_tokens, end.generated.output_tokens) == (7, 10)
    for arrived_ns, sent_ns in zip(end.generated.chunk_ns, story.sent_ns[0], strict=True):
        assert 0 < arrived_ns - sent_ns < 100_000_000
