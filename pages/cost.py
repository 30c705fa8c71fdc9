"""Cost: what a run's answers cost at a price, at the objective; and the prices, each with its source and date."""

import streamlit as st

from lab.show.ui import costing, frame, picking, pricing

frame.with_app()
st.title("What does a good answer cost?")
folder = picking.run("Run", "x_run")
if folder is None:
    st.info("Nothing was measured yet. A cost is a price divided by what a run served.", icon=":material/info:")
    st.page_link("pages/start.py", label="Go to Start", icon=":material/home:")
else:
    experiment = folder.document["experiment"]
    price = pricing.choose(folder.document["environment"], experiment["model"].get("device", "cpu"))
    use = costing.use_form(price)
    costing.of_run(folder, price, use, costing.objective(folder))
st.subheader("Prices")
costing.editor()
