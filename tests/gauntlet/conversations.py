"""It knows a conversation: its model stays, and it is one decision."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .play import Seen, behaviour
from .stage import TEXT, Server, Stage, user

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
#: what stands before every question; a model that read it has it in its cache, so a switch costs something
RULES = "Be kind to whoever asks. " * 1_000


def ruled(content: Any) -> list[dict[str, Any]]:
    """A conversation of long instructions and one message."""
    return [{"role": "system", "content": RULES}, *user(content)]


def _eager(stage: Stage) -> Server:
    """A server that explores nine times of ten."""
    return stage.server("eager", options=("--epsilon", "0.9"))


def _turns(server: Server, turns: int, **session: Any) -> list[str]:
    """Models of the turns of a conversation."""
    messages, models = ruled(TEXT), []
    for _ in range(turns):
        answer = server.ask(messages, **session)
        models.append(answer.headers["x-cabs-model"])
        messages = [*messages, {"role": "assistant", "content": "Four."}, *user("And then?")]
    return models


@behaviour(short=True)
def derived(stage: Stage) -> Seen:
    """Eight turns of a conversation that nobody named, nine tenths exploration -> one model"""
    models = _turns(_eager(stage), 8)
    return len(set(models)) == 1, f"{len(set(models))} models"


@behaviour(short=True)
def by_header(stage: Stage) -> Seen:
    """Unrelated requests with one x-session-id -> one model"""
    server = _eager(stage)
    headers = {"x-session-id": "mine"}
    models = {server.ask(ruled(f"Question {i}"), headers=headers).headers["x-cabs-model"] for i in range(8)}
    return len(models) == 1, f"{len(models)} models"


@behaviour()
def by_metadata(stage: Stage) -> Seen:
    """The session stands in metadata.session_id -> one model"""
    server = _eager(stage)
    about = {"session_id": "of-metadata"}
    models = {server.ask(ruled(f"Question {i}"), metadata=about).headers["x-cabs-model"] for i in range(8)}
    return len(models) == 1, f"{len(models)} models"


@behaviour()
def by_previous_response(stage: Stage) -> Seen:
    """/v1/responses with previous_response_id -> one model"""
    server, previous, models = _eager(stage), None, set()
    for i in range(6):
        more = {} if previous is None else {"previous_response_id": previous}
        answer = server.post(
            "/v1/responses", {"model": "cabs", "instructions": RULES, "input": f"Question {i}", **more}
        )
        models.add(answer.headers["x-cabs-model"])
        previous = answer.json()["id"]
        server.rows()
    return len(models) == 1, f"{len(models)} models"


@behaviour(short=True)
def chains_over_keys(stage: Stage) -> Seen:
    """Forty chains of six turns by previous_response_id, over three keys that know their own responses only
    -> none is lost"""
    server = stage.fresh(
        changes={i: {"key_env": f"KEY_{i % 3}"} for i in range(4)},
        options=("--epsilon", "0.9"),
        environment={f"KEY_{i}": f"secret-{i}" for i in range(3)},
    )
    lost, models = 0, set()
    for chain in range(40):
        previous: str | None = None
        for turn in range(6):
            more = {} if previous is None else {"previous_response_id": previous}
            body = {"model": "cabs", "instructions": RULES, "input": f"Question {turn} of {chain}", **more}
            answer = server.post("/v1/responses", body)
            if answer.status_code != 200:
                lost += 1
                break
            models.add(answer.headers["x-cabs-model"])
            previous = answer.json()["id"]
    return lost == 0 and len(models) > 2, f"{lost} of 40 lost, over {len(models)} models"


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


@behaviour()
def strangers(stage: Stage) -> Seen:
    """Forty conversations that begin with the same words -> draws of their own"""
    server = _eager(stage)
    models = {server.ask().headers["x-cabs-model"] for _ in range(40)}
    return len(models) > 1, f"{len(models)} models"


@behaviour(short=True)
def tool_loop(stage: Stage) -> Seen:
    """A loop of 20 tool steps -> one model, one decision in the log"""
    server = _eager(stage)
    messages, models, names = user("What is the weather in the loop?"), set(), []
    for i in range(20):
        answer = server.ask(messages, tools=[TOOL])
        models.add(answer.headers["x-cabs-model"])
        names.append(answer.headers["x-cabs-decision"])
        call = {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        messages = [
            *messages,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": "rain"},
        ]
    drawn = [d for d in server.rows() if d.id in names and d.kept is None]
    return len(models) == 1 and len(drawn) == 1, f"{len(models)} models, {len(drawn)} decisions"


@behaviour(short=True)
def model_fails_within(stage: Stage) -> Seen:
    """The model of a conversation fails -> another one takes over, and then stays"""
    server = _eager(stage)
    headers = {"x-session-id": "will-fail"}
    first = server.ask(ruled(TEXT), headers=headers).headers["x-cabs-model"]
    with server.behaving({server.arms.index(first): "broken"}):
        second = server.ask(ruled(TEXT), headers=headers).headers["x-cabs-model"]
    models = {server.ask(ruled(TEXT), headers=headers).headers["x-cabs-model"] for _ in range(6)}
    good = second != first and models == {second}
    return good, f"another one: {second != first}, afterwards {len(models)} model(s)"


@behaviour(short=True)
def images_only(stage: Stage) -> Seen:
    """A turn with an image alone -> the fallback model answers"""
    server = stage.server()
    answer = server.ask(user([IMAGE]))
    (row,) = server.of(answer)
    good = answer.status_code == 200 and row.mode == "fallback"
    return good, f"{answer.status_code}, {row.arm}, {row.mode}"


@behaviour()
def system_only(stage: Stage) -> Seen:
    """A request of instructions alone -> the fallback model answers"""
    server = stage.server()
    answer = server.ask([{"role": "system", "content": "Say hello."}])
    (row,) = server.of(answer)
    good = answer.status_code == 200 and row.mode == "fallback"
    return good, f"{answer.status_code}, {row.arm}, {row.mode}"


@behaviour(short=True)
def a_score_for_the_session(stage: Stage) -> Seen:
    """A conversation is scored by its session, and its turns by their ids -> one score teaches, credited to
    the decision"""
    server = _eager(stage)
    headers, names = {"x-session-id": "scored"}, []
    for i in range(3):
        names.append(server.ask(ruled(f"Turn {i}"), headers=headers).headers["x-cabs-decision"])
    said = [server.post("/v1/feedback", {"session": "scored", "score": 1.0}).json()["result"]]
    said.append(server.post("/v1/feedback", {"id": names[-1], "score": 1.0}).json()["result"])
    (drawn,) = [d for d in server.rows() if d.id in names and d.kept is None]
    good = said == ["recorded", "duplicate"] and drawn.id == names[0]
    return good, f"{said}, credited to the first turn: {drawn.id == names[0]}"


def _capable(stage: Stage) -> Server:
    """A server of which only the first model takes what is special."""
    plain = {"input": ["text"], "tools": False, "json_schema": False, "context": 2_000}
    return stage.server("capable", changes=dict.fromkeys((1, 2, 3), plain), options=("--epsilon", "0.9"))


@behaviour(short=True)
def capabilities(stage: Stage) -> Seen:
    """Requests with an image, tools, a JSON schema, 5,000 tokens -> only to the model that takes them;
    propensity 1"""
    server = _capable(stage)
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    seen = {}
    for what, body in {
        "image": {"messages": user([{"type": "text", "text": TEXT}, IMAGE])},
        "tools": {"messages": user("Rain?"), "tools": [TOOL]},
        "schema": {"messages": user("As JSON?"), "response_format": schema},
        "long": {"messages": user("word " * 5_000)},
    }.items():
        rows = [d for _ in range(4) for d in server.of(server.ask(**body))]
        seen[what] = all(d.arm == server.arms[0] and d.p == 1.0 for d in rows if d.kept is None)
    free = {server.ask(user(f"Plain question {i}")).headers["x-cabs-model"] for i in range(30)}
    return all(seen.values()) and len(free) > 1, f"{seen}, plain requests: {len(free)} models"


@behaviour(short=True)
def no_model_left(stage: Stage) -> Seen:
    """A request that no model can take -> 400 that says of each why"""
    server = stage.fresh(changes={i: {"input": ["text"]} for i in range(4)})
    answer = server.ask(user([{"type": "text", "text": TEXT}, IMAGE]))
    text = answer.json()["error"]["message"]
    return answer.status_code == 400 and text.count("takes no image") == 4, f"{answer.status_code}: {text}"


@behaviour()
def params(stage: Stage) -> Seen:
    """An upstream sets reasoning_effort -> every request to it carries it, others do not"""
    server = stage.fresh(changes={0: {"params": {"reasoning_effort": "low"}}})
    for arm in server.arms[:2]:
        server.ask(model=arm)
    seen = [server.received(i)["body"].get("reasoning_effort") for i in (0, 1)]
    return seen == ["low", None], seen
