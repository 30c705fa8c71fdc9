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
teaser.other_questions()

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
