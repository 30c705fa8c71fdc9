"""Life and health of a real Triton (P1, P2, P11, P13, P15, P17, P18; T29)."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from lab import stopping
from lab.errors import InputError, ModelError, ServerError
from lab.serve import health, leftovers, record, repository
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import Batching, ModelSpec
from tests.waiting import until

pytestmark = pytest.mark.triton
PROJECT = Path(__file__).parents[2]


def ask(server, model, values, name="INPUT", output="OUTPUT", timeout=60.0):
    """One request of rows `values` [b, n]."""
    rows = np.asarray(values, np.float32)
    tensor = triton.InferInput(name, rows.shape, "FP32")
    tensor.set_data_from_numpy(rows)
    return server.client.infer(model, [tensor], client_timeout=timeout).as_numpy(output)


@pytest.fixture
def own_server(tmp_path, triton_installed, monkeypatch):
    """A server of this test's alone, with a LAB_HOME whose server.json knows no other."""
    shared = Path(os.environ["LAB_HOME"])
    for name in ("downloads", "triton", "models"):
        (tmp_path / name).symlink_to(shared / name)
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    with Server.start(repository=tmp_path / "repository", log=tmp_path / "triton.log") as server:
        yield server


@pytest.fixture
def model_code(tmp_path, monkeypatch):
    """Replaces the code of family null, for models that are written from now on, by one with these lines in it."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.setattr(repository, "MODELS", folder)

    def write(initialize: str = "pass", execute: str = "pass") -> None:
        lines = [
            "import os, time",
            "import triton_python_backend_utils as pb_utils",
            "class TritonPythonModel:",
            "    def initialize(self, args):",
            f"        {initialize}",
            "    def execute(self, requests):",
            "        values = [pb_utils.get_input_tensor_by_name(r, 'INPUT').as_numpy() for r in requests]",
            f"        {execute}",
            "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT', value)]) for value in values]",
        ]
        (folder / "null.py").write_text("\n".join(lines))

    return write


# --- start and stop ---------------------------------------------------------------------------------------------


def test_a_server_starts_is_found_by_another_and_stops(own_server):
    assert own_server.owned
    assert own_server.alive()
    assert own_server.died() is None
    found = Server.attach()
    assert (found.pid, found.grpc_url, found.owned) == (own_server.pid, own_server.grpc_url, False)
    found.load(ModelSpec(name="null"))
    assert own_server.state("null").ready
    own_server.load(ModelSpec(name="other", family="null"))
    assert record.read().models == ("null", "other")
    prefix = own_server.managed.prefix
    assert list(leftovers.SHM.glob(f"{prefix}*"))
    assert own_server.stop() == "stopped"
    assert Server.attach() is None
    assert not own_server.alive()
    assert not list(leftovers.SHM.glob(f"{prefix}*"))
    assert own_server.stop() == "had ended before"


def test_everything_listens_on_the_loopback_address_only(triton_server):
    listening = [c.laddr for c in psutil.Process(triton_server.pid).net_connections() if c.status == "LISTEN"]
    assert len(listening) == 3
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_wanted_port_that_is_taken_is_named_and_replaced(tmp_path, triton_installed, capfd):
    """P13: never ready because a stranger answers."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        server = Server.start(repository=tmp_path / "r", log=tmp_path / "log", wanted_ports=(0, port))
        with server:
            assert server.grpc_url != f"127.0.0.1:{port}"
            assert f"port {port} is taken by" in capfd.readouterr().err
            assert f"(pid {os.getpid()})" not in server.grpc_url


def test_a_server_that_is_killed_says_so_and_leaves_nothing(own_server):
    own_server.load(ModelSpec(name="null"))
    os.kill(own_server.pid, signal.SIGKILL)
    until(lambda: not own_server.alive())
    assert "signal 9" in own_server.died()
    with pytest.raises(ServerError, match="signal 9"):
        own_server.states()
    assert Server.attach() is None
    own_server.stop()
    assert not list(leftovers.SHM.glob(f"{own_server.managed.prefix}*"))


def test_a_server_dies_with_its_owner(tmp_path, triton_installed):
    code = (
        "import sys, time; from pathlib import Path; from lab.serve.triton import Server\n"
        f"server = Server.start(repository=Path({str(tmp_path / 'r')!r}), log=Path({str(tmp_path / 'log')!r}))\n"
        "from lab.spec import ModelSpec; server.load(ModelSpec(name='null'))\n"
        "print(server.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    server = psutil.Process(int(owner.stdout.readline()))
    assert server.name() == "tritonserver"
    (stub,) = server.children()
    owner.kill()
    owner.wait()
    server.wait(60)
    stub.wait(60)


def test_regions_of_a_crashed_server_go_and_its_neighbours_stay(own_server, triton_server):
    """P14: two servers, one killed together with its stubs."""
    own_server.load(ModelSpec(name="null"))
    triton_server.load(ModelSpec(name="neighbour", family="null"))
    stubs = psutil.Process(own_server.pid).children(recursive=True)
    for process in [psutil.Process(own_server.pid), *stubs]:
        process.kill()
    psutil.wait_procs(stubs, timeout=60)
    until(lambda: not own_server.alive())
    left = leftovers.find()
    assert left
    assert all(one.path.name.startswith(own_server.managed.prefix) for one in left)
    assert leftovers.remove() == (len(left), sum(one.size_bytes for one in left))
    assert leftovers.find() == []
    assert ask(triton_server, "neighbour", [[3]]) == [[3]]
    triton_server.unload("neighbour")


def test_an_own_server_that_cannot_load_its_model_is_stopped(tmp_path, triton_installed, model_code):
    model_code(initialize="raise ValueError('no weights here')")
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ModelError, match="no weights here"):
        Server.start(repository=tmp_path / "r", log=tmp_path / "log", models=[ModelSpec(name="null")])
    until(lambda: {child.pid for child in psutil.Process().children()} <= before)


# --- models -----------------------------------------------------------------------------------------------------


def test_a_toggle_is_in_force_without_a_restart(triton_server):
    pid = triton_server.pid
    for batching, most in ((None, 1), (Batching(max_batch_size=8, max_queue_delay_us=500), 8), (None, 1)):
        assert triton_server.load(ModelSpec(name="toggled", family="null", batching=batching)) > 0
        config = triton_server.config("toggled")
        assert config["max_batch_size"] == most
        assert ("dynamic_batching" in config) == (batching is not None)
        assert ask(triton_server, "toggled", [[1.5]]) == [[1.5]]
    assert triton_server.pid == pid
    triton_server.unload("toggled")


def test_batching_left_without_a_batch_size_would_be_dropped_in_silence(triton_server, tmp_path, monkeypatch):
    """P1: what `repository.check` guards against. Triton takes the file, and never batches."""
    wanted = repository.config(ModelSpec(name="p1", family="sleeper", batching=Batching(max_batch_size=8)))
    wanted.max_batch_size = 0
    monkeypatch.setattr(repository, "config_pbtxt", lambda spec: repository.text_format.MessageToString(wanted))
    triton_server.load(ModelSpec(name="p1", family="sleeper"))
    assert triton_server.config("p1").get("max_batch_size", 0) == 0
    assert triton_server.state("p1").ready
    triton_server.unload("p1")


def test_a_model_that_fails_to_load_says_why_and_the_others_serve(own_server, model_code):
    model_code(initialize="raise ValueError('no weights here')")
    with pytest.raises(ModelError) as told:
        own_server.load(ModelSpec(name="broken", family="null"))
    assert "model broken did not load" in str(told.value)
    assert "ValueError: no weights here" in str(told.value)
    assert "\n" not in str(told.value)
    state = own_server.state("broken")
    assert not state.ready
    assert "no weights here" in state.reason
    model_code()
    own_server.load(ModelSpec(name="sound", family="null"))
    assert ask(own_server, "sound", [[2]]) == [[2]]
    assert [(s.name, s.ready) for s in own_server.states()] == [("broken", False), ("sound", True)]
    own_server.load(ModelSpec(name="broken", family="null"))  # repaired
    assert own_server.state("broken").ready


def test_a_failed_reload_leaves_the_earlier_configuration_serving(own_server, model_code):
    model_code()
    own_server.load(ModelSpec(name="null", batching=Batching(max_batch_size=8)))
    model_code(initialize="raise ValueError('worse now')")
    with pytest.raises(ModelError, match="worse now; its earlier configuration still serves"):
        own_server.load(ModelSpec(name="null"))
    assert own_server.config("null")["max_batch_size"] == 8
    assert ask(own_server, "null", [[2]]) == [[2]]


def test_a_configuration_that_triton_refuses_is_shown_with_its_line(own_server, monkeypatch):
    """P2, past our own check: Triton then lists the model without any state."""
    bad = repository.config(ModelSpec(name="p2", family="null", batching=Batching(max_batch_size=4)))
    bad.dynamic_batching.preferred_batch_size.append(8)
    monkeypatch.setattr(repository, "config_pbtxt", lambda spec: repository.text_format.MessageToString(bad))
    with pytest.raises(ModelError, match="preferred size must be <= max batch size"):
        own_server.load(ModelSpec(name="p2", family="null"))
    assert "preferred size must be <= max batch size" in own_server.state("p2").reason
    monkeypatch.undo()


def test_a_dead_model_process_is_seen_and_a_load_revives_it(own_server, model_code):
    """P11: Triton's index goes on saying READY."""
    model_code(execute="[os._exit(3) for value in values if value.max() == 13]")
    own_server.load(ModelSpec(name="null"))
    assert ask(own_server, "null", [[2]]) == [[2]]
    with pytest.raises(InferenceServerException):
        ask(own_server, "null", [[13]])
    until(lambda: not own_server.state("null").ready)
    assert "0 of its 1 processes live" in own_server.state("null").reason
    own_server.load(ModelSpec(name="null"))
    assert own_server.state("null").ready
    assert ask(own_server, "null", [[2]]) == [[2]]
    with pytest.raises(InferenceServerException):
        ask(own_server, "null", [[13]])
    until(lambda: not own_server.state("null").ready)
    own_server.load_again("null")  # nothing is written anew
    assert own_server.state("null").ready
    assert ask(own_server, "null", [[2]]) == [[2]]
    for name in ("never-written", "../null"):
        with pytest.raises(ModelError, match="nothing is written of it"):
            own_server.load_again(name)


def test_others_answer_while_one_model_loads_slowly(own_server, model_code):
    """P15: the server as a whole says "not ready" meanwhile; each model's own state is what counts."""
    model_code()
    own_server.load(ModelSpec(name="quick", family="null"))
    model_code(initialize="time.sleep(2)")
    took = []
    loading = threading.Thread(target=lambda: took.append(own_server.load(ModelSpec(name="slow", family="null"))))
    loading.start()
    until(lambda: own_server.state("slow").reason == "loading")
    assert own_server.state("quick").ready
    assert ask(own_server, "quick", [[2]]) == [[2]]
    assert loading.is_alive()
    loading.join()
    assert took[0] > 2
    assert own_server.state("slow").ready


def test_a_stop_ends_the_wait_for_a_load_that_hangs_and_its_server(own_server, model_code):
    model_code(initialize="time.sleep(600)")

    def loading():
        return own_server.state("hanging").reason == "loading"

    with stopping.heeding(loading), pytest.raises(stopping.Stopped):
        own_server.load(ModelSpec(name="hanging", family="null"))
    stubs = until(lambda: health.processes(own_server.pid).get("hanging"))
    own_server.stop()
    assert not own_server.alive()
    until(lambda: not any(stub.is_running() for stub in stubs))


def test_unload_returns_when_the_processes_are_gone(triton_server):
    triton_server.load(ModelSpec(name="leaving", family="null", instances=2))
    assert health.live_processes(triton_server.pid)["leaving"] == 2
    triton_server.unload("leaving")
    assert "leaving" not in health.live_processes(triton_server.pid)
    assert triton_server.state("leaving").reason == "unloaded"
    with pytest.raises(ModelError, match="leaving has no configuration in force"):
        triton_server.config("leaving")


def test_a_model_that_is_not_there(triton_server):
    state = triton_server.state("nowhere")
    assert not state.ready
    assert "no such model" in state.reason


# --- somebody else's --------------------------------------------------------------------------------------------


def test_a_server_by_url_answers_but_is_not_controlled(triton_server):
    triton_server.load(ModelSpec(name="seen", family="null"))
    for url in (f"grpc://{triton_server.grpc_url}", f"GRPC://{triton_server.grpc_url}", triton_server.grpc_url):
        other = Server.at(url)
        assert (other.pid, other.owned) == (None, False)
        assert other.grpc_url == triton_server.grpc_url
        assert other.alive()
        assert other.state("seen").ready
        for control in (lambda: other.load(ModelSpec(name="null")), lambda: other.unload("seen"), other.stop):  # noqa: B023
            with pytest.raises(ServerError, match="not the lab's to control"):
                control()
    assert triton_server.state("seen").ready
    triton_server.unload("seen")


@pytest.mark.parametrize("url", ["", "8001", "ftp://127.0.0.1:8001", "127.0.0.1:x", "grpc://127.0.0.1", "h:99999"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(InputError, match=r"allowed(:| is) grpc://HOST:PORT"):
        Server.at(url)


def test_a_url_where_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerError, match=f"127.0.0.1:{port}"):
        Server.at(f"grpc://127.0.0.1:{port}")


# --- counters ---------------------------------------------------------------------------------------------------


def counters(server, model):
    rows = scrape(server, [model]).to_pylist()
    return {row["field"]: row["value"] for row in rows if row["model"] == model}


def test_requests_rows_and_executions_are_three_counts(triton_server):
    """P17: one call of 8 rows, then 8 calls of one row that join."""
    spec = ModelSpec(
        name="counted", family="sleeper", batching=Batching(max_batch_size=8, max_queue_delay_us=10_000_000)
    )
    triton_server.load(spec)
    ask(triton_server, "counted", [[0.0]] * 8, "SLEEP_S", "BATCH")

    def counted(**expected):
        """Triton answers before it counts, and not everywhere at once."""
        wanted = {
            name.replace("prometheus_", "prometheus:").replace("count_8", "count:8"): n for name, n in expected.items()
        }
        until(lambda: wanted.items() <= counters(triton_server, "counted").items())

    counted(success_count=1, inference_count=8, execution_count=1)
    batches = []
    calls = [
        threading.Thread(
            target=lambda: batches.append(ask(triton_server, "counted", [[0.0]], "SLEEP_S", "BATCH").item())
        )
        for _ in range(8)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert batches == [8] * 8  # the batch was full long before the 10 s were over
    counted(
        success_count=9,
        inference_count=16,
        execution_count=2,
        batch_count_8=2,
        prometheus_nv_inference_request_success=9,
    )
    triton_server.load(spec)  # a reload: the one starts anew, the other goes on
    ask(triton_server, "counted", [[0.0]] * 8, "SLEEP_S", "BATCH")
    counted(success_count=1, prometheus_nv_inference_request_success=10)
    triton_server.unload("counted")


def test_without_a_gpu_its_metrics_are_missing_not_zero(triton_server):
    """P18, T29."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    rows = [row for row in scrape(triton_server, []).to_pylist() if row["model"] == "gpu"]
    assert rows
    assert {(row["value"], row["reason"]) for row in rows} == {(None, "Triton reports no GPU")}


def test_a_gpu_model_on_a_machine_without_one_is_refused_before_launch(triton_server):
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="device gpu on a machine without an NVIDIA GPU"):
        triton_server.load(ModelSpec(name="digits", device="gpu"))


# --- in the foreground ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serve_forever_names_its_ports_and_stops_cleanly(tmp_path, triton_installed, how):
    shared = Path(os.environ["LAB_HOME"])
    for name in ("downloads", "triton", "models"):
        (tmp_path / name).symlink_to(shared / name)
    code = "from lab.serve.foreground import serve_forever; from lab.spec import ModelSpec\n"
    code += "serve_forever([ModelSpec(name='null')])"
    serving = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env={**os.environ, "LAB_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    first, second = serving.stdout.readline(), serving.stdout.readline()
    assert "gRPC 127.0.0.1:" in first
    assert second.startswith("null is ready after")
    serving.send_signal(how)
    rest, _ = serving.communicate(timeout=60)
    assert rest == "Triton stopped\n"
    assert serving.returncode == 0
    assert not (tmp_path / "server.json").exists()
