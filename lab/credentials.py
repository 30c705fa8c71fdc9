"""What a user gives for somebody else's server, by the environment alone: it is in no run folder and in no link.

LAB_API_KEY                      a bearer token (OpenAI's kind, RunPod, Replicate)
LAB_MODAL_KEY, LAB_MODAL_SECRET  of Modal's proxy, where a deployment asks for them
"""

from __future__ import annotations

import os


def headers() -> dict[str, str]:
    """For requests to a server that was given by URL; {} where nothing is set."""
    found = {}
    if key := os.environ.get("LAB_API_KEY"):
        found["Authorization"] = f"Bearer {key}"
    key, secret = os.environ.get("LAB_MODAL_KEY"), os.environ.get("LAB_MODAL_SECRET")
    if key and secret:
        found |= {"Modal-Key": key, "Modal-Secret": secret}
    return found
