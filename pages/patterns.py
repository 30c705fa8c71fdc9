"""Serving patterns: the same model online, streamed and as a batch job; instances that come and go."""

import streamlit as st

from lab.show.ui import comparison, frame, patterns

frame.with_app()
head = st.container()
comparison.page(patterns.SCALING if patterns.part() == "autoscaling" else patterns.WAYS, head)
