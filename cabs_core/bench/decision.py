"""How long a decision takes from a prompt's text on: the encoder, the rest, and both, on one thread.

    cabs bench decision --router router

Prompts have about 100 tokens and are all different; the log is in memory. Everything is measured twice: in wall time,
which other work on the machine lengthens, and in processor time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from cabs_core.atomic import write_text
from cabs_core.bench.serve import prompt
from cabs_core.router.bundle import read_manifest
from cabs_core.router.checks import measure_latency


def main(json_path: str | None = None, argv: Sequence[str] = ()) -> dict[str, Any]:
    """`cabs bench decision`."""
    parser = argparse.ArgumentParser(prog="cabs bench decision")
    parser.add_argument("--router", default="router", help="folder of the router")
    parser.add_argument("--decisions", type=int, default=300, help="of each turn")
    options = parser.parse_args(list(argv))
    manifest = read_manifest(options.router)
    prompts = [prompt(i) for i in range(options.decisions + 20)]
    torch.set_num_threads(1)
    found: dict[str, Any] = {"policy": manifest.policy, "encoder": manifest.encoder["name"], "unit": "ms"}
    for turn, clock in (("clock", time.perf_counter), ("processor", time.process_time)):
        timed = measure_latency(options.router, prompts, decisions=options.decisions, clock=clock)
        found[turn] = timed.to_dict()
    print(json.dumps(found, indent=1))
    if json_path:
        write_text(json_path, json.dumps(found, indent=1))
    return found
