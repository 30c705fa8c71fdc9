"""Experiments from their files: what does not fit in a file is one line that names it."""

import sys

import pytest

import experiments
from lab.errors import InputError
from lab.run import catalogue

FILE = """
from lab.spec import Experiment, ModelSpec, Poisson, Slo, Workload

EXPERIMENT = Experiment(
    id="{name}", question="?", hypothesis="!", model=ModelSpec(name="digits"), slo=Slo(latency_s=1),
    workload=Workload(arrival=Poisson(rate_rps={rate_rps}), duration_s=2), {more}
)
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes an experiment of our own and gives its name."""
    monkeypatch.setattr(catalogue, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path)])

    def write(text):
        (tmp_path / "trial.py").write_text(text)
        return "trial"

    yield write
    sys.modules.pop("experiments.trial", None)


def test_a_file_that_fits_is_an_experiment(written):
    found = catalogue.experiment(written(FILE.format(name="trial", rate_rps=3, more="repeats=2")))
    assert (found.id, found.repeats, found.workload.arrival.rate_rps) == ("trial", 2, 3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            FILE.format(name="trial", rate_rps=3, more="repeats=0"),
            "experiments/trial.py: repeats 0: allowed: a whole number from 1 to 100",
        ),
        (
            FILE.format(name="trial", rate_rps=-3, more=""),
            "experiments/trial.py: rate_rps -3: allowed: a number above 0, or null",
        ),
        (
            FILE.format(name="trial", rate_rps=3, more="factors={'model.instances': (1, 0)}"),
            "experiments/trial.py: model.instances 0: allowed: a whole number from 1 to 16",
        ),
        (
            FILE.format(name="trial", rate_rps=3, more="quick={'model.instance': 1}"),
            'experiments/trial.py: quick: model.instance: there is no such field; did you mean "instances"?',
        ),
        ("EXPERIMENT = 5", "experiments/trial.py: EXPERIMENT is of type int; allowed: lab.spec.Experiment"),
        ("", "experiments/trial.py: EXPERIMENT is of type NoneType; allowed: lab.spec.Experiment"),
    ],
)
def test_what_does_not_fit_in_a_file_is_one_line(written, text, line):
    with pytest.raises(InputError) as caught:
        catalogue.experiment(written(text))
    assert str(caught.value) == line


def test_a_name_that_is_none_is_told_with_the_nearest():
    with pytest.raises(InputError, match='"batching"'):
        catalogue.experiment("batchin")
