"""What a machine's figures can be trusted for: its noise passport, the load generator's ceiling, the last self-test."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from lab.measure import lamps, noise
from lab.measure.words import format_fraction, format_rate
from lab.run import gauge, passport, selftest_kept
from lab.run.folder import RunFolder
from lab.show.ui import chore, reads
from lab.show.ui.words import when

LAMPS = {"on": (":green-badge", "check"), "off": (":red-badge", "close"), "unknown": (":gray-badge", "question_mark")}


def selftest() -> None:
    """Every self-test's last outcome on this machine."""
    kept = selftest_kept.read()
    if kept is None:
        st.info("This machine, as it is now, has not tested itself.", icon=":material/info:")
        _measure("selftest", "Run the self-test (some minutes)")
        return
    tests = kept["tests"]
    passed = sum(test["passed"] is True for test in tests)
    failed = [test["id"] for test in tests if test["passed"] is False]
    said = f"{passed} of {len(tests)} pass" + (f"; {', '.join(failed)} fail" if failed else "")
    st.markdown(f"**{said}**, {when(kept['created_utc'])}, on the machine {kept['fingerprint']}.")
    words = {True: "pass", False: "FAIL", None: "n/a"}
    st.dataframe(
        pd.DataFrame(
            {
                "": [words[test["passed"]] for test in tests],
                "test": [test["id"] for test in tests],
                "what came of it": [test["text"] for test in tests],
                "tolerance": [test["tolerance"] for test in tests],
            }
        ),
        hide_index=True,
        height=36 * (len(tests) + 1),
        alt=f"The lab's self-tests on this machine: {said}",
    )


def noise_passport() -> None:
    found = passport.read()
    if found is None:
        st.info(
            "No noise passport for this machine as it is now: differences are told against their own interval alone.",
            icon=":material/info:",
        )
        _measure("passport", "Take the passport (three minutes)")
        return
    if doubt := noise.doubt(found):
        st.warning(doubt, icon=":material/warning:")
    st.markdown(f"Taken {when(found.created_utc)} on {found.model}, in blocks of {found.block_s:g} s.")
    st.dataframe(
        pd.DataFrame(noise.table(found)), hide_index=True, alt="By how much equal settings may differ on this machine"
    )


def _measure(command: str, label: str) -> None:
    """A button for what needs the machine for itself."""
    going = reads.active_runs()
    why = f"{going[0].what} is measuring; a second measurement would disturb it." if going else ""
    chore.offer(command, label, [command], disabled=why, done=reads.run_lines.clear)


def ceiling() -> None:
    """The gauge: what the load generator can send, and how much of it the last run used."""
    found = gauge.read()
    if found is None:
        st.info("Not measured on this machine yet; the self-test does, and the first long run.", icon=":material/info:")
        return
    st.markdown(f"**{format_rate(found.rate_rps)}** with one process, {when(found.created_utc)}.")
    line = next((line for line in reads.run_lines() if line.state == "done"), None)
    if line is None:
        return
    folder = RunFolder.open(line.run_id)
    asked = folder.document["cells"][0] if folder.document.get("cells") else None
    own = None if asked is None or asked["model"]["family"] == "llm" else asked["workload"]["protocol"]
    if own is None or (found := gauge.read(protocol=own)) is None:
        st.caption(f"The last run, {line.what}, is not of a kind whose ceiling was measured.")
        return
    rates = [cell["summary"].get("sent_rps") or 0.0 for cell in reads.document(folder)["cells"]]
    used = max(rates, default=0.0) / found.rate_rps
    st.progress(min(used, 1.0), text=f"The last run, {line.what}, used {format_fraction(used)} of it")
    if used > gauge.NEAR:
        st.warning("Near its ceiling a load generator measures itself.", icon=":material/warning:")


def last_lamps() -> None:
    """The cross-checks of the last run that is done."""
    line = next((line for line in reads.run_lines() if line.state == "done"), None)
    if line is None:
        st.caption("No run is done yet.")
        return
    st.caption(line.what)
    cells = reads.document(RunFolder.open(line.run_id))["cells"]
    for code, label in lamps.LABELS.items():
        found = [lamp for cell in cells for lamp in lamps.lamps(cell["summary"]) if lamp.code == code]
        worst = next((lamp for state in ("off", "on", "unknown") for lamp in found if lamp.state == state), None)
        if worst is not None:
            badge, icon = LAMPS[worst.state]
            st.markdown(f"{badge}[:material/{icon}: {label}] {worst.text}")
