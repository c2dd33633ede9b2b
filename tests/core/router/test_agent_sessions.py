"""A static router decides on the words of a person, whatever the harness of an agent writes around them."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from cabs_core.data.endpoints.person_text import TextRules
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.pool_files import pool_from
from cabs_core.router.build import build_bundle
from cabs_core.router.router import Router

#: words of the prompts of a subject; the small model fails at proofs and at contracts
SUBJECTS = {
    "proof": "prove theorem lemma converge integral bound prime inequality topology compact".split(),
    "contract": "clause liability tenant breach statute notice damages lease warranty court".split(),
    "recipe": "bake flour onion oven simmer garlic butter sauce dough roast".split(),
    "travel": "train hotel ticket museum beach airport passport island luggage ferry".split(),
}
HARD = ("proof", "contract")
PER_SUBJECT = 50
BLOCK_CHARACTERS = 5_000
BLOCKS = ("system-reminder", "environment_details", "environment_context")
HARNESS = (
    "file directory open tab terminal running command git branch status todo list tool edit read before "
    "never always commit tests pass working sandbox approval policy shell date remember instructions"
).split()


def make_prompts(seed: int) -> list[tuple[str, str]]:
    """Return (subject, prompt), 50 of each subject in random order."""
    draw = random.Random(seed)
    prompts = [
        (subject, f"Please help: {' '.join(draw.choices(words, k=6))} {draw.choice(HARNESS)}?")
        for subject, words in SUBJECTS.items()
        for _ in range(PER_SUBJECT)
    ]
    draw.shuffle(prompts)
    return prompts


def make_block(draw: random.Random) -> str:
    """Return a block of a harness of 5 KB, with paths, a fence of code and words of every subject."""
    words = [*HARNESS, *(word for subject in SUBJECTS.values() for word in subject)]
    text = "```\n/src/app.py\n```\n# Visible files\n"
    while len(text) < BLOCK_CHARACTERS:
        text += (
            f"- src/{draw.choice(words)}_{draw.randrange(1000)}.py: {' '.join(draw.choices(words, k=9))}\n"
        )
    tag = draw.choice(BLOCKS)
    return f"<{tag}>\n{text}</{tag}>"


def user_turn(draw: random.Random, prompt: str, after_tool: bool) -> dict[str, Any]:
    """Return a user's message with one block before its prompt and maybe one after it."""
    pieces = [make_block(draw), prompt, *([make_block(draw)] if draw.random() < 0.5 else [])]
    if draw.random() < 0.5 and not after_tool:
        return {"role": "user", "content": "\n".join(pieces)}
    result = {"type": "tool_result", "tool_use_id": "t", "content": make_block(draw)}
    texts = [{"type": "text", "text": piece} for piece in pieces]
    return {"role": "user", "content": [*([result] if after_tool else []), *texts]}


def replay_sessions(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Return (prompt, body of the request that asks it), in sessions of five prompts with calls of tools.

    The newest turn of every second request is the result of a tool with a reminder, without a new prompt.
    """
    draw = random.Random(seed)
    requests = []
    messages: list[dict[str, Any]] = []
    for number, (_, prompt) in enumerate(make_prompts(seed)):
        if number % 5 == 0:
            messages = []
        messages = [*messages, user_turn(draw, prompt, after_tool=bool(messages))]
        call = {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "src/app.py"}}
        answered = [*messages, {"role": "assistant", "content": [call]}]
        reminded = [{"type": "tool_result", "tool_use_id": "t", "content": "x = 1"}]
        reminded.append({"type": "text", "text": make_block(draw)})
        is_reminded = number % 2 == 1
        asked = [*answered, {"role": "user", "content": reminded}] if is_reminded else messages
        requests.append((prompt, {"messages": asked}))
        messages = answered
    return requests


@pytest.fixture(scope="module")
def static_router(tmp_path_factory: pytest.TempPathFactory, artifacts_of) -> Router:
    """A static router of a small and a large model, of which the small one is wrong at hard subjects."""
    folder: Path = tmp_path_factory.mktemp("agents")
    with open(folder / "table.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "model", "score", "cost"])
        for subject, prompt in make_prompts(seed=1):
            rows.writerow([prompt, "small", float(subject not in HARD), 0.0001])
            rows.writerow([prompt, "large", 1.0, 0.001])
    pool = pool_from(
        {
            "name": "agents",
            "source": {"kind": "file", "path": str(folder / "table.csv")},
            "encoder": {"name": "tfidf-svd"},
            "models": ["small", "large"],
            "oracle": {"kind": "ridge"},
            "features": {"dim": 8},
            "replay": {"trials": 2, "rhos": [0, 300]},
            "tuning_budget": 0,
        }
    )
    artifacts = artifacts_of(folder / "artifacts", pool)
    build_bundle(folder / "router", pool, artifacts, policy="carrot", rho=300.0, epsilon=0.0)
    return Router.load(folder / "router")


def route_texts(router: Router, texts: list[str]) -> list[str]:
    return [router.route(text).model for text in texts]


def test_sessions_of_agents_are_routed_as_without_the_blocks(static_router: Router) -> None:
    requests = replay_sessions(seed=2)
    plain = route_texts(static_router, [prompt for prompt, _ in requests])
    assert min(plain.count("small"), plain.count("large")) > 0.3 * len(plain)

    def share_routed_alike(rules: TextRules) -> float:
        read = [ChatRequest.read(body, dialect="messages", rules=rules).text or "" for _, body in requests]
        routed = route_texts(static_router, read)
        return sum(one == other for one, other in zip(plain, routed, strict=True)) / len(plain)

    assert share_routed_alike(TextRules()) >= 0.98
    assert share_routed_alike(TextRules(blocks=())) < 0.8  # the blocks would decide the route
