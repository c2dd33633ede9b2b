"""The options of `python -m tests.stand_in`."""

import argparse
import csv
import json
from pathlib import Path

import uvicorn

from tests.stand_in.models import label, make_prompts, make_traces, upstreams_text
from tests.stand_in.server import WORDS, StandIn


def main() -> None:
    """Write the files that are asked for, or serve it on 127.0.0.1."""
    words = "\n".join(f"  {word:12s} {what}" for word, what in WORDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.stand_in",
        description="A stand-in for providers and judge.",
        epilog=f"words in a model's name that ask for trouble:\n{words}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--prompts", type=Path, help="Write prompts for it to this CSV file, and end.")
    parser.add_argument("--number", type=int, default=300, help="Number of those prompts, or of traces.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upstreams", type=Path, help="Write an upstreams file for this port, and end.")
    parser.add_argument("--label", type=Path, help="Fill in the scores of this sheet of `cabs judge sample`.")
    parser.add_argument("--traces", type=Path, help="Write a log of the Langfuse kind to this file, and end.")
    options = parser.parse_args()
    if options.label:
        label(options.label)
    if options.prompts:
        with open(options.prompts, "w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, ["prompt", "kind", "answer"])
            writer.writeheader()
            writer.writerows(make_prompts(options.number, options.seed))
    if options.traces:
        with open(options.traces, "w", encoding="utf-8") as handle:
            handle.writelines(json.dumps(trace) + "\n" for trace in make_traces(options.number, options.seed))
    if options.upstreams:
        options.upstreams.write_text(upstreams_text(options.port), encoding="utf-8")
    if not (options.label or options.prompts or options.traces or options.upstreams):
        uvicorn.run(
            StandIn().app, host="127.0.0.1", port=options.port, access_log=False, log_level="critical"
        )


if __name__ == "__main__":
    main()
