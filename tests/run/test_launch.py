"""Runs that a page starts: processes of their own, one however often the button is pressed, stopped from anywhere."""

import threading

import psutil
import pytest

from lab.errors import InputError
from lab.run import launch
from lab.run.folder import RunFolder, new_run_id, runs
from lab.spec import ModelSpec
from tests.waiting import until

pytestmark = pytest.mark.triton


def runners(run_id):
    return [
        p for p in psutil.process_iter(["cmdline"]) if run_id in (p.info["cmdline"] or []) and p.status() != "zombie"
    ]


def test_two_clicks_at_once_are_one_run_and_stop_from_elsewhere_ends_it(triton_server):
    run_id = new_run_id("load")
    model = ModelSpec(name="null")
    clicks = [threading.Thread(target=launch.start_live, args=(model, run_id)) for _ in range(2)]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join(60)
    folder = RunFolder.open(run_id)
    until(lambda: folder.read("requests").num_rows > 5)
    until(lambda: len(runners(run_id)) == 1, "who came second to leave")
    launch.stop(run_id)
    until(lambda: folder.status().state == "cancelled")
    until(lambda: not runners(run_id))
    assert folder.read("requests").num_rows > 5


def test_what_the_run_refuses_reaches_the_page_as_its_own_line(lab_home):
    run_id = new_run_id("batching")
    with pytest.raises(InputError, match="instances"):
        launch.start("batching", ["model.instances=0"], True, run_id)
    assert run_id not in [info.run_id for info in runs()]


def test_a_second_run_waits_and_says_behind_whom(triton_server):
    first, second = new_run_id("load"), new_run_id("load")
    launch.start_live(ModelSpec(name="null"), first)
    until(lambda: RunFolder.open(first).read("requests").num_rows > 5)
    launch.start_live(ModelSpec(name="null"), second)
    until(lambda: first in RunFolder.open(second).status().phase)
    assert RunFolder.open(second).status().state == "queued"
    launch.stop(second)
    launch.stop(first)
    assert RunFolder.open(second).read("requests").num_rows == 0
