"""Rollout: versions behind one name, the guard's comparison of two of them, the switch; both rehearsed too."""

from lab.show.ui import frame, rolling

frame.with_app()
rolling.page()
