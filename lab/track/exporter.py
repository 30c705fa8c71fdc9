"""A process of its own, with nothing of lab: writes one bundle (lab/track/bundle.py) into a tracking database.

    python exporter.py BUNDLE.json TRACKING_URI ARTIFACT_FOLDER

The last line on stdout is a JSON object: {"experiment_id", "run_id", "metrics", "skipped"}. Exit status 75 when the
database is locked, which another try may cure; 1 with one line on stderr for anything else. A run that is in the
database already, whole, is left as it is; half of one is written anew.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

LOCKED = 75
"""EX_TEMPFAIL of sysexits.h."""
BATCH = 1000
"""MLflow's own limit of metrics a request; of parameters and tags it is 100."""
PARAMS = 100
RUN, WHOLE = "lab.run", "lab.whole"


def main(bundle_path: str, uri: str, artifacts: str) -> int:
    logging.disable(logging.INFO)
    from mlflow import MlflowClient

    bundle = json.loads(Path(bundle_path).read_text())
    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(bundle["experiment"])
        if experiment is None:
            folder = Path(artifacts).absolute().as_uri()
            experiment_id = client.create_experiment(bundle["experiment"], artifact_location=folder)
        else:
            experiment_id = experiment.experiment_id
        known = _known(client, experiment_id, bundle["parent"]["tags"][RUN])
        if known is None:
            known, written = _write_all(client, experiment_id, bundle)
        else:
            written = 0
    except Exception as error:  # noqa: BLE001  whatever MLflow raises becomes one line of ours
        said = " ".join(str(error).split())
        print(said[:400], file=sys.stderr)
        return LOCKED if "database is locked" in said else 1
    print(json.dumps({"experiment_id": experiment_id, "run_id": known, "metrics": written}))
    return 0


def _known(client: Any, experiment_id: str, run: str) -> str | None:
    """The id of the run in the database; what an exporter that died left half done is deleted."""
    found = client.search_runs([experiment_id], filter_string=f"tags.`{RUN}` = '{run}'")
    for entry in found:
        if entry.data.tags.get(WHOLE) == "true" and "mlflow.parentRunId" not in entry.data.tags:
            return str(entry.info.run_id)
    for entry in found:
        client.delete_run(entry.info.run_id)
    return None


def _write_all(client: Any, experiment_id: str, bundle: dict[str, Any]) -> tuple[str, int]:
    parent, written = _write(client, experiment_id, bundle["parent"], {})
    for child in bundle["children"]:
        written += _write(client, experiment_id, child, {"mlflow.parentRunId": parent})[1]
    client.set_tag(parent, WHOLE, "true")
    return parent, written


def _write(client: Any, experiment_id: str, entry: dict[str, Any], tags: dict[str, str]) -> tuple[str, int]:
    from mlflow.entities import Metric, Param

    begun_ms = int(entry["begun_ms"])
    made = client.create_run(experiment_id, start_time=begun_ms, run_name=entry["name"], tags={**entry["tags"], **tags})
    run_id = str(made.info.run_id)
    params = [Param(name, value) for name, value in entry["params"].items()]
    for n in range(0, len(params), PARAMS):
        client.log_batch(run_id, params=params[n : n + PARAMS])
    metrics = [Metric(name, value, begun_ms, 0) for name, value in entry["metrics"].items()]
    for name, points in entry["series"].items():
        metrics += [Metric(name, value, begun_ms + 1000 * second, second) for second, value in points]
    for n in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[n : n + BATCH])
    for path in entry["artifacts"]:
        client.log_artifact(run_id, path)
    client.set_terminated(run_id, status=entry["status"], end_time=int(entry["ended_ms"]))
    return run_id, len(metrics)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
