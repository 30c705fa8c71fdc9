"""Truth: a server that compiles what is not kept, and counts its loads."""

import pytest

from lab.serve import compiled, installation, python_env
from lab.serve.models import compiled_before
from lab.spec import ModelSpec

LLM = ModelSpec(name="llm")


class Stub:
    def __init__(self, kept, compiles):
        self.kept, self.compiles, self.log = kept, compiles, []

    def load(self, spec):
        self.log.append("load")
        if self.compiles and not (self.kept / "forward.nbc").exists():
            self.kept.mkdir(exist_ok=True)
            (self.kept / "forward.nbc").write_bytes(b"code")
        return float(len(self.log))

    def unload(self, name):
        self.log.append(f"unload {name}")


@pytest.mark.parametrize(
    ("compiles", "log"), [(True, ["load", "unload llm", "load"]), (False, ["load"])], ids=["compiled", "as before"]
)
def test_a_load_that_compiled_is_followed_by_one_that_did_not(tmp_path, monkeypatch, compiles, log):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    server = Stub(tmp_path / "numba", compiles)
    assert compiled.load(server, LLM) == len(log)
    assert server.log == log
    server.log.clear()
    assert compiled.load(server, LLM) == 1  # now there is nothing to compile
    assert server.log == ["load"]


@pytest.mark.parametrize("home", ["own", None])
def test_what_triton_compiles_is_looked_for_where_triton_keeps_it(tmp_path, monkeypatch, home):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(python_env, "prepare", lambda: tmp_path)
    if home is None:
        monkeypatch.delenv("LAB_HOME")
    else:
        monkeypatch.setenv("LAB_HOME", str(tmp_path / home))
    assert installation.environment()["NUMBA_CACHE_DIR"] == str(compiled_before.folder())
