"""Conversations whose model fails now and then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .play import Seen, behaviour
from .stage import Stage, user

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
#: what stands before every question; a model that read it has it in its cache, so a switch costs something
RULES = "Be kind to whoever asks. " * 1_000


def ruled(content: Any) -> list[dict[str, Any]]:
    """A conversation of long instructions and one message."""
    return [{"role": "system", "content": RULES}, *user(content)]


@behaviour(short=True)
def loops_with_failures(stage: Stage) -> Seen:
    """Two hundred tool loops of nine steps, 2 of 100 calls fail -> none changes its model for good"""
    server = stage.fresh(options=("--epsilon", "0.9"))
    server.behave(dict.fromkeys(range(4), "seldom"))

    def loop(number: int) -> tuple[bool, bool]:
        """Whether its model is another at the end than at the start, and whether another answered within."""
        messages, models = user(f"What is the weather in loop {number}?"), []
        for i in range(9):
            answer = server.ask(messages, tools=[TOOL])
            models.append(answer.headers["x-cabs-model"])
            call = {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            messages = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{i}", "content": "rain"},
            ]
        return models[0] != models[-1], len(set(models)) > 1

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(loop, range(200)))
    failed = sum(d.status == "error" for d in server.rows())
    changed, diverted = (sum(part) for part in zip(*ends, strict=True))
    return (
        changed == 0 and failed >= 20,
        f"{failed} calls failed, {diverted} loops were helped out, {changed} changed",
    )
