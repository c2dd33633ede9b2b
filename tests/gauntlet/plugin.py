"""LiteLLM's proxy with the plug-in in it: routed, counted, retried, scored, promoted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import requests

from cabs_core.data.events.rows import Logged
from cabs_core.router import promote, read_manifest

from .play import Seen, behaviour
from .stage import PRICE, ROOT, TEXT, USUAL, Served, Stage, near, user, wait

KEY = "sk-of-the-gauntlet-0123456789abcdef"
NEEDS = ("litellm", "fastapi")
_PROXY = """from cabs_server.litellm import CabsLogger

router = CabsLogger("router", log="router.events.sqlite")
router.add_feedback_endpoint()
"""


class Proxy(Served):
    """LiteLLM's proxy as docs/deploy.md says, before the stand-in upstream."""

    def __init__(self, stage: Stage):
        folder = stage.folder / "proxy"
        folder.mkdir()
        self.router = folder / "router"
        promote(stage.routers / "hier_mix", self.router)
        arms = read_manifest(self.router).names
        names = [f"proxied-{i}" for i in range(len(arms))]
        super().__init__(
            folder, stage.provider, arms, names, str(folder / "router.events.sqlite"), "/health/liveliness"
        )
        cost = {f"{way}_cost_per_token": PRICE[way] / 1e6 for way in ("input", "output")}
        models = [
            {
                "model_name": "cabs",
                "model_info": {"id": arm},
                "litellm_params": {
                    "model": f"openai/{name}",
                    "api_base": f"{self.provider}/v1",
                    "api_key": "none",
                    **cost,
                },
            }
            for arm, name in zip(arms, names, strict=True)
        ]
        config = {
            "model_list": models,
            "litellm_settings": {"callbacks": "cabs_proxy.router"},
            "router_settings": {"num_retries": 3, "cooldown_time": 1},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        (folder / "cabs_proxy.py").write_text(_PROXY)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = Path(sys.executable).parent / "litellm"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LITELLM_MASTER_KEY": KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "*",
        }
        where = ["--config", "config.yaml", "--host", "127.0.0.1", "--port", str(self.port)]
        self.launch([str(program), *where], environment, 300.0)

    def post(self, path: str, body: Any, key: str = KEY, **options: Any) -> requests.Response:
        """POST of JSON with a key."""
        return super().post(path, body, headers={"authorization": f"Bearer {key}"}, **options)

    def ask(self, text: str = TEXT, **body: Any) -> requests.Response:
        """One chat completion."""
        return self.post("/v1/chat/completions", {"model": "cabs", "messages": user(text), **body})

    def rows(self, answer: requests.Response | None = None) -> list[Logged]:
        """The log once all calls have ended; of one call where it is given."""
        if answer is None:
            return self.settled(bool)
        call = answer.headers["x-litellm-call-id"]
        found = self.settled(lambda rows: any(d.call_id == call for d in rows))
        return [d for d in found if d.call_id == call]


_RUNNING: list[Proxy] = []


def _proxy(stage: Stage) -> Proxy:
    """The proxy of this theme."""
    if not _RUNNING:
        made = Proxy(stage)
        _RUNNING.append(made)
        stage.later(lambda: (_RUNNING.clear(), made.kill()))
    return _RUNNING[0]


@behaviour(*NEEDS)
def routed(stage: Stage) -> Seen:
    """LiteLLM: a chat completion through the proxy -> x-cabs-decision, one answered row with its cost"""
    proxy = _proxy(stage)
    answer = proxy.ask()
    rows = proxy.rows(answer)
    good = (
        answer.status_code == 200 and [d.status for d in rows] == ["answered"] and near(rows[0].cost, USUAL)
    )
    good = good and answer.headers["x-cabs-decision"] == rows[0].id
    return good, f"{answer.status_code}, {[(d.status, d.cost) for d in rows]}"


@behaviour(*NEEDS)
def streamed(stage: Stage) -> Seen:
    """LiteLLM: a stream -> whole, its cost in the log"""
    proxy = _proxy(stage)
    answer = proxy.ask("A question to stream?", stream=True)
    rows = wait(lambda: [d for d in proxy.rows(answer) if d.cost is not None], 10.0) or proxy.rows(answer)
    good = answer.text.rstrip().endswith("[DONE]") and near(rows[0].cost, USUAL)
    return good, [(d.status, d.cost) for d in rows]


@behaviour(*NEEDS)
def retried(stage: Stage) -> Seen:
    """LiteLLM: three of four models answer 429, 401 and 500 -> 200; each retry another model, rows closed"""
    proxy = _proxy(stage)
    proxy.behave({0: "limited", 1: "revoked", 2: "broken"})
    try:
        answers = [proxy.ask(f"Question {i}?") for i in range(4)]
        rows = [proxy.rows(a) for a in answers if a.status_code == 200]
    finally:
        proxy.behave(dict.fromkeys(range(4), ""))
    apart = all(len({d.arm for d in r}) == len(r) for r in rows)
    ends = {d.status for r in rows for d in r}
    good = {a.status_code for a in answers} == {200} and apart and ends <= {"answered", "error"}
    return (
        good,
        f"{[a.status_code for a in answers]}, attempts {[len(r) for r in rows]}, another model each: "
        f"{apart}, rows {ends}",
    )


@behaviour(*NEEDS)
def scored(stage: Stage) -> Seen:
    """LiteLLM: /cabs/feedback by id, call and response; again, otherwise, unknown, a wrong key -> recorded,
    duplicate, 409, 404, refused"""
    proxy, said = _proxy(stage), []
    for i, name in enumerate(("id", "call_id", "response_id")):
        answer = proxy.ask(f"Scored {i}?")
        proxy.rows()
        value = {
            "id": answer.headers.get("x-cabs-decision"),
            "call_id": answer.headers["x-litellm-call-id"],
            "response_id": answer.json()["id"],
        }[name]
        said.append(proxy.post("/cabs/feedback", {name: value, "score": 1.0}).json().get("result"))
    again = [proxy.post("/cabs/feedback", {"response_id": value, "score": s}).status_code for s in (1.0, 0.0)]
    bad = [proxy.post("/cabs/feedback", {"id": "nobody", "score": 1.0}).status_code]
    bad.append(proxy.post("/cabs/feedback", {"response_id": value, "score": 1.0}, key="sk-wrong").status_code)
    good = said == ["recorded"] * 3 and again == [200, 409] and bad[0] == 404 and bad[1] in (400, 401)
    return good, ((said, again, bad))


@behaviour(*NEEDS, "openai")
def openai_through_the_proxy(stage: Stage) -> Seen:
    """LiteLLM: OpenAI's package through the proxy, a loop of four tool steps in a session -> one model, one
    decision"""
    import openai

    proxy = _proxy(stage)
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0)
    messages, names = user("The weather in the proxy?"), []
    for i in range(4):
        raw = client.chat.completions.with_raw_response.create(
            model="cabs", messages=messages, extra_headers={"x-session-id": "of-the-proxy"}
        )
        names.append(raw.headers.get("x-cabs-decision"))
        call = {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        messages = [
            *messages,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": "rain"},
        ]
    rows = [d for d in proxy.rows() if d.id in names]
    seen = (len({d.arm for d in rows}), sum(d.kept is None for d in rows))
    good = seen == (1, 1) and len(rows) == 4
    return good, f"{seen[0]} model(s), {seen[1]} decision(s) of {len(rows)} steps"


@behaviour(*NEEDS)
def messages_through_the_proxy(stage: Stage) -> Seen:
    """LiteLLM: /v1/messages through the proxy -> routed, its row closed"""
    proxy = _proxy(stage)
    answer = proxy.post(
        "/v1/messages", {"model": "cabs", "max_tokens": 50, "messages": user("In Anthropic's way?")}
    )
    rows = proxy.rows(answer) if "x-litellm-call-id" in answer.headers else []
    good = answer.status_code == 200 and [d.status for d in rows] == ["answered"]
    return good, f"{answer.status_code}, {[d.status for d in rows]}"


@behaviour(*NEEDS)
def promoted(stage: Stage) -> Seen:
    """LiteLLM: a bundle is promoted over the one in use -> the proxy takes it up; a checkpoint is written"""
    proxy = _proxy(stage)
    second = promote(stage.routers / "carrot", proxy.router)

    def decides() -> bool:
        proxy.ask()
        return proxy.rows()[-1].bundle == second

    taken = wait(decides, 20.0)
    checkpoints = wait(lambda: list(proxy.folder.rglob("learned.json")), 15.0)
    return bool(taken and checkpoints), f"taken up: {bool(taken)}, checkpoints: {len(checkpoints)}"


@behaviour(*NEEDS)
def killed(stage: Stage) -> Seen:
    """LiteLLM: the proxy is killed with -9 and started again -> every acknowledged decision is kept, and can
    be scored"""
    proxy = _proxy(stage)
    answers = [proxy.ask(f"Before the kill {i}?") for i in range(5)]
    proxy.kill()
    proxy.start()
    kept = {d.id for d in proxy.rows()}
    names = [a.headers["x-cabs-decision"] for a in answers]
    said = proxy.post("/cabs/feedback", {"id": names[-1], "score": 1.0}).json().get("result")
    good = set(names) <= kept and said == "recorded" and proxy.ask().status_code == 200
    return good, f"{len(set(names) - kept)} of 5 lost, {said}"
