"""It counts: every dollar that a provider bills is in the log."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cabs_core.router import EventLog

from .play import Seen, behaviour
from .stage import PRICE, TEXT, USUAL, Stage, near, user


def _cost(stage: Stage, word: str, expected: float, **price: float) -> Seen:
    server = stage.fresh(changes={i: {"price": {**PRICE, **price}} for i in range(4)})
    server.behave(dict.fromkeys(range(4), word))
    (row,) = server.of(server.ask())
    return near(row.cost, expected) and not row.estimated, f"{row.cost:g} USD, expected {expected:g}"


@behaviour(short=True)
def cached(stage: Stage) -> Seen:
    """9,000 of 10,000 tokens come from the provider's cache, at a tenth of the price -> charged so"""
    return _cost(stage, "cached", (1_000 * 100 + 9_000 * 10 + 100 * 200) / 1e6, cached=10.0)


@behaviour()
def cached_without_a_price(stage: Stage) -> Seen:
    """The file gives no price of cached tokens -> they count half of input"""
    return _cost(stage, "cached", (1_000 * 100 + 9_000 * 50 + 100 * 200) / 1e6)


@behaviour()
def reasoning(stage: Stage) -> Seen:
    """45 of 50 tokens out are reasoning, with a price of its own -> charged so"""
    return _cost(stage, "thinks", (10 * 100 + 5 * 200 + 45 * 400) / 1e6, reasoning=400.0)


def _odd(word: str, stream: bool) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        with server.behaving(word):
            answer = server.ask(stream=stream)
            (row,) = server.of(answer)
        good = (
            answer.status_code == 200 and row.status == "answered" and row.estimated and 0 < row.cost < 0.05
        )
        return good, f"{answer.status_code}, {row.status}, estimated {row.cost:g} USD"

    return play


for _word, _what in (
    ("negative", "negative"),
    ("nan", "NaN"),
    ("digits", "of 400 digits"),
    ("uncounted", "absent"),
):
    for _stream in (False, True):
        behaviour(
            says=f"Usage{' of a stream' * _stream} is {_what} -> answered, cost estimated and bounded",
            short=_word == "digits",
        )(_odd(_word, _stream))


@behaviour(short=True)
def anthropics_form(stage: Stage) -> Seen:
    """Usage comes as Anthropic reports it (input_tokens) -> the same cost"""
    server = stage.server()
    body = {"model": "cabs", "max_tokens": 50, "messages": user(TEXT)}
    (row,) = server.of(server.post("/v1/messages", body))
    return near(row.cost, USUAL), f"{row.cost:g} USD"


@behaviour(short=True)
def the_bill_of_all_ways(stage: Stage) -> Seen:
    """Chat, messages, responses and completions, whole and streamed, reasoning in the total alone, a
    twentieth of the calls
    fails -> log and bill differ by less than .1 %"""
    server = stage.fresh()
    server.behave({0: "often", 1: "beside", 2: "often", 3: "cached"})
    paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")

    def ask(i: int) -> int:
        path = paths[i % 4]
        said = (
            {"prompt": TEXT}
            if path.endswith("/completions") and "chat" not in path
            else {"messages": user(TEXT)}
        )
        said = {"input": TEXT} if path.endswith("responses") else said
        body = {
            "model": "cabs" if i % 3 else server.arms[i % 4],
            "max_tokens": 50,
            "stream": i % 2 == 0,
            **said,
        }
        return server.post(path, body).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(ask, range(400)))
    rows = server.rows()
    logged = sum(d.cost or 0.0 for d in rows)
    billed = (
        sum(
            into * PRICE["input"]
            + out * PRICE["output"]
            - (0 if number != 3 else cached * 0.5 * PRICE["input"])
            for number, (calls, into, out) in enumerate(server.bill())
            for cached in [0.9 * into]
        )
        / 1e6
    )
    off = abs(logged / billed - 1.0)
    return off < 1e-3 and set(codes) <= {
        200,
        500,
    }, f"{len(rows)} calls, {logged:.6g} USD of {billed:.6g}, off by {off:.2g}"


@behaviour(short=True)
def the_bill(stage: Stage) -> Seen:
    """300 requests, half of them streams, a twentieth of the calls fail -> no error, log and bill differ by
    less than .1 %"""
    server = stage.fresh()
    server.behave(dict.fromkeys(range(4), "often"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: server.ask(stream=i % 2 == 0), range(300)))
    wrong = [a.status_code for a in answers if a.status_code != 200]
    server.rows()
    events = EventLog(server.log, read_only=True)
    logged = events.spent()
    events.close()
    billed = sum(i * PRICE["input"] + o * PRICE["output"] for _, i, o in server.bill()) / 1e6
    good = not wrong and abs(logged / billed - 1) < 1e-3
    return good, f"{len(wrong)} errors, billed {billed:.4f}, logged {logged:.4f} USD"


@behaviour()
def named_calls_count(stage: Stage) -> Seen:
    """A client names a model itself -> the call is in the log with its cost, and is no draw"""
    server = stage.server()
    answer = server.ask(model=server.arms[1])
    (row,) = server.of(answer)
    good = near(row.cost, USUAL) and "x-cabs-decision" not in answer.headers and row.arm == server.arms[1]
    return good, f"{row.arm}, {row.cost:g} USD, mode {row.mode}"


@behaviour(short=True)
def a_long_context_moves_nobody(stage: Stage) -> Seen:
    """One conversation of 40,000 tokens, scored 1.0, in a router that learns -> the models' shares of later
    traffic stay"""
    server = stage.fresh("hier_mix", options=("--epsilon", "0", "--sticky", "off"))

    def shares() -> list[str]:
        return [
            server.ask(user(f"Question {i}: what is {i} plus two?")).headers["x-cabs-model"]
            for i in range(25)
        ]

    before = shares()
    favourite = max(set(before), key=before.count)
    long = [*user("Remember this. " * 10_000), {"role": "assistant", "content": "Yes."}, *user(TEXT)]
    for _ in range(2):
        said = server.ask(long)
        server.post("/v1/feedback", {"id": said.headers["x-cabs-decision"], "score": 1.0})
    server.rows()
    after = shares()
    good = after.count(favourite) >= before.count(favourite) - 5
    return good, f"{before.count(favourite)} of 25 before, {after.count(favourite)} after"


@behaviour()
def savings_are_shown(stage: Stage) -> Seen:
    """Traffic was routed -> /metrics says what it cost, and what one fixed model would have cost"""
    server = stage.server()
    for _ in range(5):
        server.ask()
    server.rows()
    found = server.metrics()
    routed, fixed = (found.get(f"cabs_{n}_cost_usd_total", 0.0) for n in ("routed", "fixed_model"))
    return routed > 0 and fixed > 0, f"routed {routed:.4f}, fixed {fixed:.4f} USD"
