"""Serving patterns: the same model online, streamed and as a batch job; instances that come and go."""

from lab.show.ui import comparison, frame, patterns

frame.with_app()
comparison.page(patterns.SCALING if patterns.part() == "autoscaling" else patterns.WAYS)
