"""Opening a page by Streamlit's AppTest, what is on it, and runs that go on."""

import json
import time
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from lab.run import catalogue
from lab.run.folder import RunFolder
from tests.show.synthetic import Author

PROJECT = Path(__file__).parents[2]
PAGES = (
    *("start", "batching", "quantization", "kv_cache", "scheduling", "memory", "try_it", "live", "runs", "system"),
    *("your_server", "sweep", "tail", "trust"),
)
GOING = "20261130-020202-load-goes"


def open_page(page: str, **params: str) -> AppTest:
    """The page as its link opens it."""
    app = AppTest.from_file(str(PROJECT / "app.py"), default_timeout=60)
    if page != "start":  # which is there without a name
        app.switch_page(f"pages/{page}.py")
    for name, value in params.items():
        app.query_params[name] = value
    return app.run()


def words(app: AppTest) -> str:
    """All text on the page."""
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def run_in_url(app: AppTest) -> str:
    value = app.query_params["run"]
    return value if isinstance(value, str) else value[0]


def components(app: AppTest) -> list[dict[str, Any]]:
    """What each component of ours was given."""
    return [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]


def charts(app: AppTest) -> list[dict[str, Any]]:
    """Everything that is drawn, the live page's moment among it."""
    drawn = [data.get("moment", data) for data in components(app)]
    return [data for data in drawn if "figure" in data]


def load_run(run_id: str = GOING, **status: Any) -> RunFolder:
    """A load run that this very process owns, so it counts as going on; `status` fields are then overwritten."""
    workload = {"arrival": {"kind": "poisson", "rate_rps": 50}, "duration_s": 60}
    author = Author(catalogue.single({"name": "digits"}, workload, []), run_id, quick=False)
    author.folder.set_status("running", progress=0.5)
    path = author.folder.path / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **status}))
    return author.folder


def interrupted_run() -> RunFolder:
    return load_run(pid=2**22 + 1, heartbeat_ns=time.perf_counter_ns() - 10_000_000_000)


def sent(folder: RunFolder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder.path / "control.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "id"} for line in lines]


def begun(folder: RunFolder, rate_rps: float) -> None:
    cell = folder.document["cells"][0]
    workload = {**cell["workload"], "arrival": {**cell["workload"]["arrival"], "rate_rps": rate_rps}}
    now = time.perf_counter_ns()
    times = {"start_ns": now, "measured_from_ns": now, "end_ns": now + 60_000_000_000, "t_ns": now}
    block = {"block": 0, "role": "cell", "cell": 0, "repeat": 0, "planned": None}
    folder.event("block_start", **block, workload=workload, model=cell["model"], **times)
