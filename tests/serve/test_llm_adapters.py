"""Adapters behind a real Triton: named by requests, changed while the model serves, refused by name."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from lab.__main__ import main
from lab.errors import InputError, ModelError
from lab.serve import adapters, loaded_adapters
from lab.serve.metrics import scrape
from lab.serve.models.engine import Engine, Options, run_to_end
from lab.spec import ModelSpec, set_path
from tests.serve.lora import save_lora
from tests.serve.stream import Stream, ask
from tests.waiting import until

pytestmark = pytest.mark.triton

GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}


@pytest.fixture
def places(tiny_folder, tmp_path):
    return {name: save_lora(tmp_path / name, tiny_folder, seed=n) for n, name in enumerate("abc")}


@pytest.fixture
def alone(tiny, tiny_tokenizer, places):
    """What the engine itself writes, in this process, by an adapter or by the base."""

    def write(prompt, name=None):
        engine = Engine(tiny, tiny_tokenizer, Options(max_request_tokens=1024))
        if name is not None:
            engine.adapters.load(name, places[name])
        wish = GREEDY if name is None else {**GREEDY, "lora_name": name}
        return "".join(output.text for output in run_to_end(engine, [engine.request("a", prompt, wish)])["a"])

    return write


def test_adapters_come_and_go_while_the_model_serves(triton_server, tiny_folder, places, alone, capsys):
    entries = {name: f"{name}={folder}" for name, folder in places.items()}
    spec = ModelSpec(name="tiny", family="llm", precision="fp32", weights=str(tiny_folder), adapters=(entries["a"],))
    triton_server.load(spec)
    url = triton_server.grpc_url

    def answer(name):
        wish = GREEDY if name is None else {**GREEDY, "lora_name": name}
        return "".join(chunk.text or "" for chunk in ask(url, "tiny", "how are you", wish))

    def engine():
        rows = scrape(triton_server, ["tiny"]).to_pylist()
        return {row["field"]: row["value"] for row in rows if row["model"] == "tiny"}

    assert answer("a") == alone("how are you", "a") != answer(None) == alone("how are you")
    with pytest.raises(InferenceServerException, match=r"lora_name 'b': no such adapter is loaded; allowed: a$"):
        answer("b")
    processes = engine()["engine_weight_bytes"]

    # Two more come, and eight requests of four kinds share the batch.
    told = loaded_adapters.change(triton_server, "tiny", [entries["b"], entries["c"]], [])
    assert loaded_adapters.of(triton_server, "tiny") == places
    assert set(told["loaded"]) == {"b", "c"}
    assert told["unloaded"] == []
    wishes = [None, "a", "b", "c", "c", "b", "a", None]
    with ThreadPoolExecutor(len(wishes)) as users:
        assert list(users.map(answer, wishes)) == [alone("how are you", name) for name in wishes]
    held = sum(told["loaded"].values()) * 3 / 2
    until(lambda: engine()["engine_adapter_bytes"] == held and engine()["engine_adapters"] == 3)
    assert engine()["engine_weight_bytes"] == processes

    # One goes while it answers: that answer is whole, and nobody else gets one of it.
    under_way = iter(Stream(url, "tiny", "how are you", {**GREEDY, "max_tokens": 110, "lora_name": "c"}))
    next(under_way)
    with ThreadPoolExecutor(1) as desk:
        leaving = desk.submit(loaded_adapters.change, triton_server, "tiny", [], ["c"])
        until(lambda: refused(answer, "c"))
        assert sum(chunk.tokens or 1 for chunk in under_way if chunk.text is not None) > 0
        assert leaving.result(60)["unloaded"] == ["c"]
    assert answer("b") == alone("how are you", "b")
    with pytest.raises(InputError, match=r"--unload c: tiny has no such adapter.*; allowed: a, b$"):
        loaded_adapters.change(triton_server, "tiny", [], ["c"])
    assert main(["adapters", "tiny", "--unload", "b"]) == 0
    assert capsys.readouterr().out == "b: unloaded\ntiny has a\n"


def refused(answer, name):
    try:
        answer(name)
    except InferenceServerException as error:
        return f"lora_name '{name}': no such adapter is loaded" in str(error)
    return False


def test_what_cannot_be_served_is_refused_and_the_rest_stays(triton_server, tiny_folder, places, alone):
    entry = f"a={places['a']}"
    spec = ModelSpec(name="tiny", family="llm", precision="fp32", weights=str(tiny_folder), adapters=(entry,))
    broken = json.loads((places["b"] / "adapter_config.json").read_text())
    (places["b"] / "adapter_config.json").write_text(json.dumps({**broken, "r": 0}))
    wrong = set_path(spec, "adapters", [entry, f"b={places['b']}"])
    with pytest.raises(InputError, match=r"model.adapters b: adapter .*: r 0; allowed: a whole number from 1"):
        triton_server.load(wrong)
    triton_server.load(spec)
    with pytest.raises(InputError, match=r"model.adapters b: adapter .*: r 0"):
        adapters.update(triton_server, wrong)
    # Whoever writes the file by hand, past the lab's own check, is told by the model.
    version = Path(triton_server.managed.repository) / "tiny" / "1"
    (version / adapters.FILE).write_text(json.dumps({"a": str(places["a"]), "b": str(places["b"])}))
    with pytest.raises(ModelError, match=r"b: adapter .*: r 0; allowed"):
        adapters.ask_update(triton_server, "tiny")
    chunks = ask(triton_server.grpc_url, "tiny", "how are you", {**GREEDY, "lora_name": "a"})
    assert "".join(chunk.text or "" for chunk in chunks) == alone("how are you", "a")
    with pytest.raises(InferenceServerException, match="update_loras with other parameters"):
        ask(triton_server.grpc_url, "tiny", "x", {"update_loras": True, "max_tokens": 3})
