"""Models of known quality and a judge, prompts with one right answer each, and what a user has of them: an
upstreams file, a log, labels.

What is answered follows from the text of the question, so two runs agree. A model is right with its
probability for the kind of the prompt. The judge is wrong in a share of cases, and likes long wrong answers.
"""

import csv
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

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
JUDGE = "judge"
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
    """n traces as Langfuse exports them: models by rules of thumb, a thumb on a third of the answers."""
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


def base_model(model: str) -> str:
    """The model of known quality, or the judge, that a name begins with: `tiny` of `tiny-2`; else ""."""
    first = model.partition("-")[0]
    return first if first in PRICES else ""


def is_right(model: str, prompt: str) -> bool:
    """Whether a model answers a prompt rightly."""
    kind = kind_of(prompt)
    share = QUALITY[base_model(model)][KINDS.index(kind)] if kind in KINDS else 0.5
    return chance(model, prompt) < share


def answer_of(model: str, prompt: str) -> str:
    """What a model of known quality, or the judge, answers to a prompt."""
    if base_model(model) == JUDGE:
        return judged(json.loads(prompt))
    right = right_answer(prompt)
    answer = right if is_right(model, prompt) else _wrong(right, chance("wrong", model, prompt))
    return f"{_FILLER}{answer}" if base_model(model) in WORDY else answer


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


def upstreams_text(port: int, models: tuple[str, ...] = tuple(PRICES)) -> str:
    """An upstreams file for it."""
    lines = ["models:"]
    for model in models:
        price = PRICES.get(base_model(model), (1.0, 2.0))
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
