"""Truth: an adapter and a base of the same shape, and the names that their files have for the base."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.errors import InputError
from lab.run import formats
from lab.serve import adapters
from lab.spec import ClosedLoop, Experiment, ModelSpec, Slo, Workload
from tests.serve.lora import save_lora

OURS = "acme/tiny-llama"


@pytest.fixture
def base(tiny_folder: Path, tmp_path: Path) -> Path:
    """The tiny Llama, saved from the hub's OURS."""
    place = tmp_path / "base"
    place.mkdir()
    for file in tiny_folder.iterdir():
        (place / file.name).symlink_to(file)
    (place / "config.json").unlink()
    config = json.loads((tiny_folder / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "_name_or_path": OURS}))
    return place


def spec(base: Path, tmp_path: Path, theirs: str | None) -> ModelSpec:
    named = {} if theirs is None else {"base_model_name_or_path": theirs}
    place = save_lora(tmp_path / "adapter", base, **named)
    return ModelSpec(name="tiny", family="llm", weights=str(base), adapters=(f"mine={place}",))


@pytest.mark.parametrize("theirs", [OURS, "others/Tiny-Llama", "/home/me/tiny-llama", "", None])
def test_the_same_base_by_whatever_copy_is_served_without_a_word(base: Path, tmp_path: Path, theirs: str) -> None:
    adapters.check(spec(base, tmp_path, theirs))
    assert adapters.doubts(spec(base, tmp_path, theirs)) == []


def test_another_base_of_the_same_shape_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"mine: .* was trained on acme/other-llama, and the base is {OURS}; allowed"):
        adapters.check(spec(base, tmp_path, "acme/other-llama"))


def test_where_the_name_is_only_a_path_it_is_a_doubt(base: Path, tmp_path: Path) -> None:
    asked = spec(base, tmp_path, "/home/me/checkpoints/17")
    adapters.check(asked)
    (doubt,) = adapters.doubts(asked)
    assert doubt.startswith(f"Adapter mine was trained on /home/me/checkpoints/17, and the base is {OURS}: whether")


def test_a_base_without_a_name_of_its_own_leaves_it_in_doubt(tiny_folder: Path, tmp_path: Path) -> None:
    asked = spec(tiny_folder, tmp_path, "acme/other-llama")
    adapters.check(asked)
    (doubt,) = adapters.doubts(asked)
    assert f"the base is {tiny_folder}" in doubt


def test_a_run_notes_the_doubt_and_teaches_nothing_that_is_the_user_s(base: Path, tmp_path: Path) -> None:
    events: list[tuple[str, dict[str, Any]]] = []

    class Folder:
        def event(self, kind: str, **fields: object) -> None:
            events.append((kind, fields))

    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1)
    model = spec(base, tmp_path, "/home/me/checkpoints/17")
    asked = Experiment(id="mine", question="?", hypothesis="!", model=model, workload=workload, slo=Slo(latency_s=1))
    said: list[str] = []
    formats.prepare(Folder(), asked, said.append)
    assert said == []
    assert [fields["text"][:12] for kind, fields in events if kind == "problem"] == ["Adapter mine"]
