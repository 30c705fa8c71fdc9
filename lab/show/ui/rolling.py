"""The page Rollout: where a name's traffic goes, what the guard sees, and the moves a person may make.

Reads files only (routes, the guard's last look, the audit log), so it needs no gateway and slows none. What is
registered is in registering.py, what can be rehearsed in rehearsing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from lab.errors import LabError
from lab.show.charts import rollout as charts
from lab.show.ui import chart, gatekeeping, registering, rehearsing
from lab.show.ui.cards import Card, cards
from lab.show.ui.words import when
from lab.track import readiness, rollout
from lab.track.routes import Routes, last_look
from lab.track.routing import Route

TICK_S = 2.0
MOVES = {
    "advance": ("Next step", "skip_next"),
    "hold": ("Hold", "pause"),
    "go_on": ("Go on", "play_arrow"),
    "promote": ("Promote", "check"),
    "roll_back": ("Roll back", "undo"),
}
STATES = {
    "going": "is under way",
    "held": "is held by hand",
    "promoted": "was promoted",
    "rolled_back": "was rolled back",
}


def page() -> None:
    st.title("Is the new version good enough to take over?")
    routes = Routes()
    part = rehearsing.part(routed=bool(routes.by_name))
    if part != rehearsing.LIVE:
        rehearsing.show(part)
        return
    if not routes.by_name:
        st.markdown(
            "Nothing is routed yet. A gateway puts versions of a model behind one name and moves traffic between them; "
            "the other two parts show how that goes, with users and faults made up."
        )
        gatekeeping.starter(routes)
        registering.section(None, None)
        return
    if (url := routes.gateway()) is None:
        st.info("No gateway runs: the routes stand, and nobody follows them.", icon=":material/power_off:")
        gatekeeping.starter(routes)
    else:
        gatekeeping.standing(url)
    names = list(routes.by_name)
    model = st.selectbox("Served name", names, key="o_model", bind="query-params") if len(names) > 1 else names[0]
    going = _is_going(routes.by_name[model])

    @st.fragment(run_every=TICK_S if going else None, key="o_live")
    def live() -> None:
        routes.refresh()
        route = routes.by_name.get(model)
        if route is None or _is_going(route) != going:
            st.rerun()
        _now(routes, route)

    live()
    _moves(routes, routes.by_name[model])
    registering.section(model, _word(routes, routes.by_name[model]))
    _audit(routes, model)


def _word(routes: Routes, route: Route) -> str | None:
    """The guard's last word about the rollout of this route; None where there was none."""
    canary, look = route.canary, last_look(routes, route.model)
    if canary is None or look is None or look.get("begun") != canary.begun:
        return None
    return f"Version {canary.challenger} beside {canary.champion}: {look['verdict']['text']}"


def _is_going(route: Route) -> bool:
    return route.canary is not None and route.canary.state in ("going", "held")


def _now(routes: Routes, route: Route) -> None:
    """What stands, in one sentence, four figures and two charts."""
    canary, look = route.canary, last_look(routes, route.model)
    if canary is None:
        whole = [version.version for version in route.versions if version.weight == 1]
        st.markdown(
            f"#### Version {whole[0]} has all of the traffic." if whole else "#### The traffic is split by hand."
        )
        _versions(route)
        return
    seen = look if look is not None and look.get("begun") == canary.begun else None
    verdict = seen["verdict"] if seen else None
    st.markdown(f"#### The rollout of version {canary.challenger} {STATES[canary.state]}.")
    if verdict is not None:
        st.markdown(verdict["text"])
    elif canary.state in ("going", "held"):
        st.info(
            "The guard has not looked yet: it does so once a second in a gateway that runs.",
            icon=":material/hourglass_empty:",
        )
    challenger = route.version(canary.challenger)
    cards(
        [
            Card("Challenger's share", f"{100 * challenger.weight:g} %", f"version {canary.challenger}"),
            Card(
                "Step", f"{canary.step + 1} of {len(canary.steps)}", " → ".join(f"{100 * s:g} %" for s in canary.steps)
            ),
            Card(
                "Requests it has had",
                f"{seen['touched']:,}" if seen else "n/a",
                "since it began",
                "the guard has not looked yet",
            ),
            Card(
                "Rolled back by mistake",
                f"≤ {100 * canary.tolerance.alpha:g} %",
                "of versions that are no worse, harm by chance",
            ),
        ]
    )
    if verdict is not None:
        chart.show(charts.comparisons(verdict["comparisons"]), "o_compared")
        st.caption(
            "Champion and challenger had their requests in the same window, by lot. Intervals and verdict hold however "
            "often one looks, if harm falls on single requests; for stalls that slow a clump of them the latency's "
            "evidence is reduced, which is an approximation and does not cover stalls of many seconds."
        )
    since = [line for line in routes.audit(route.model) if line["utc"] >= canary.begun[:19]]
    chart.show(charts.traffic(since, canary.challenger), "o_traffic")
    _versions(route)


def _versions(route: Route) -> None:
    rows = [
        {
            "version": version.version,
            "share (%)": 100 * version.weight,
            "served by": ", ".join(f"{replica.model} at {replica.url}" for replica in version.replicas),
            "shadow": "copies" if route.mirror is not None and route.mirror.version == version.version else "",
        }
        for version in route.versions
    ]
    st.markdown("##### Versions")
    st.dataframe(pd.DataFrame(rows), hide_index=True, alt=f"Versions of {route.model} and their shares")


def _moves(routes: Routes, route: Route) -> None:
    """What a person may do now; each is one step, and in the audit log."""
    canary, model = route.canary, route.model
    st.markdown("##### Move the traffic")
    if refused := st.session_state.pop("o_refused", None):
        st.error(refused, icon=":material/error:")
    if canary is not None and canary.state in ("going", "held"):
        row = st.container(horizontal=True)
        for action in ("advance", "go_on" if canary.state == "held" else "hold", "promote", "roll_back"):
            label, icon = MOVES[action]
            row.button(
                label, key=f"o_{action}", icon=f":material/{icon}:",
                on_click=_do, args=(rollout.move, routes, model, action),
            )  # fmt: skip
        return
    others = [version.version for version in route.versions if version.weight != 1]
    if not others:
        st.caption("There is one version. Deploy another beside it, below under Registered versions.")
        return
    left, middle, right = st.columns([2, 1, 1], vertical_alignment="bottom")
    version = left.selectbox("Version", others, key="o_version")
    middle.button(
        "Begin a canary", key="o_begin", icon=":material/moving:", width="stretch",
        on_click=_do, args=(rollout.begin, routes, model, version),
    )  # fmt: skip
    right.button(
        "Switch at once", key="o_switch", icon=":material/swap_horiz:", width="stretch",
        on_click=_do, args=(rollout.switch, routes, model, version),
    )  # fmt: skip
    st.caption(
        "A switch moves every new request; answers under way end where they began, and the way back is as quick."
    )


def _do(act: Callable[..., Any], routes: Routes, model: str, what: str) -> None:
    """A click; a refusal is told where the buttons are."""
    try:
        if act in (rollout.begin, rollout.switch):
            readiness.check(routes, model, what)
        act(routes, model, what, by="page")
    except LabError as error:
        st.session_state["o_refused"] = str(error)


def _audit(routes: Routes, model: str) -> None:
    lines = routes.audit(model)[-200:]
    with st.expander("Decisions", icon=":material/history:", key="o_audit"):
        rows = [
            {
                "when": when(line["utc"]),
                "what": line.get("action", ""),
                "by": line.get("by", ""),
                "shares after": ", ".join(f"{v} {100 * w:g} %" for v, w in (line.get("after") or {}).items()),
                "why": (line.get("evidence") or {}).get("text", ""),
                "requests it had had": line.get("touched"),
            }
            for line in reversed(lines)
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt=f"Decisions about {model}, newest first")
