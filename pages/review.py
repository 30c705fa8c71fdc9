"""Design review: what is required, what was measured of it, what a sceptic would still ask, and the decision."""

from lab.show.ui import frame, reviewing

frame.with_app()
reviewing.page()
