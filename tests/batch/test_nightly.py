"""deploy/nightly with a lab that only writes down what it is asked."""

import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

NIGHTLY = Path(__file__).parents[2] / "deploy" / "nightly"


@pytest.fixture
def lab(tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    here = '$(dirname "$0")'
    python.write_text(f'#!/bin/sh\necho "$3" >> "{here}/../../asked"\n[ ! -e "{here}/slow" ] || exec sleep 60\n')
    python.chmod(0o755)
    return tmp_path


def night(lab, *until):
    day = (datetime.now() if not until else until[0]).strftime("%Y-%m-%d")
    clock = [one.strftime("%H:%M:%S") for one in until]
    return subprocess.run([NIGHTLY, lab, lab / "data", day, *clock], check=False, capture_output=True, text=True)


def asked(lab):
    return (lab / "asked").read_text().split() if (lab / "asked").exists() else []


@pytest.mark.parametrize("until", [(), (timedelta(hours=1),)])
def test_both_steps_are_asked_for(lab, until):
    assert night(lab, *(datetime.now() + one for one in until)).returncode == 0
    assert asked(lab) == ["batch", "neighbours"]


def test_no_try_begins_after_the_deadline(lab):
    done = night(lab, datetime.now() - timedelta(minutes=1))
    assert done.returncode == 124 and "past its deadline" in done.stderr and asked(lab) == []


def test_a_try_ends_at_the_deadline_however_late_it_began(lab, monkeypatch):
    (lab / ".venv" / "bin" / "slow").touch()
    clock = lab / "clock"
    clock.mkdir()
    (clock / "date").write_text('#!/bin/sh\n[ "$1" = -d ] && echo 1001 || echo 1000\n')  # a second is left
    (clock / "date").chmod(0o755)
    monkeypatch.setenv("PATH", f"{clock}:{os.environ['PATH']}")
    assert night(lab, datetime.now()).returncode == 124
    assert asked(lab) == ["batch"]
