"""What a machine's figures can be trusted for: its noise passport, the load generator's ceiling, the last self-test."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from lab.measure import lamps, noise
from lab.measure.words import format_count, format_fraction, format_rate
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
        height="content",
        column_config={"what came of it": st.column_config.Column(width="large")},
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
    """The gauge: what the load generator can send and read, and how much of it the last run used."""
    kept = gauge.kept()
    if not kept:
        st.info("Not measured on this machine yet; the self-test does, and the first long run.", icon=":material/info:")
        return
    for each in kept:
        does = f"read of streams over {each.protocol}" if each.streamed else f"sent over {each.protocol}"
        by = "one process" if each.workers == 1 else f"{each.workers} processes"
        st.markdown(f"**{_rate(each)}** {does} by {by}, {when(each.created_utc)}.")
    line = next((line for line in reads.run_lines() if line.state == "done"), None)
    if line is None:
        return
    folder = RunFolder.open(line.run_id)
    asked = folder.document["cells"][0] if folder.document.get("cells") else None
    found = None
    if asked is not None:
        streamed = asked["model"]["family"] == "llm"
        found = gauge.read(protocol=asked["workload"]["protocol"], streamed=streamed)
    if found is None:
        st.caption(f"The last run, {line.what}, is not of a kind whose ceiling was measured.")
        return
    # A chunk holds a token or more, so there were no more chunks than tokens.
    metric, bound = ("output_tokens_per_s", "at most ") if found.streamed else ("sent_rps", "")
    rates = [cell["summary"].get(metric) or 0.0 for cell in reads.document(folder)["cells"]]
    used = max(rates, default=0.0) / found.rate_rps
    share = f"{bound}{format_fraction(used)} of the {_rate(found)}"
    st.progress(min(used, 1.0), text=f"The last run, {line.what}, used {share}")
    if used > gauge.NEAR:
        st.warning("Near its ceiling a load generator measures itself.", icon=":material/warning:")


def _rate(found: gauge.Ceiling) -> str:
    return f"{format_count(found.rate_rps)} chunks/s" if found.streamed else format_rate(found.rate_rps)


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
