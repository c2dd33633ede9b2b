"""A stand-in for providers and judge: an OpenAI-compatible API that answers at once, with known quality per
model and kind.

    python -m cabs_server.stand_in --port 9100

Everything that it says follows from the text of the question, so two runs agree. `kinds` of prompts have one
right answer each; a model is right with its probability for the kind. The judge is wrong in a share of cases,
and takes long wrong answers for right more often. A word in a model's name asks for trouble: `limited` (429,
most of the time), `broken` (500 at times), `cut` (half a reply at times), `vanishes` (404 after fifty calls),
`locked` (401).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

KINDS = ("sum", "backwards", "letter", "json", "sort")
#: {model: probability of a right answer per kind}
QUALITY: dict[str, tuple[float, ...]] = {
    "tiny": (0.45, 0.40, 0.45, 0.40, 0.40),
    "coder": (0.97, 0.30, 0.30, 0.97, 0.40),
    "writer": (0.30, 0.97, 0.97, 0.30, 0.40),
    "grand": (0.60, 0.60, 0.60, 0.60, 0.95),
}
#: USD per million tokens, input and output
PRICES = {
    "tiny": (0.1, 0.2),
    "coder": (1.0, 2.0),
    "writer": (1.0, 2.0),
    "grand": (10.0, 30.0),
    "judge": (1.0, 2.0),
}
#: models that say much
WORDY = ("writer",)
#: share of wrong judgements, and how much more often a long wrong answer passes
JUDGE_ERROR, LENGTH_BIAS = 0.15, 0.23
#: characters from which an answer is long
LONG = 150
_FILLER = "Let me think about this step by step and explain it with care, so that everything is clear. " * 2
_WORDS = (
    "amber basil cedar delta ember fjord grove heron inlet jolly karst lemon maple north olive pearl quartz "
    "river sable tulip"
).split()


def make_prompts(n: int, seed: int = 0) -> list[dict[str, str]]:
    """n prompts of the five kinds in turn: dicts with prompt, kind and the right answer."""
    rng = random.Random(f"prompts {seed}")
    rows = []
    for i in range(n):
        kind, number = KINDS[i % len(KINDS)], f"{seed}-{i}"
        if kind == "sum":
            text = f"Task {number}: add the numbers {rng.randrange(100, 500)} and {rng.randrange(100, 500)}."
        elif kind == "backwards":
            text = f"Task {number}: write the word {rng.choice(_WORDS)}{rng.choice(_WORDS)} backwards."
        elif kind == "letter":
            place = f"place {rng.randrange(1, 27)} of the alphabet"
            text = f"Task {number}: which letter stands at {place}? Give letter and place."
        elif kind == "json":
            text = f"Task {number}: give a JSON object whose field size is {rng.randrange(10_000)}."
        else:
            text = f"Task {number}: sort the letters of {rng.choice(_WORDS)}{rng.choice(_WORDS)}."
        rows.append({"prompt": text, "kind": kind, "answer": right_answer(text)})
    return rows


def make_traces(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """n traces as Langfuse exports them: a model drawn by rules of thumb, and a thumb on a third of the
    answers."""
    rng, traces = random.Random(f"traces {seed}"), []
    for i, row in enumerate(make_prompts(n, seed)):
        usual = {"sum": "coder", "json": "coder"}.get(row["kind"], "grand")
        model = usual if rng.random() < 0.5 else rng.choice(sorted(QUALITY))
        answer, (price_in, price_out) = answer_of(model, row["prompt"]), PRICES[model]
        tokens = len(row["prompt"]) // 4 + 4, len(answer) // 4 + 1
        messages = [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": row["prompt"]},
        ]
        right = answer.endswith(row["answer"])
        thumb = (
            [{"name": "user-thumb", "value": int(right), "dataType": "BOOLEAN"}]
            if rng.random() < 1 / 3
            else []
        )
        traces.append(
            {
                "id": f"trace-{i}",
                "sessionId": f"session-{i // 3}",
                "scores": thumb,
                "observations": [
                    {
                        "id": f"o-{i}",
                        "type": "GENERATION",
                        "model": model,
                        "input": {"messages": messages},
                        "output": answer,
                        "usageDetails": {"input": tokens[0], "output": tokens[1]},
                        "costDetails": {"total": (tokens[0] * price_in + tokens[1] * price_out) / 1e6},
                    }
                ],
            }
        )
    return traces


def kind_of(prompt: str) -> str:
    """Kind of a prompt by its words; `other` for any that is not ours."""
    for kind, word in zip(KINDS, ("add the", "backwards", "which letter", "JSON", "sort the")):
        if word in prompt:
            return kind
    return "other"


def right_answer(prompt: str) -> str:
    """What is right, worked out from the prompt."""
    kind, text = kind_of(prompt), prompt.partition(": ")[2]
    if kind == "sum":
        return str(sum(map(int, re.findall(r"\d+", text))))
    if kind == "backwards":
        return text.split()[3][::-1]
    if kind == "letter":
        place = int(re.findall(r"\d+", text)[0])
        return f"{chr(64 + place)}{place}"
    if kind == "json":
        return json.dumps({"size": int(re.findall(r"\d+", text)[0])})
    if kind == "sort":
        return "".join(sorted(text.split()[4].rstrip(".")))
    return hashlib.sha256(prompt.encode()).hexdigest()[:6]


def chance(*parts: Any) -> float:
    """A number in [0, 1) that follows from the parts."""
    text = "|".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64


def is_right(model: str, prompt: str) -> bool:
    """Whether a model answers a prompt rightly."""
    kind = kind_of(prompt)
    name = next((m for m in QUALITY if m in model), "tiny")
    share = QUALITY[name][KINDS.index(kind)] if kind in KINDS else 0.5
    return chance(model, prompt) < share


def answer_of(model: str, prompt: str) -> str:
    """A model's answer to a prompt."""
    right = right_answer(prompt)
    answer = right if is_right(model, prompt) else _wrong(right, chance("wrong", model, prompt))
    return f"{_FILLER}{answer}" if any(word in model for word in WORDY) else answer


def _wrong(right: str, spin: float) -> str:
    if right.isdigit():
        return str(int(right) + 1 + int(spin * 9))
    if right.startswith("{"):
        return json.dumps({"size": -1 - int(spin * 9)})
    return right[1:] + right[0] + "x"


def judged(parts: dict[str, Any]) -> str:
    """The judge's reply about one answer, or about two."""
    task = parts["task"]

    def passed(answer: str) -> bool:
        right = answer.endswith(right_answer(task))
        share = JUDGE_ERROR + (LENGTH_BIAS if not right and len(answer) >= LONG else 0.0)
        return right != (chance("judge", task, answer) < share)

    if "answer" in parts:
        return json.dumps({"grade": int(passed(parts["answer"]))})
    first, second = passed(parts["first"]), passed(parts["second"])
    return json.dumps(
        {"better": "tie" if first == second and first else "first" if first or not second else "second"}
    )


@dataclass
class StandIn:
    """Its counts: requests per model, and answers that were sent in full per (model, question)."""

    delay: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions"""
        body = await request.json()
        model, text = str(body["model"]), str(body["messages"][-1]["content"])
        self.requests[model] += 1
        number = self.requests[model]
        if self.delay:
            await asyncio.sleep(self.delay)
        spin = chance("trouble", model, number)
        if "locked" in model:
            return _error(401, "invalid_api_key", "Incorrect API key provided")
        if "vanishes" in model and number > 50:
            return _error(404, "model_not_found", f"The model {model} does not exist")
        if "limited" in model and spin < 0.7:
            return _error(429, "rate_limit_exceeded", "Too many requests", {"Retry-After": "0.05"})
        if "broken" in model and spin < 0.3:
            return _error(500, "server_error", "Internal error")
        answer = judged(json.loads(text)) if "judge" in model else answer_of(model, text)
        usage = {
            "prompt_tokens": sum(len(m["content"]) for m in body["messages"]) // 4 + 4,
            "completion_tokens": len(answer) // 4 + 1,
        }
        message = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        data = json.dumps(
            {
                "id": f"stand-in-{number}",
                "object": "chat.completion",
                "model": model,
                "choices": [message],
                "usage": usage,
            }
        )
        if "cut" in model and spin < 0.3:
            data = data[: len(data) // 2]
        else:
            self.answered[f"{model}|{hashlib.sha256(text.encode()).hexdigest()[:16]}"] += 1
            self.tokens[f"{model} in"] += usage["prompt_tokens"]
            self.tokens[f"{model} out"] += usage["completion_tokens"]
        return web.Response(text=data, content_type="application/json")

    async def counts(self, _: web.Request) -> web.Response:
        """GET /counts"""
        again = sum(n - 1 for n in self.answered.values())
        return web.json_response(
            {
                "requests": dict(self.requests),
                "answered": len(self.answered),
                "again": again,
                "tokens": dict(self.tokens),
            }
        )

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/counts", self.counts)
        return app


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": code, "code": code}}, status=status, headers=headers
    )


def upstreams_text(port: int, models: tuple[str, ...] = tuple(PRICES)) -> str:
    """An upstreams file for it."""
    lines = ["models:"]
    for model in models:
        price = next((p for name, p in PRICES.items() if name in model), (1.0, 2.0))
        usd = f"{{input: {price[0]:g}, output: {price[1]:g}}}"
        lines.append(f"  {model}: {{url: http://127.0.0.1:{port}/v1, price: {usd}}}")
    return "\n".join(lines) + "\n"


def label(path: Path) -> None:
    """Fill in a sheet of `cabs judge sample` with what is right: a stand-in for people."""
    with open(path, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {"score": int(row["answer"].endswith(right_answer(row["prompt"])))})


def main() -> None:
    """Serve it on 127.0.0.1."""
    parser = argparse.ArgumentParser(description="A stand-in for providers and judge, with known quality.")
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--delay", type=float, default=0.0, help="Seconds that an answer takes.")
    parser.add_argument("--prompts", type=Path, help="Write prompts for it to this CSV file, and end.")
    parser.add_argument("--number", type=int, default=300, help="Number of those prompts.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upstreams", type=Path, help="Write an upstreams file for this port, and end.")
    parser.add_argument(
        "--label", type=Path, help="Fill in the scores of this sheet of `cabs judge sample`, and end."
    )
    parser.add_argument("--traces", type=Path, help="Write a log of the Langfuse kind to this file, and end.")
    given = parser.parse_args()
    if given.label:
        label(given.label)
        return
    if given.prompts:
        with open(given.prompts, "w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, ["prompt", "kind", "answer"])
            writer.writeheader()
            writer.writerows(make_prompts(given.number, given.seed))
    if given.traces:
        with open(given.traces, "w", encoding="utf-8") as handle:
            handle.writelines(json.dumps(trace) + "\n" for trace in make_traces(given.number, given.seed))
    if given.upstreams:
        given.upstreams.write_text(upstreams_text(given.port), encoding="utf-8")
    if not (given.prompts or given.upstreams or given.traces):
        web.run_app(StandIn(given.delay).app(), host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
