"""It counts: every dollar that a provider bills is in the log, and no request moves the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from .play import Seen, behaviour
from .stage import PRICE, TEXT, Stage, user


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
