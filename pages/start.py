"""Start: one button, what is ready, what goes on, what ran last."""

import streamlit as st

from lab.show.ui import cassettes, frame, guide, listing, reads, runs, teaser

frame.with_app()
st.title("What does dynamic batching buy on this machine?")
st.markdown(
    "One click measures it: the same requests meet the same model on a real Triton server, with batching off and with "
    "four queue delays, at a light, a heavy and a too heavy load. It takes about a minute and a half, and you watch it "
    "as it happens."
)

going = reads.active_runs()
if going:
    first = going[0]
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(f"**A run goes on:** {first.what}")
        st.page_link(
            "pages/live.py", label="Watch it", icon=":material/monitoring:", query_params={"run": first.run_id}
        )

action, note = st.columns([2, 3], vertical_alignment="center")
pressed = action.button(
    "Run the batching experiment",
    type="primary",
    icon=":material/play_arrow:",
    key="start",
    disabled=bool(going),
    width="stretch",
)
note.caption(
    "One run measures at a time: two would measure each other. Watch the one above, or stop it first."
    if going
    else "A quick run: its figures are rough and say so. The whole experiment starts from Dynamic batching."
)
if pressed:
    runs.start("batching", [], quick=True, page="pages/live.py", then="batching")

teaser.newest_verdict()

st.subheader("Other questions")
questions = (
    ("pages/quantization.py", "What do 4 and 8 bits buy, and cost?", ":material/compress:"),
    ("pages/kv_cache.py", "What does the KV cache buy a language model?", ":material/memory:"),
    ("pages/scheduling.py", "One, static or continuous batching?", ":material/view_timeline:"),
    ("pages/memory.py", "How many models fit, and who waits for the next?", ":material/view_cozy:"),
    ("pages/try_it.py", "Watch a language model write, token by token", ":material/chat:"),
)
halves = st.columns(2)
for n, (page, question, icon) in enumerate(questions):
    halves[n % 2].page_link(page, label=question, icon=icon)

way, played = st.columns([3, 2], gap="large")
with way:
    st.subheader("Tracks")
    guide.chooser()
with played:
    st.subheader("Without a server")
    cassettes.player()

ready, recent = st.columns([2, 3], gap="large")
with ready:
    st.subheader("Ready?")
    listing.readiness()
with recent:
    st.subheader("Last runs")
    listing.recent(5)
