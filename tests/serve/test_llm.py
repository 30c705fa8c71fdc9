"""The language model behind a real Triton: streams, counts, errors and toggles (P8, T36)."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tritonclient.utils import InferenceServerException

from lab.serve.metrics import scrape
from lab.serve.models.engine import Engine, Options, run_to_end
from lab.spec import ModelSpec
from tests.serve.stream import COUNTS, Stream, ask
from tests.waiting import until

pytestmark = pytest.mark.triton

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPTS = ["one", "a second prompt", "the third of the prompts is a longer one than the others", "x" * 40]


@pytest.fixture
def loaded(triton_server, tiny_folder):
    """Loads the tiny model with other fields; the URL to ask at."""

    def load(**fields):
        triton_server.load(ModelSpec(name="tiny", family="llm", precision="fp32", weights=str(tiny_folder), **fields))
        return triton_server.grpc_url

    return load


@pytest.fixture
def alone(tiny, tiny_tokenizer):
    """What the engine itself writes, in this process: (text of each token, finish reason)."""

    def write(prompt, parameters):
        engine = Engine(tiny, tiny_tokenizer, Options(max_request_tokens=1024))
        outputs = run_to_end(engine, [engine.request("a", prompt, parameters)])["a"]
        return [output.text for output in outputs], outputs[-1].finish_reason

    return write


def engine(server, model="tiny"):
    """The engine's counters by field, None for one that it does not have."""
    rows = scrape(server, [model]).to_pylist()
    return {row["field"]: row["value"] for row in rows if row["model"] == model and row["field"].startswith("engine_")}


def test_each_token_is_a_response_and_the_end_an_empty_one(loaded, alone):
    """P8, T36: the empty final response is no token."""
    url = loaded()
    parameters = {**GREEDY, "max_tokens": 20}
    chunks = ask(url, "tiny", PROMPTS[0], parameters, **COUNTS)
    *tokens, end = chunks
    texts, reason = alone(PROMPTS[0], parameters)
    assert [chunk.text for chunk in tokens] == texts
    assert [chunk.tokens for chunk in tokens] == [1] * 20
    assert {chunk.prompt_tokens for chunk in tokens} == {3}  # the tiny tokenizer has a token a byte
    assert [chunk.finish_reason for chunk in tokens] == ["None"] * 19 + [reason]
    assert reason == "length"
    assert not any(chunk.final for chunk in tokens)
    assert end.final
    assert end.text is None


def test_outputs_that_were_not_asked_for_are_not_sent(loaded):
    chunk = ask(loaded(), "tiny", PROMPTS[0], {**GREEDY, "max_tokens": 1})[0]
    assert (chunk.tokens, chunk.prompt_tokens, chunk.finish_reason) == (None, None, None)


def test_a_whole_answer_is_one_response(loaded, alone):
    url = loaded()
    parameters = {**GREEDY, "max_tokens": 20}
    text = "".join(alone(PROMPTS[1], parameters)[0])
    for stream, flags, begins in (
        (False, {"exclude_input_in_output": True}, ""),
        (None, {}, PROMPTS[1]),  # as the vLLM backend: the prompt comes first unless excluded
    ):
        answer, end = ask(url, "tiny", PROMPTS[1], parameters, stream=stream, **flags, **COUNTS)
        assert answer.text == begins + text
        assert (answer.tokens, answer.finish_reason, end.final) == (20, "length", True)


def test_eight_at_once_get_what_each_gets_alone(loaded, alone):
    url = loaded(max_batch_size=4)  # so that some wait
    wishes = [(prompt, {**GREEDY, "max_tokens": 10 + 7 * i}) for i, prompt in enumerate(PROMPTS + PROMPTS[::-1])]
    with ThreadPoolExecutor(len(wishes)) as users:
        answers = list(users.map(lambda wish: ask(url, "tiny", *wish, **COUNTS), wishes))
    for (prompt, parameters), chunks in zip(wishes, answers, strict=True):
        assert [chunk.text for chunk in chunks[:-1]] == alone(prompt, parameters)[0]
        assert sum(chunk.tokens for chunk in chunks[:-1]) == parameters["max_tokens"]


@pytest.mark.parametrize(("interval", "sizes"), [(3, [1, 3, 3, 3]), (4, [1, 4, 4, 1]), (64, [1, 9])])
def test_a_chunk_holds_stream_interval_tokens_after_the_first(loaded, alone, interval, sizes):
    """Time to the first token is not paid for larger chunks; nothing is lost at the end."""
    parameters = {**GREEDY, "max_tokens": 10}
    *chunks, end = ask(loaded(stream_interval=interval), "tiny", PROMPTS[2], parameters, **COUNTS)
    assert [chunk.tokens for chunk in chunks] == sizes
    assert "".join(chunk.text for chunk in chunks) == "".join(alone(PROMPTS[2], parameters)[0])
    assert end.final


def test_the_cache_is_toggled_by_a_reload_and_the_text_stays(loaded, alone, triton_server):
    parameters = {**GREEDY, "max_tokens": 30}
    texts, bytes_held = [], []
    for kv_cache in (True, False, True):
        url = loaded(kv_cache=kv_cache)
        texts.append("".join(chunk.text or "" for chunk in ask(url, "tiny", PROMPTS[1], parameters)))
        bytes_held.append(engine(triton_server)["engine_cache_bytes"])
    assert texts == ["".join(alone(PROMPTS[1], parameters)[0])] * 3
    assert bytes_held == [bytes_held[0], None, bytes_held[0]]
    assert bytes_held[0] > 0


def test_an_answer_under_way_survives_the_toggle(loaded, alone):
    """Triton keeps the engine before until its answers are sent."""
    parameters = {**GREEDY, "max_tokens": 100}
    under_way = iter(Stream(loaded(), "tiny", PROMPTS[0], parameters))
    first = next(under_way)
    loaded(scheduler="static")
    rest = list(under_way)
    assert "".join(chunk.text or "" for chunk in (first, *rest)) == "".join(alone(PROMPTS[0], parameters)[0])


# --- wrong requests -------------------------------------------------------------------------------------------------

WRONG = [
    ("", {}, {}, "prompt is empty; allowed: one token or more"),
    ("abc", {"max_tokens": 0}, {}, "max_tokens 0: allowed is an integer from 1"),
    ("abc", {"max_tokens": 126}, {}, "prompt of 3 tokens and max_tokens 126 make 129; allowed: 128 together"),
    ("a" * 128, {"max_tokens": 1}, {}, "prompt of 128 tokens and max_tokens 1 make 129; allowed: 128 together"),
    ("abc", {"max_token": 5}, {}, "unknown sampling parameter 'max_token'; did you mean \"max_tokens\"?"),
    ("abc", {"temperature": -1}, {}, "temperature -1: allowed is 0 (greedy) to 100"),
    (b"ab\xff", {}, {}, "text_input is not UTF-8: byte 2 is 0xff"),
    ("abc", b'{"max_tokens": \xff}', {}, "sampling_parameters is not UTF-8: byte 15 is 0xff"),
    ("abc", b"max_tokens=5", {}, "sampling_parameters is not JSON"),
    ("abc", b"[5]", {}, "sampling_parameters [5]: allowed is a JSON object"),
    ("abc", {}, {"exclude_input_in_output": False}, "exclude_input_in_output false with stream true"),
]


def test_a_wrong_request_is_told_why_and_no_other_is_touched(loaded, alone):
    url = loaded()
    parameters = {**GREEDY, "max_tokens": 100}
    beside = iter(Stream(url, "tiny", PROMPTS[0], parameters))
    texts = [next(beside).text]
    for prompt, given, flags, why in WRONG:
        with pytest.raises(InferenceServerException) as told:
            ask(url, "tiny", prompt, given, **flags)
        assert why in told.value.message()
        assert "\n" not in told.value.message()
    texts += [chunk.text for chunk in beside if not chunk.final]
    assert texts == alone(PROMPTS[0], parameters)[0]


def post(server, how, **fields):
    """The text of the answer to one request at Triton's HTTP endpoint."""
    with closing(http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=60)) as connection:
        connection.request("POST", f"/v2/models/tiny/{how}", json.dumps(fields))
        return connection.getresponse().read().decode()


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
def test_a_wrong_request_by_http_is_told_why(loaded, triton_server, how):
    loaded()
    told = post(triton_server, how, text_input="abc", sampling_parameters='{"max_tokens": 0}')
    assert "max_tokens 0: allowed is an integer from 1" in told


def test_parameters_may_come_as_fields_of_an_http_request(loaded, triton_server, alone):
    """As clients of the vLLM backend send them: what is no input of the model is a parameter of the request."""
    loaded()
    parameters = {**GREEDY, "max_tokens": 12}
    told = post(triton_server, "generate", text_input=PROMPTS[0], exclude_input_in_output=True, parameters=parameters)
    assert json.loads(told)["text_output"] == "".join(alone(PROMPTS[0], parameters)[0])


# --- what the engine tells ------------------------------------------------------------------------------------------


def test_the_engines_counters_move_and_begin_anew_with_a_reload(loaded, triton_server):
    url = loaded(max_batch_size=2, max_request_tokens=100)
    before = engine(triton_server)
    assert (before["engine_steps"], before["engine_output_tokens"]) == (0, 0)
    assert before["engine_cache_tokens_total"] == 200
    ask(url, "tiny", "abcde", {**GREEDY, "max_tokens": 9})
    until(lambda: engine(triton_server)["engine_output_tokens"] == 9)
    after = engine(triton_server)
    assert after["engine_prefill_tokens"] == 5
    assert after["engine_steps"] >= 9
    assert after["engine_decode_seconds"] > 0
    assert after["engine_prefill_seconds"] > 0
    assert (after["engine_running"], after["engine_waiting"], after["engine_cache_tokens_used"]) == (0, 0, 0)
    loaded(max_batch_size=2, max_request_tokens=100)
    assert engine(triton_server)["engine_output_tokens"] == 0


def test_an_unloaded_models_counters_are_gone(loaded, triton_server):
    loaded()
    assert engine(triton_server)["engine_steps"] == 0
    triton_server.unload("tiny")
    assert engine(triton_server) == {}
