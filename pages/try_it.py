"""Try it: one prompt, its answer as it comes, and when each of its tokens came."""

import streamlit as st

from lab.show.ui import frame, trying

frame.with_app()
st.title("Watch a model write")
left, right = st.columns(2, gap="large")
with left.container(border=True):
    st.subheader("Ask")
    asked = trying.ask()
with right.container(border=True):
    st.subheader("Answer")
    if asked is not None:
        trying.write(asked)
    answer = trying.last_answer()
    if answer is None:
        st.caption("Each token appears here the moment it comes.")
    else:
        trying.read(answer)
if answer is not None:
    st.subheader("When each token came")
    trying.figures(answer)
