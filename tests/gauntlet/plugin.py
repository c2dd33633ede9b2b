"""LiteLLM's proxy with the plug-in in it: routed, counted, retried, scored, promoted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from cabs_core.bench.servers import free_port
from cabs_core.router import EventLog, promote, read_manifest
from cabs_core.router.event_rows import Logged

from .play import Seen, behaviour
from .stage import PRICE, ROOT, TEXT, USUAL, Stage, near, user, wait

KEY = "sk-of-the-gauntlet-0123456789abcdef"
NEEDS = ("litellm", "fastapi")
_PROXY = """from cabs_core.router.litellm import CabsLogger

router = CabsLogger("router", log="router.events.sqlite")
router.add_feedback_endpoint()
"""


class Proxy:
    """LiteLLM's proxy as docs/deploy.md says, before the stand-in upstream."""

    def __init__(self, stage: Stage):
        self.folder = stage.folder / "proxy"
        self.folder.mkdir()
        self.router, self.log = self.folder / "router", str(self.folder / "router.events.sqlite")
        promote(stage.routers / "hier_mix", self.router)
        self.arms = read_manifest(self.router).names
        self.names = [f"proxied-{i}" for i in range(len(self.arms))]
        self.echo = f"http://127.0.0.1:{stage.echo}"
        lines = ["model_list:"]
        for arm, name in zip(self.arms, self.names, strict=True):
            lines += [
                "  - model_name: cabs", "    litellm_params:",
                f"      {{model: openai/{name}, api_base: '{self.echo}/v1', api_key: none,",
                f"       input_cost_per_token: {PRICE['input'] / 1e6}, output_cost_per_token: {PRICE['output'] / 1e6}}}",
                f"    model_info: {{id: {arm}}}",
            ]  # fmt: skip
        lines += [
            "litellm_settings:",
            "  callbacks: cabs_proxy.router",
            "router_settings: {num_retries: 3, cooldown_time: 1}",
        ]
        (self.folder / "config.yaml").write_text("\n".join(lines))
        (self.folder / "cabs_proxy.py").write_text(_PROXY)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.http = requests.Session()
        self.http.trust_env = False
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = Path(sys.executable).parent / "litellm"
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OMP_NUM_THREADS": "1", "NO_PROXY": "*",
        }  # fmt: skip
        command = [
            str(program),
            "--config",
            "config.yaml",
            "--host",
            "127.0.0.1",
            "--port",
            self.url.rpartition(":")[2],
        ]
        with open(self.folder / "said.txt", "ab") as out:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        if not wait(self._lives, 300.0, 0.5):
            raise RuntimeError(f"the proxy did not start: {(self.folder / 'said.txt').read_text()[-1500:]}")

    def _lives(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (
            self.folder / "said.txt"
        ).read_text()[-1500:]
        with suppress(requests.RequestException):
            return self.http.get(f"{self.url}/health/liveliness", timeout=5.0).status_code == 200
        return False

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)

    def behave(self, words: dict[int, str]) -> None:
        """Have models behave as the words say."""
        self.http.post(f"{self.echo}/behave", json={self.names[i]: w for i, w in words.items()})

    def post(self, path: str, body: Any, key: str = KEY, **headers: str) -> requests.Response:
        """POST of JSON with a key."""
        return self.http.post(
            f"{self.url}{path}",
            json=body,
            headers={"authorization": f"Bearer {key}", **headers},
            timeout=90.0,
        )

    def ask(self, text: str = TEXT, **body: Any) -> requests.Response:
        """One chat completion."""
        return self.post("/v1/chat/completions", {"model": "cabs", "messages": user(text), **body})

    def rows(self, answer: requests.Response | None = None) -> list[Logged]:
        """The log once all calls have ended; of one call where it is given."""
        events = EventLog(self.log, read_only=True)
        call = None if answer is None else answer.headers["x-litellm-call-id"]
        found: list[Logged] = []

        def ended() -> bool:
            found[:] = [d for d in events.decisions() if call is None or d.call_id == call]
            return bool(found) and all(d.status != "decided" for d in found)

        try:
            wait(ended, 15.0)
            return found
        finally:
            events.close()


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
    """LiteLLM: three of four models answer 429, 401 and 500 -> 200; each retry another model, each row closed"""
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
        f"{[a.status_code for a in answers]}, attempts {[len(r) for r in rows]}, another model each: {apart}, rows {ends}",
    )


@behaviour(*NEEDS)
def scored(stage: Stage) -> Seen:
    """LiteLLM: /cabs/feedback by id, call and response; again, otherwise, unknown, a wrong key -> recorded, duplicate, 409, 404, refused"""
    proxy, said = _proxy(stage), []
    for i, name in enumerate(("id", "call_id", "response_id")):
        answer = proxy.ask(f"Scored {i}?")
        proxy.rows()
        value = {
            "id": answer.headers.get("x-cabs-decision"), "call_id": answer.headers["x-litellm-call-id"], "response_id": answer.json()["id"],
        }[name]  # fmt: skip
        said.append(proxy.post("/cabs/feedback", {name: value, "score": 1.0}).json().get("result"))
    again = [proxy.post("/cabs/feedback", {"response_id": value, "score": s}).status_code for s in (1.0, 0.0)]
    bad = [proxy.post("/cabs/feedback", {"id": "nobody", "score": 1.0}).status_code]
    bad.append(proxy.post("/cabs/feedback", {"response_id": value, "score": 1.0}, key="sk-wrong").status_code)
    good = said == ["recorded"] * 3 and again == [200, 409] and bad[0] == 404 and bad[1] in (400, 401)
    return good, ((said, again, bad))


@behaviour(*NEEDS, "openai")
def openai_through_the_proxy(stage: Stage) -> Seen:
    """LiteLLM: OpenAI's package through the proxy, a loop of four tool steps in a session -> one model, one decision"""
    import openai

    proxy = _proxy(stage)
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0)
    messages, names = user("The weather in the proxy?"), []
    for i in range(4):
        raw = client.chat.completions.with_raw_response.create(
            model="cabs", messages=messages, extra_headers={"x-session-id": "of-the-proxy"}
        )  # fmt: skip
        names.append(raw.headers.get("x-cabs-decision"))
        call = {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        messages = [
            *messages, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": "rain"},
        ]  # fmt: skip
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
    """LiteLLM: the proxy is killed with -9 and started again -> every acknowledged decision is kept, and can be scored"""
    proxy = _proxy(stage)
    answers = [proxy.ask(f"Before the kill {i}?") for i in range(5)]
    proxy.kill()
    proxy.start()
    kept = {d.id for d in proxy.rows()}
    names = [a.headers["x-cabs-decision"] for a in answers]
    said = proxy.post("/cabs/feedback", {"id": names[-1], "score": 1.0}).json().get("result")
    good = set(names) <= kept and said == "recorded" and proxy.ask().status_code == 200
    return good, f"{len(set(names) - kept)} of 5 lost, {said}"
