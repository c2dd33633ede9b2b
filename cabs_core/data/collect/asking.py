"""Asking models: many calls at a time, each model at its pace, within a budget, over failures, resumable."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from cabs_core.base.units import duration, money
from cabs_core.data.collect.calls import AskedModel, Question, Reply, read_reply, unasked
from cabs_core.data.collect.store import AnswerStore, StoredAnswer
from cabs_core.data.endpoints.dialects import PATHS
from cabs_core.data.endpoints.replies import Meaning
from cabs_core.data.pool_files.collect import Collect, Limit

if TYPE_CHECKING:
    import aiohttp

#: seconds of the first wait after a failure; it doubles up to the longest
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
#: refusals of a call as it is (HTTP 400), without an answer between, after which the model is given up
_REFUSALS = 5
#: calls whose answers are looked up at a time
_LOOKED_UP = 500
#: bytes of a reply that are read
_LARGEST = 32 << 20


class Purse:
    """What may still be spent, USD. What is under way counts with the most that it can cost."""

    def __init__(self, most: float, spent: float):
        self.most, self.spent, self.reserved, self.refused = most, spent, 0.0, False
        self._under_way, self._waiting = 0, list[asyncio.Future[None]]()

    async def take(self, bound: float) -> bool:
        """Reserve the most that a call can cost; False: it could pass the limit, and nothing is sent.

        A call that would fit but for what is under way waits: most cost a small part of what they can.
        """
        while self.spent + self.reserved + bound > self.most * (1 + 1e-12):
            if not self._under_way or self.spent + bound > self.most * (1 + 1e-12):
                self.refused = True
                return False
            end = asyncio.get_running_loop().create_future()
            self._waiting.append(end)
            await end
        self.reserved += bound
        self._under_way += 1
        return True

    def allows(self, bound: float) -> bool:
        """Whether so much more can be spent; what was refused before counts no more."""
        self.refused = False
        return self.spent + bound <= self.most

    def settle(self, bound: float, usd: float) -> None:
        """A call ended, and cost `usd`."""
        self._under_way -= 1
        self.reserved = max(0.0, self.reserved - bound) if self._under_way else 0.0
        self.spent += usd
        waiting, self._waiting = self._waiting, []
        for end in waiting:
            if not end.done():
                end.set_result(None)


@dataclass
class ModelRun:
    """One model: how it is doing.

    Attributes:
        state: ok; or why it was given up (`given up: ...`), or `budget`.
        asked, answered, again: requests sent, answers, repeats. known: answers there before.
    """

    target: AskedModel
    limit: Limit
    state: str = "ok"
    asked: int = 0
    answered: int = 0
    again: int = 0
    known: int = 0
    unanswered: int = 0
    usd: float = 0.0
    note: str = ""
    blocked_until: float = 0.0
    _next: float = 0.0
    _since: float = 0.0
    _refusals: int = 0
    _waits: int = 0

    @property
    def open(self) -> bool:
        """Whether it may be asked."""
        return self.state == "ok"

    def reopen(self) -> None:
        """A model that the budget closed may be asked again."""
        if self.state == "budget":
            self.state, self.unanswered = "ok", 0

    def began(self) -> None:
        """Count patience from now on."""
        self._since = time.monotonic()

    async def turn(self) -> None:
        """Wait until this model may be asked."""
        while True:
            now = time.monotonic()
            until = self.blocked_until
            if self.limit.per_minute:
                until = max(until, self._next)
            if until <= now:
                break
            await asyncio.sleep(until - now)
        if self.limit.per_minute:
            self._next = max(self._next, time.monotonic()) + 60.0 / self.limit.per_minute

    def good(self) -> None:
        """An answer came."""
        self._since, self._refusals, self._waits = time.monotonic(), 0, 0

    def bad(self, reply: Reply, patience: float) -> None:
        """A failure: wait, or give the model up."""
        self.note = reply.note
        busy = reply.means is Meaning.WAIT
        if reply.means is Meaning.ACCOUNT:
            self.state = f"given up: {reply.note}"
        elif reply.means in (Meaning.CALLER, Meaning.MODEL_REFUSES_FIELD):
            self._refusals += 1
            if self._refusals >= _REFUSALS:
                self.state = f"given up: {_REFUSALS} calls in a row were refused ({reply.note})"
        else:
            now = time.monotonic()
            if now - self._since > patience:
                what = "too many requests" if busy else "no answer"
                self.state = f"given up: {what} for {now - self._since:.0f} s ({reply.note})"
            if reply.wait is not None:
                self.blocked_until = max(self.blocked_until, now + reply.wait)
            elif busy and self.blocked_until <= now:
                self._waits += 1
                pause = min(_FIRST_WAIT * 2 ** (self._waits - 1), _LONGEST_WAIT)
                self.blocked_until = now + pause * random.uniform(0.8, 1.2)


@dataclass
class Tally:
    """How far a collection is."""

    total: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    _last_notice: float = field(default_factory=time.monotonic)

    def tell(self, purse: Purse, notify: Callable[[str], None]) -> None:
        """Say it, at most once in five seconds."""
        now = time.monotonic()
        if now - self._last_notice < 5.0:
            return
        self._last_notice, seconds = now, max(now - self.began, 1e-9)
        rate = self.done / seconds
        left = f", about {duration((self.total - self.done) / rate)} left" if rate > 0 else ""
        notify(
            f"{self.done:,} of {self.total:,} calls, {rate:.1f} a second{left}; "
            f"{money(purse.spent)} of at most {money(purse.most)} spent"
        )


def ask(
    calls: Callable[[AskedModel], Iterable[Question]],
    models: Sequence[AskedModel],
    progress: Tally,
    collect: Collect,
    store: AnswerStore,
    purse: Purse,
    notify: Callable[[str], None],
    lanes: dict[str, ModelRun],
) -> float:
    """Make every call that has no answer yet, all models side by side; a model that cannot be asked stops no
    other. What was spent in this round, USD.

    Args:
        calls: the calls to one model, in order, not all in memory. progress: hears of every call.
        purse: what may be spent; `refused` says whether it stopped a call.
        lanes: {model: how it is doing}, those of an earlier round or none; a model that was given up is not
            asked.
    """
    for target in models:
        lanes.setdefault(target.name, ModelRun(target, collect.limits.get(target.name, Limit())))
    before = purse.spent
    import aiohttp  # noqa: PLC0415  (the library is imported and replays without it)

    async def run() -> None:
        limit = sum(lanes[t.name].limit.concurrency for t in models)
        connector = aiohttp.TCPConnector(limit=max(limit, 1))
        # no cookies, no proxies of the environment: nothing goes anywhere but to the upstreams
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as client:
            async with asyncio.TaskGroup() as group:
                for t in models:
                    group.create_task(
                        _lane(client, lanes[t.name], calls(t), collect, store, purse, progress, notify)
                    )

    try:
        asyncio.run(run())
    except BaseExceptionGroup as group:  # a store that cannot be written to, say
        first = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return purse.spent - before


async def _lane(
    client: aiohttp.ClientSession,
    lane: ModelRun,
    calls: Iterable[Question],
    collect: Collect,
    store: AnswerStore,
    purse: Purse,
    progress: Tally,
    notify: Callable[[str], None],
) -> None:
    """All calls to one model, by as many workers as it may have calls under way."""
    lane.began()
    waiting = _unanswered(lane, iter(calls), store, progress)

    async def worker() -> None:
        for call in waiting:
            if not lane.open:
                lane.unanswered += 1
                continue
            await _call(client, lane, call, collect, store, purse)
            progress.done += 1
            progress.tell(purse, notify)

    async with asyncio.TaskGroup() as group:
        for _ in range(lane.limit.concurrency):
            group.create_task(worker())


def _unanswered(
    lane: ModelRun, calls: Iterator[Question], store: AnswerStore, progress: Tally
) -> Iterator[Question]:
    """The calls that have no answer, looked up some at a time; one asked twice is made once."""
    yielded: set[str] = set()
    while True:
        part = list(islice(calls, _LOOKED_UP))
        if not part:
            return
        answered = store.known([call.key for call in part])
        for call in part:
            if call.key in answered:
                lane.known += 1
                progress.done += 1
                progress.began = progress.began if lane.asked else time.monotonic()
            elif call.key not in yielded:
                yielded.add(call.key)
                yield call


async def _call(
    client: aiohttp.ClientSession,
    lane: ModelRun,
    call: Question,
    collect: Collect,
    store: AnswerStore,
    purse: Purse,
) -> None:
    """One call until it has an answer, or cannot have one now."""
    bound, failures = call.bound, 0
    if (lacks := call.lacks) is not None:
        store.receive(
            store.send(call.key, lane.target.name, 0.0), unasked(call, "rejected", f"not asked: it {lacks}")
        )
        lane.answered += 1
        return
    while lane.open:
        await lane.turn()
        if not lane.open:
            break
        if not await purse.take(bound):
            lane.state = "budget"
            break
        number = store.send(call.key, lane.target.name, bound)
        lane.asked += 1
        reply, seconds = await _post(client, call)
        usd = bound if reply.billed else 0.0
        end = reply.answer or StoredAnswer(
            call.key, lane.target.name, "failed", usd=usd, seconds=seconds, note=reply.note
        )
        store.receive(number, end)
        purse.settle(bound, end.usd)
        lane.usd += end.usd
        if reply.answer is not None:
            lane.answered += 1
            lane.good()
            return
        lane.bad(reply, collect.patience)
        if reply.means in (Meaning.CALLER, Meaning.MODEL_REFUSES_FIELD):
            break
        busy = reply.means is Meaning.WAIT
        failures += not busy
        if failures >= collect.attempts or not lane.open:
            break
        lane.again += 1
        if not busy and reply.wait is None:
            await asyncio.sleep(
                min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT) * random.uniform(0.8, 1.2)
            )
    lane.unanswered += 1


async def _post(client: aiohttp.ClientSession, call: Question) -> tuple[Reply, float]:
    import aiohttp  # noqa: PLC0415  (as above)

    upstream, dialect = call.target.upstream, call.target.dialect
    headers = {"content-type": "application/json", **upstream.headers(dialect)}
    begin = time.perf_counter()
    limits = aiohttp.ClientTimeout(total=None, connect=upstream.timeout, sock_read=upstream.timeout)
    try:
        async with client.post(
            f"{upstream.url}{PATHS[dialect]}",
            json=call.body,
            headers=headers,
            allow_redirects=False,
            timeout=limits,
        ) as response:
            parts, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > _LARGEST:
                    raise ValueError("a reply of more than 32 MiB")
                parts.append(chunk)
            seconds = time.perf_counter() - begin
            return read_reply(call, response.status, response.headers, b"".join(parts), seconds), seconds
    except aiohttp.ClientConnectorError as error:
        reply = Reply(Meaning.RETRY, note=f"it cannot be reached ({type(error).__name__})")
    except TimeoutError:
        reply = Reply(Meaning.RETRY, note=f"no answer within {upstream.timeout:g} s", billed=True)
    except (aiohttp.ClientError, ValueError) as error:
        reply = Reply(Meaning.RETRY, note=f"it broke off ({type(error).__name__})", billed=True)
    return reply, time.perf_counter() - begin
