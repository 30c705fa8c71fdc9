"""States from the repository index, with lines that Triton 2.51 really wrote."""

import pytest

from lab.serve.health import ModelState, judge, one_line, why_in_log

FAILED = (
    "E1130 03:31:34.494703 9392 model_lifecycle.cc:642] \"failed to load 'null' version 1: Internal: "
    "ModuleNotFoundError: No module named 'nonsense'\\n\\nAt:\\n  /r/null/1/model.py(15): <module>\\n\""
)
UNREADABLE = (
    "E1130 03:31:34.497791 9392 model_repository_manager.cc:1460] \"Poll failed for model directory 'digits': "
    'failed to read text proto from /r/digits/config.pbtxt"'
)
LOADED = "I1130 03:31:34.137266 9392 model_lifecycle.cc:839] \"successfully loaded 'null'\""


def entry(state=None, reason=None, name="null"):
    found = {"name": name, "state": state, "reason": reason}
    return {key: value for key, value in found.items() if value is not None}


def test_ready_is_ready_with_all_its_processes():
    assert judge(entry("READY"), 2, 2, None) == ModelState("null", True, None)


def test_ready_while_a_new_one_replaces_the_old():
    assert judge(entry("READY"), 3, 2, None).ready


def test_ready_elsewhere_is_believed():
    assert judge(entry("READY"), None, 0, None).ready


@pytest.mark.parametrize("living", [0, 1])
def test_ready_with_a_dead_process_is_not_ready(living):
    state = judge(entry("READY"), living, 2, None)
    assert not state.ready
    assert f"{living} of its 2 processes live" in state.reason


@pytest.mark.parametrize(
    ("state", "told", "reason"),
    [
        ("UNAVAILABLE", "unloaded", "unloaded"),
        ("LOADING", None, "loading"),
        ("UNLOADING", None, "unloading"),
        (None, None, "not loaded"),
        (
            "UNAVAILABLE",
            "Internal: ValueError: no weights\n\nAt:\n  /r/null/1/model.py(9): x",
            "Internal: ValueError: no weights",
        ),
    ],
)
def test_a_model_that_does_not_serve_says_why(state, told, reason):
    assert judge(entry(state, told), None, 0, None) == ModelState("null", False, reason)


def test_a_configuration_that_cannot_be_read_is_explained_by_the_log(tmp_path):
    """Triton then lists the model without a state."""
    log = tmp_path / "log"
    log.write_text(f"{UNREADABLE}\n{FAILED}\n")
    assert "failed to read text proto" in judge(entry(name="digits"), None, 0, log).reason


def test_the_log_of_another_model_explains_nothing(tmp_path):
    (tmp_path / "log").write_text(f"{FAILED}\n")
    assert why_in_log("nul", tmp_path / "log") is None
    assert why_in_log("null", tmp_path / "log") == "Internal: ModuleNotFoundError: No module named 'nonsense'"


def test_a_failure_before_a_later_success_is_history(tmp_path):
    (tmp_path / "log").write_text(f"{FAILED}\n{LOADED}\n")
    assert why_in_log("null", tmp_path / "log") is None


def test_a_failure_under_an_earlier_server_is_history(tmp_path):
    started = 'I1130 03:35:50.833178 11455 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:33423"'
    (tmp_path / "log").write_text(f"{FAILED}\n{started}\n")
    assert judge(entry(), None, 0, tmp_path / "log").reason == "not loaded"


def test_a_message_in_one_line():
    assert one_line("failed to load 'a' version 1: Internal: boom\n\nAt: x") == "Internal: boom"
    assert one_line("plain") == "plain"
    assert one_line("") == ""
