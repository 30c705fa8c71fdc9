"""The language model behind a real Triton: streams, counts, errors and toggles (P8, T36)."""

import pytest
from tritonclient.utils import InferenceServerException

from lab.serve.models.engine import Engine, Options, run_to_end
from lab.spec import ModelSpec
from tests.serve.stream import COUNTS, ask

pytestmark = pytest.mark.triton

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPTS = ["one", "a second prompt", "the third of the prompts is a longer one than the others", "x" * 40]


@pytest.fixture
def loaded(triton_server, tiny_folder):
    """Loads the tiny model with other fields; the URL to ask at. Its name is its own, and it is gone afterwards."""

    def load(**fields):
        triton_server.load(ModelSpec(name="tiny", family="llm", precision="fp32", weights=str(tiny_folder), **fields))
        return triton_server.grpc_url

    yield load
    triton_server.unload("tiny")


@pytest.fixture
def alone(tiny, tiny_tokenizer):
    """What the engine itself writes, in this process: (text of each token, finish reason)."""

    def write(prompt, parameters):
        engine = Engine(tiny, tiny_tokenizer, Options(max_request_tokens=1024))
        outputs = run_to_end(engine, [engine.request("a", prompt, parameters)])["a"]
        return [output.text for output in outputs], outputs[-1].finish_reason

    return write


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


def test_a_bad_request_is_its_own_error(loaded):
    with pytest.raises(InferenceServerException, match="prompt is empty; allowed: one token or more"):
        ask(loaded(), "tiny", "")
