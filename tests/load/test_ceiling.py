import numpy as np
import pytest

from lab.errors import RunError
from lab.load.ceiling import ceiling, keeps_up
from lab.measure.records import ERROR, OK, Requests
from tests.load.fakes.servers import free_port

pytestmark = pytest.mark.processes

MS = 1_000_000


def block(*, rate_rps: float, late_ns: np.ndarray | int = 0, outcome: int = OK, stretch: float = 1.0) -> Requests:
    """A second of constant arrivals, sent late."""
    due = (np.arange(int(rate_rps)) / rate_rps * 1e9).astype(np.int64)
    sent = (due * stretch).astype(np.int64) + late_ns
    return Requests(due, sent, sent + MS, np.full(len(due), outcome, np.uint8))


def test_a_rate_that_was_sent_on_time_is_kept_up_with() -> None:
    assert keeps_up(block(rate_rps=1000), 1000)
    assert keeps_up(block(rate_rps=1000, late_ns=9 * MS), 1000)


def test_what_was_sent_late_slowly_or_in_vain_is_not() -> None:
    assert not keeps_up(block(rate_rps=1000, late_ns=11 * MS), 1000)
    assert not keeps_up(block(rate_rps=1000, stretch=1.012), 1000)
    assert not keeps_up(block(rate_rps=1000, outcome=ERROR), 1000)


def test_a_few_late_requests_do_not_decide() -> None:
    late = np.zeros(1000, np.int64)
    late[:9] = 50 * MS
    assert keeps_up(block(rate_rps=1000, late_ns=late), 1000)


def test_never_sent_requests_are_not_kept_up_with() -> None:
    requests = block(rate_rps=1000)
    requests.sent_ns[500:] = -1
    requests.outcome[500:] = 2
    assert not keeps_up(requests, 1000)


def test_without_a_server_there_is_no_ceiling() -> None:
    with pytest.raises(RunError, match="is it loaded"):
        ceiling(f"127.0.0.1:{free_port()}")
