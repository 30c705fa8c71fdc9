"""Why a Triton ended, from its log: the reason, not the information before it nor the stack after it."""

from lab.serve.record import ServerRecord
from lab.serve.triton import Server

ABORTED = [
    "I1130 08:10:03.221655 24884 model_lifecycle.cc:624] \"successfully unloaded 'digits' version 1\"",
    "terminate called after throwing an instance of 'boost::interprocess::lock_exception'",
    "  what():  boost::interprocess::lock_exception",
    "Signal (6) received.",
    *(f"{number:2d}# 0x00007F937D8A71F5 in /lib/x86_64-linux-gnu/libc.so.6" for number in range(23)),
]


def test_a_triton_that_aborted_is_quoted_by_its_reason(tmp_path):
    log = tmp_path / "triton.log"
    log.write_text("\n".join(ABORTED) + "\n")
    server = Server("127.0.0.1", 1, 2, None)
    # No process has that id: it is above the highest that Linux gives.
    server.managed = ServerRecord(2**22 + 1, 0.0, 1, 2, 3, str(tmp_path), str(log), "prefix")
    said = server.died()
    assert "lock_exception" in said
    assert "Signal (6) received." in said
    assert "libc" not in said
    assert "unloaded" not in said


def test_one_that_was_killed_says_no_word_and_is_told_by_its_signal(tmp_path):
    """As a run sees it that measures on the server of `lab up`, which alone may wait for it."""
    log = tmp_path / "triton.log"
    began = [
        "Error: Failed to initialize NVML",
        'I1130 08:10:01.1 7 grpc_server.cc:2558] "Started GRPCInferenceService"',
    ]
    log.write_text("\n".join([*began, ABORTED[0]]) + "\n")
    log.with_name("triton.log.ended").write_text(f"{2**22 + 1} -9\n")
    server = Server("127.0.0.1", 1, 2, None)
    server.managed = ServerRecord(2**22 + 1, 0.0, 1, 2, 3, str(tmp_path), str(log), "prefix")
    assert server.died() == "Triton ended (signal 9), without a word"
