"""Multi-model memory: what fits on one device, who slows whom, where swapping ruins it; fine-tunes."""

import streamlit as st

from lab.show.ui import comparison, fleet, frame, lora
from lab.show.ui.topic import Link, Topic


def try_next(model: str) -> list[Link]:
    return [
        Link(
            "pages/memory.py",
            "Ask all models alike: does the cliff move?",
            ":material/view_cozy:",
            (("m_zipf", "0.0"),),
        ),
        Link("pages/system.py", "See which models Triton holds now", ":material/dns:"),
    ]


MANY = Topic(
    experiment="multi_model",
    page="pages/memory.py",
    prefix="m",
    title="How many models does one device hold?",
    bet=(
        "Four models fit; then users also ask a fifth, now and then. How many requests will be served, compared to "
        "four models?"
    ),
    counted="Requests served",
    form=fleet.form,
    foresight=fleet.foresight,
    depths="quick: about two minutes, rough. whole: about 15 minutes, two repeats, up to ten models.",
    figures={
        "throughput_rps": "Requests a second",
        "latency_p50_s": "p50 latency",
        "latency_p99_s": "p99 latency",
        "error_fraction": "Failed",
    },
    happened=fleet.happened,
    cause=fleet.cause,
    why=fleet.why,
    meanwhile=fleet.meanwhile,
    compared=("throughput_rps", "latency_p50_s"),
    next=try_next,
)

frame.with_app()
head = st.container()
comparison.page(lora.TOPIC if lora.part() == "lora" else MANY, head)
