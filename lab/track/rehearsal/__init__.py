"""A rollout rehearsed: a real gateway in front of real Tritons, users who know the right answers, and a version 2 that
is good or has a fault planted into it.

    rehearse.py    the run: its blocks in turn, into a run folder as every experiment's (experiments canary, blue_green)
    stage.py       the gateway's process on routes of its own
    planted.py     what version 2 is
    users.py       who asks: labelled images at set times, streams one after the other
    ceiling.py     how much comes through at all, where the load is a share of that
    canary.py      steps and the guard's decision, left to the gateway
    blue_green.py  the switch and the way back, each request accounted for

What came of it is written down as events; lab/measure/rehearsal.py makes sense of them.
"""
