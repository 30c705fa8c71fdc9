"""Rollout: versions behind one name, the guard's comparison of two of them, and the switch."""

from lab.show.ui import frame, rolling

frame.with_app()
rolling.page()
