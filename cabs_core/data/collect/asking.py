"""Asking of models: many calls at a time, each model at its own pace, within a budget.

Failed calls are repeated, and a model that cannot be asked is given up without stopping the others. A run
that was interrupted can be continued, since every answer is in the store.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from cabs_core.base.units import duration, money
from cabs_core.data.collect.calls import AskedModel, Question, Reply, end_without_text, read_reply
from cabs_core.data.collect.store import AnswerStore, StoredAnswer
from cabs_core.data.endpoints.dialects import PATHS
from cabs_core.data.endpoints.replies import Meaning
from cabs_core.data.pool_files.collect import Collect, Limit

if TYPE_CHECKING:
    import aiohttp

#: Seconds of the first wait after a failure. The wait doubles with each further failure.
_FIRST_WAIT = 0.5
#: Seconds of the longest wait after a failure.
_LONGEST_WAIT = 30.0
#: Refused requests (HTTP 400) without an answer in between after which the model is given up.
_REFUSALS = 5
#: Calls whose answers are looked up at a time.
_LOOKED_UP = 500
#: Largest reply in bytes.
_LARGEST = 32 << 20


class Purse:
    """Budget of a collection, USD. Calls under way count with their largest cost.

    Attributes:
        most: budget.
        spent: cost of the calls that ended.
        reserved: largest cost of the calls under way.
        refused: True if a call was refused because it could have passed the budget.
    """

    def __init__(self, most: float, spent: float):
        self.most = most
        self.spent = spent
        self.reserved = 0.0
        self.refused = False
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self, bound: float) -> bool:
        """Reserve the largest cost of a call. Return False if the call could pass the budget.

        A call that would fit without the calls under way waits for one of them to end, since most calls cost
        a small part of their largest cost.

        Args:
            bound: largest cost of the call, USD.
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
        """Return True if another call with this largest cost fits into the budget.

        Calls under way are not counted.
        """
        return self.spent + bound <= self.most

    def settle(self, bound: float, usd: float) -> None:
        """Replace the reservation of a call that ended by its cost, and wake the calls that wait.

        Args:
            bound: largest cost that was reserved, USD.
            usd: cost of the call, USD.
        """
        self._under_way -= 1
        if self._under_way:
            self.reserved = max(0.0, self.reserved - bound)
        else:
            self.reserved = 0.0
        self.spent += usd
        waiting = self._waiting
        self._waiting = []
        for end in waiting:
            if not end.done():
                end.set_result(None)


@dataclass
class ModelRun:
    """State of one model in a run.

    Attributes:
        target: the model.
        limit: requests per minute and calls under way that the model may have.
        state: `ok`, `budget` if the budget ended, or `given up: ...` with the reason.
        asked: requests that were sent.
        answered: calls that got a final answer in this run.
        again: repeated requests.
        known: calls that had an answer before.
        unanswered: calls that have no answer.
        usd: cost of the run, USD.
        note: words about the last failure.
        blocked_until: time of the monotonic clock before which the model is not asked.
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
        """True if the model may be asked."""
        return self.state == "ok"

    def reopen(self) -> None:
        """Allow calls again to a model for which the budget had ended, and set `unanswered` to 0.

        A model in another state stays as it is.
        """
        if self.state == "budget":
            self.state = "ok"
            self.unanswered = 0

    def start_clock(self) -> None:
        """Start the clock that measures the seconds since the model's last answer."""
        self._since = time.monotonic()

    async def turn(self) -> None:
        """Wait until the model may be asked.

        The limit of requests per minute and the wait after a failure (`blocked_until`) must have passed.
        """
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
        """Record that an answer came, and forget the failures before it."""
        self._since = time.monotonic()
        self._refusals = 0
        self._waits = 0

    def bad(self, reply: Reply, patience: float) -> None:
        """Record a failure, and give the model up if it cannot be asked.

        A model is given up if its account is refused, or after `_REFUSALS` refused requests in a row.
        After other failures `blocked_until` is set if the reply says how long to wait, or if it says "too
        many requests" without a time. The wait then begins at `_FIRST_WAIT` and doubles each time.

        Args:
            patience: seconds without an answer after which the model is given up, too.
        """
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
    """Progress of a collection.

    Attributes:
        total: number of calls.
        done: calls that ended or had an answer before.
        began: time of the monotonic clock from which the speed is measured.
    """

    total: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    _last_notice: float = field(default_factory=time.monotonic)

    def tell(self, purse: Purse, notify: Callable[[str], None]) -> None:
        """Report the progress, at most once in five seconds.

        Args:
            notify: called with the sentence.
        """
        now = time.monotonic()
        if now - self._last_notice < 5.0:
            return
        self._last_notice = now
        rate = self.done / max(now - self.began, 1e-9)
        if rate > 0:
            left = f", about {duration((self.total - self.done) / rate)} left"
        else:
            left = ""
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
    runs: dict[str, ModelRun],
) -> float:
    """Make every call that has no answer yet, to all models in parallel, and return the cost.

    A model that cannot be asked does not stop the others.

    Args:
        calls: function that returns the calls to one model in order. Its result may be a generator, since
            the calls are not all read into memory.
        models: models to ask.
        progress: progress of the collection, which is updated.
        collect: settings of the collection.
        store: store in which every call and its end are recorded.
        purse: budget. Its `refused` becomes True if the budget stopped a call.
        notify: called with sentences about the progress.
        runs: {model: its state} of earlier rounds, which is updated. A model is asked only if its
            state is `ok`.

    Returns:
        Cost of this round, USD.
    """
    for target in models:
        runs.setdefault(target.name, ModelRun(target, collect.limits.get(target.name, Limit())))
    before = purse.spent
    import aiohttp  # noqa: PLC0415  (the library is imported and replays without it)

    async def ask_all() -> None:
        limit = sum(runs[t.name].limit.concurrency for t in models)
        connector = aiohttp.TCPConnector(limit=max(limit, 1))
        # no cookies, no proxies of the environment: nothing goes anywhere but to the upstreams
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as client:
            async with asyncio.TaskGroup() as group:
                for t in models:
                    group.create_task(
                        _run_model(client, runs[t.name], calls(t), collect, store, purse, progress, notify)
                    )

    try:
        asyncio.run(ask_all())
    except BaseExceptionGroup as group:  # for example, the store cannot be written to
        first = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return purse.spent - before


async def _run_model(
    client: aiohttp.ClientSession,
    run: ModelRun,
    calls: Iterable[Question],
    collect: Collect,
    store: AnswerStore,
    purse: Purse,
    progress: Tally,
    notify: Callable[[str], None],
) -> None:
    """Make all calls to one model that have no answer, `limit.concurrency` of them at a time."""
    run.start_clock()
    waiting = _unanswered(run, iter(calls), store, progress)

    async def worker() -> None:
        for call in waiting:
            if not run.open:
                run.unanswered += 1
                continue
            await _call(client, run, call, collect, store, purse)
            progress.done += 1
            progress.tell(purse, notify)

    async with asyncio.TaskGroup() as group:
        for _ in range(run.limit.concurrency):
            group.create_task(worker())


def _unanswered(
    run: ModelRun, calls: Iterator[Question], store: AnswerStore, progress: Tally
) -> Iterator[Question]:
    """Yield the calls that have no answer in the store, each once, and count the others as known."""
    yielded: set[str] = set()
    while True:
        part = list(islice(calls, _LOOKED_UP))
        if not part:
            return
        answered = store.known([call.key for call in part])
        for call in part:
            if call.key in answered:
                run.known += 1
                progress.done += 1
                if not run.asked:
                    progress.began = time.monotonic()  # looking answers up is no part of the speed
            elif call.key not in yielded:
                yielded.add(call.key)
                yield call


async def _call(
    client: aiohttp.ClientSession,
    run: ModelRun,
    call: Question,
    collect: Collect,
    store: AnswerStore,
    purse: Purse,
) -> None:
    """Make one call, and repeat it after failures until it has a final answer.

    A call that the model cannot take is recorded as rejected, without a request. The call stays without an
    answer if it is refused, after `collect.attempts` failures other than too many requests, if the budget
    ends, or if the model is given up.

    Raises:
        StorageError: the store cannot be written to.
    """
    bound = call.bound
    failures = 0
    lacks = call.lacks
    if lacks is not None:
        store.receive(
            store.send(call.key, run.target.name, 0.0),
            end_without_text(call, "rejected", f"not asked: it {lacks}"),
        )
        run.answered += 1
        return
    while run.open:
        await run.turn()
        if not run.open:
            break
        if not await purse.take(bound):
            run.state = "budget"
            break
        number = store.send(call.key, run.target.name, bound)
        run.asked += 1
        reply, seconds = await _post(client, call)
        usd = bound if reply.billed else 0.0
        end = reply.answer or StoredAnswer(
            call.key, run.target.name, "failed", usd=usd, seconds=seconds, note=reply.note
        )
        store.receive(number, end)
        purse.settle(bound, end.usd)
        run.usd += end.usd
        if reply.answer is not None:
            run.answered += 1
            run.good()
            return
        run.bad(reply, collect.patience)
        if reply.means in (Meaning.CALLER, Meaning.MODEL_REFUSES_FIELD):
            break
        busy = reply.means is Meaning.WAIT
        failures += not busy
        if failures >= collect.attempts or not run.open:
            break
        run.again += 1
        if not busy and reply.wait is None:
            await asyncio.sleep(
                min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT) * random.uniform(0.8, 1.2)
            )
    run.unanswered += 1


async def _post(client: aiohttp.ClientSession, call: Question) -> tuple[Reply, float]:
    """Send a call, and return (reply, seconds that the call took).

    A broken connection, a timeout and a reply of more than 32 MiB give a failure.
    """
    import aiohttp  # noqa: PLC0415  (as above)

    upstream = call.target.upstream
    dialect = call.target.dialect
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
            parts = []
            size = 0
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
