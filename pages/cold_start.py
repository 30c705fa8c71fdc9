"""Cold start & serverless: from no process to the first answer, and a runner that scales to zero."""

from lab.show.ui import frame, starting
from lab.show.ui.words import told

frame.with_app()
with told():
    starting.page()
