"""The parts of the page Your server: which one, which model, what to send, one call, and the measurement."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from lab import credentials
from lab.errors import InputError
from lab.home import home
from lab.load import prompt_file
from lab.run import call, engines, given
from lab.run.lock import who_measures
from lab.run.serving import at
from lab.serve.address import address as parse_address
from lab.serve.described import Described, Tensor, describe
from lab.serve.triton import Server
from lab.show.ui import runs
from lab.spec import Batching

KEEP, OFF, ON = "as it is", "off", "on"


def address() -> str | None:
    """The server's URL; None until it is given, or while nobody answers there."""
    url = st.text_input(
        "Address",
        key="g_url",
        bind="query-params",
        on_change=_meant,
        placeholder="grpc://127.0.0.1:8001, http://127.0.0.1:8000, or openai+http://127.0.0.1:8100",
        help="A Triton's gRPC or HTTP port, or a server of the OpenAI protocol (with /v1/chat/completions behind it as "
        "a chat). TorchServe is measured from a terminal: `python -m lab load --url torchserve+http://HOST:PORT`",
    ).strip()
    if not url:
        st.info(
            "Nothing is sent before you press a button, but for the question which models there are.",
            icon=":material/info:",
        )
        return None
    if not parse_address(url).speaks_triton and not speaks_openai(url):
        raise InputError(
            f"url {url!r}: this page asks Triton and servers of the OpenAI protocol; allowed: grpc://HOST:PORT, "
            "http://HOST:PORT or openai+http://HOST:PORT"
        )
    if url != st.session_state.get("g_meant"):
        key = " and the key of your environment goes with it" if speaks_openai(url) and credentials.headers() else ""
        st.info(f"This address came with a link. It is asked once you say so{key}.", icon=":material/link:")
        st.button("Ask this server", key="g_ask", on_click=_meant, icon=":material/dns:")
        return None
    return url


def _meant() -> None:
    """The address as it stands is one that the user wrote or agreed to: a link alone sends nothing anywhere."""
    st.session_state["g_meant"] = st.session_state["g_url"].strip()


def speaks_openai(url: str) -> bool:
    return parse_address(url).scheme.startswith("openai")


@st.cache_data(ttl=10.0, show_spinner="Asking the server")
def _models(url: str) -> dict[str, str]:
    """Why each model is not ready, "" for one that is."""
    with at(url) as server:
        return {state.name: "" if state.ready else state.reason or "not ready" for state in server.states()}


@st.cache_data(ttl=10.0, show_spinner=False)
def _described(url: str, name: str) -> Described:
    with Server.at(url) as server:
        return describe(server, name)


def model(url: str) -> Described | None:
    """What the server says of the chosen model."""
    found = _models(url)
    ready = [name for name, reason in found.items() if not reason]
    for name, reason in found.items():
        if reason:
            st.caption(f"{name} cannot be asked: {reason}")
    if not ready:
        st.warning("This server has no model that is ready.", icon=":material/warning:")
        return None
    name = st.selectbox("Model", ready, key="g_model", bind="query-params")
    described = _described(url, name)
    facts = described.lines()[:-2]
    st.markdown("  \n".join(facts))
    rows = [("takes", t) for t in described.inputs] + [("gives", t) for t in described.outputs]
    st.dataframe(
        pd.DataFrame(
            {
                "": [what for what, _ in rows],
                "tensor": [t.name for _, t in rows],
                "datatype": [t.datatype for _, t in rows],
                "shape": [_dims(t) for _, t in rows],
                "optional": ["yes" if t.optional else "" for _, t in rows],
            }
        ),
        hide_index=True,
        alt=f"Inputs and outputs of {name} as its server describes them",
    )
    return described


def _dims(tensor: Tensor) -> str:
    dims = ["any" if d < 0 else str(d) for d in tensor.dims]
    return " × ".join(["batch", *dims] if tensor.has_batch else dims)


def inputs(described: Described) -> given.Wishes:
    """What the user adds: open dimensions, a file, a batch, optional inputs."""
    st.subheader("What to send")
    file = st.file_uploader("Values from a JSON file (else they are drawn)", "json", key="g_file")
    data = None if file is None else _kept(file.getvalue(), "json")
    shapes = {}
    open_ones = [t for t in described.inputs if -1 in t.dims and not t.optional]
    if open_ones and data is None:
        for tensor, column in zip(open_ones, st.columns(min(len(open_ones), 4)) * len(open_ones), strict=False):
            text = column.text_input(
                f"Shape of {tensor.name}",
                key=f"g_shape_{tensor.name}",
                placeholder=",".join("N" if d < 0 else str(d) for d in tensor.dims),
                help="No server says how long “any” is: you know your users' requests.",
            )
            if text:
                shapes[tensor.name] = _numbers(tensor.name, text)
    optional = [t.name for t in described.inputs if t.optional]
    batch, wanted, length = st.columns(3)
    most = max(described.max_batch_size, 1)
    items = batch.number_input("Items a request", 1, most, 1, key="g_batch", disabled=most == 1)
    chosen = wanted.multiselect("Optional inputs to send", optional, key="g_optional") if optional else []
    steps = None
    if described.sequences:
        steps = length.number_input("Requests of a sequence", 1, 10_000, given.SEQUENCE_LENGTH, key="g_steps")
    return given.Wishes(shapes=shapes, data=data, batch=items, optional=tuple(chosen), sequence_length=steps)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("×", ",").split(","))
    except ValueError:
        raise InputError(f"shape of {name} {text!r}: allowed are whole numbers with commas, such as 1,128") from None


def _kept(content: bytes, kind: str) -> str:
    """The uploaded file on disk, where the run's process finds it."""
    folder = home() / "data"
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
    if not path.exists():
        path.write_bytes(content)
    return str(path)


def preview(url: str, described: Described, wishes: given.Wishes) -> None:
    """One call and its answer, on the button."""
    asked = given.given_of(described, wishes)  # what is unknown is said here, before there is a button
    for note in given.notes(described, wishes, asked):
        st.caption(f":material/info: {note}")
    if not st.button("Send one request", key="g_call", icon=":material/send:"):
        return
    over_http = parse_address(url).scheme == "http"
    with st.spinner("One request is on its way"), Server.at(url) as server:
        request = given.first_request(asked)
        found = call.call(server, described.name, request, over_http=over_http, decoupled=described.decoupled)
        unread = call.unread(server, described.name, request)
    rows = [("sent", t) for t in found.sent] + [("got", t) for t in found.got]
    st.dataframe(
        pd.DataFrame(
            {
                "": [what for what, _ in rows],
                "tensor": [t.name for _, t in rows],
                "datatype": [t.datatype for _, t in rows],
                "shape": [" × ".join(map(str, t.shape)) for _, t in rows],
                "values": [t.values for _, t in rows],
            }
        ),
        hide_index=True,
        alt="The request that was sent and the answer that came",
    )
    st.caption(found.lines()[-1])
    for said in unread:
        st.warning(said, icon=":material/content_cut:")


def language_model(url: str) -> None:
    """A model behind the OpenAI protocol: which one, prompts and answers, and the measurement."""
    names = sorted(_models(url))
    if not names:
        st.warning("This server lists no model.", icon=":material/warning:")
        return
    name = st.selectbox("Model", names, key="g_model", bind="query-params")
    st.subheader("What to send")
    file = st.file_uploader(
        "Prompts from a file (else they are prose of a set length, no two alike)", ["jsonl", "json", "txt"], key="g_own"
    )
    more: list[str] = []
    path = None
    if file is not None:
        path = _kept(file.getvalue(), file.name.rpartition(".")[2].lower())
        st.caption(f":material/info: {prompt_file.told(len(prompt_file.read(Path(path))))}")
        more = [f"--prompts={path}"]
    prompt, answer, ttft, itl = st.columns(4, vertical_alignment="bottom")
    asked = prompt.number_input("Tokens of a prompt", 1, 100_000, 64, key="g_prompt", disabled=file is not None)
    length = answer.number_input("Tokens of an answer", 1, 100_000, 64, key="g_answer")
    first = ttft.number_input("First token within, ms", 1.0, 600_000.0, 1000.0, key="g_ttft")
    each = itl.number_input("Each further one within, ms", 0.1, 60_000.0, 100.0, key="g_itl")
    more += [f"--prompt-tokens={asked}"] if file is None else []
    more += [f"--output-tokens={length}", f"--ttft={first:g}", f"--itl={each:g}"]
    if st.button("Send one prompt", key="g_call", icon=":material/send:"):
        with st.spinner("One prompt is on its way"):
            said, text, seconds = engines.one_answer(url, name, prompts=path)
        st.markdown("**Sent**")
        st.text(said)
        st.markdown("**Got**")
        st.text(text or "nothing")
        st.caption(f"after {1e3 * seconds:.1f} ms, a first call on a new connection")
    st.subheader("Measure")
    with st.container(border=True):
        load = _load(*st.columns(3, vertical_alignment="bottom"))
        arguments = ["--url", url, "--model", name, *load, *more]
        go = _button()
    _begin(arguments, go)


def measure(url: str, described: Described, wishes: given.Wishes) -> None:
    """The load, and the button that starts it as a run of its own."""
    st.subheader("Measure")
    with st.container(border=True):
        *columns, batching = st.columns(4, vertical_alignment="bottom")
        load = _load(*columns)
        can_batch = described.max_batch_size > 0 and not described.sequences
        choice = batching.selectbox(
            "Batching",
            [KEEP, OFF, ON] if can_batch else [KEEP],
            key="g_batching",
            help="Off or on reloads the model on that server for this run, and puts it back afterwards.",
        )
        if choice != KEEP:
            st.warning(
                f"This reloads {described.name} on a server that others may use. It is put back when the run ends, "
                "also when the run is stopped or killed.",
                icon=":material/warning:",
            )
        arguments = ["--url", url, "--model", described.name, *load, *_options(wishes)]
        if choice == OFF:
            arguments += ["--batching", "off"]
        elif choice == ON:
            on = described.batching or Batching(max_batch_size=described.max_batch_size)
            arguments += ["--batching", json.dumps(on.model_dump(exclude_unset=True))]
        go = _button()
    _begin(arguments, go)


def _load(kind: DeltaGenerator, size: DeltaGenerator, seconds: DeltaGenerator) -> list[str]:
    """The load and how long it lasts, as the command line has them."""
    loop = kind.selectbox(
        "Load", ["requests a second", "requests in flight"], key="g_loop", help="Users who come, or who wait"
    )
    if loop == "requests a second":
        load = ["--rate", f"{size.number_input('How many', 0.1, 100_000.0, 50.0, key='g_rate'):g}"]
    else:
        load = ["--concurrency", str(size.number_input("How many", 1, 4096, 8, key="g_users"))]
    duration = seconds.number_input("Seconds", 2.0, 86_400.0, 20.0, key="g_seconds")
    return [*load, "--duration", f"{duration:g}"]


def _button() -> bool:
    holder = who_measures()
    go = st.button("Measure", type="primary", key="g_go", icon=":material/play_arrow:", disabled=holder is not None)
    if holder is not None:
        st.caption(f"{holder} measures now; one run measures at a time.")
    return go


def _begin(arguments: list[str], go: bool) -> None:
    with st.expander("The same in a terminal", icon=":material/terminal:", type="compact"):
        st.code(f"python -m lab load {shlex.join(arguments)}", language=None, wrap_lines=True)
    if go:
        runs.start_command("load", arguments, page="pages/live.py")


def _options(wishes: given.Wishes) -> list[str]:
    """The wishes as the command line has them."""
    found = [f"--shape={name}:{','.join(map(str, dims))}" for name, dims in wishes.shapes.items()]
    found += [f"--with={name}" for name in wishes.optional]
    found += [] if wishes.data is None else [f"--data={wishes.data}"]
    found += [f"--batch={wishes.batch}"] if wishes.batch != 1 else []
    found += [] if wishes.sequence_length is None else [f"--sequence-length={wishes.sequence_length}"]
    return found
