"""The dashboard's frame: theme, navigation and one status line. `streamlit run app.py`, or `python -m lab up`.

Owns nothing that must survive: runs are processes of their own, and pages only read what these write.
"""

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from lab.show.ui import frame, guide
from lab.show.ui.chart import serve_plotly
from lab.show.ui.words import told

st.set_page_config(page_title="Serving lab", page_icon=frame.ICON, layout="wide")
serve_plotly()
guide.read_link()


def leaf(file: str, title: str, icon: str, about: str) -> StreamlitPage:
    icon, shown = f":material/{icon}:", guide.visibility(file)
    return st.Page(f"pages/{file}.py", title=title, icon=icon, help=about, default=file == "start", visibility=shown)


page = st.navigation(
    {
        "": [leaf("start", "Start", "home", "One click, one answer")],
        "Learn": [
            leaf("batching", "Dynamic batching", "stacks", "Bet, run A against B, see why"),
            leaf("quantization", "Quantization", "compress", "Fewer bits: what they buy and what they cost"),
            leaf("kv_cache", "KV cache", "memory", "What a token costs, and what keeping it saves"),
            leaf("scheduling", "Continuous batching", "view_timeline", "Who shares a step of a language model"),
            leaf("memory", "Multi-model memory", "view_cozy", "What fits, who slows whom, and the cliff"),
            leaf("patterns", "Serving patterns", "route", "Online, streaming, batch; instances that come and go"),
            leaf("cold_start", "Cold start & serverless", "ac_unit", "From no process to an answer; scale to zero"),
            leaf("try_it", "Try it", "chat", "A prompt, and each token as it comes"),
            leaf("drills", "Interview drills", "school", "Short questions from this machine's own runs"),
        ],
        "Run": [
            leaf("live", "Live run", "monitoring", "Watch a run and change it while it runs"),
            leaf("your_server", "Your server", "lan", "Any Triton: one call with its answer, then a measurement"),
            leaf("sweep", "Sweep & tune", "tune", "The highest rate within an objective; settings worth having"),
            leaf("tail", "Slow requests", "hourglass_bottom", "Where each one's time went, and its batch-mates"),
            leaf("runs", "Runs", "list", "Every run on this machine"),
        ],
        "Decide": [
            leaf("compare", "Compare", "compare_arrows", "Two to six measurements, and whether one is really better"),
            leaf("cost", "Cost", "payments", "What an answer in time costs, at which price"),
            leaf("plan", "Plan", "query_stats", "What it would take: replicas, cost, what breaks first"),
            leaf("review", "Design review", "fact_check", "Requirements, evidence, open questions, a decision"),
            leaf("rollout", "Rollout", "alt_route", "Versions, a canary with its guard, and the switch"),
        ],
        "Set up": [
            leaf("trust", "Trust", "verified", "Self-tests, noise passport, the load generator's ceiling"),
            leaf("system", "System", "dns", "Server, models and what is missing"),
        ],
    }
)
with told():
    frame.show(page.url_path or "start")
    page.run()
