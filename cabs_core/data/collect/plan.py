"""The plan of a collection: its calls and their cost, before any request is sent."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cabs_core.base.errors import DataError, RouterError
from cabs_core.base.secret import secret
from cabs_core.base.units import money
from cabs_core.data.collect.calls import AskedModel, Question, question, targets
from cabs_core.data.collect.prompts import Prompts, read_prompts
from cabs_core.data.collect.scorers import judge as judging
from cabs_core.data.collect.store import WORTHLESS, AnswerStore, StoredAnswer
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.data.endpoints.upstreams import Upstream, load_upstreams
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.collect import Collect, Judge
from cabs_core.data.pool_files.prompts import PromptsPool

#: Output tokens that are expected of a model with fewer than ten known answers, within its limit.
EXPECTED = 200.0
#: Characters of a token in dense text such as code, digits and other scripts. Gives the upper end of the
#: range.
_DENSE = 2.0
#: Characters of a token in plain prose. Gives the lower end of the range.
_PROSE = 5.0
#: Tokens of a short answer. Gives the lower end of the range.
_SHORT = 5.0
#: Prompts whose answers are in memory at a time.
_BLOCK = 500


@dataclass(frozen=True)
class ModelPlan:
    """Calls to one model in one role.

    Attributes:
        model: name of the model.
        role: `answers`, or `judge NAME`.
        calls: number of all calls that are needed.
        known: number of calls that have an answer.
        tokens_in: expected input tokens of the other calls.
        tokens_out: expected output tokens of the other calls.
        usd: expected cost of the other calls, USD.
        low: cost of the other calls if the texts have few tokens and the answers are short, USD.
        high: cost of the other calls if every answer has full length, USD.
        paid: cost of the known answers when they were asked, USD; 0 for a judge.
        today: cost of the known answers at today's price, USD; 0 for a judge.
    """

    model: str
    role: str
    calls: int
    known: int
    tokens_in: float
    tokens_out: float
    usd: float
    low: float
    high: float
    paid: float = 0.0
    today: float = 0.0


@dataclass(frozen=True)
class Collection:
    """A collection with everything that is needed to make it.

    Attributes:
        pool_file: pool file that describes the collection.
        collect: settings of the collection.
        prompts: prompts of the collection, also those beyond the sample.
        models: models to ask.
        judges: {judge: model with which it is asked}.
        order: [N] indices into `prompts`, in the order in which the prompts are asked, drawn by seed.
    """

    pool_file: PoolFile
    collect: Collect
    prompts: Prompts
    models: list[AskedModel]
    judges: dict[str, AskedModel]
    order: np.ndarray

    @property
    def size(self) -> int:
        """Number of prompts that are asked: all prompts, or `collect.sample` if it is set and smaller."""
        sample = self.collect.sample
        if sample is None:
            return len(self.prompts)
        return min(sample, len(self.prompts))

    def calls(self, target: AskedModel, first: int = 0, last: int | None = None) -> Iterator[Question]:
        """Yield the calls that put the prompts `first` to `last` (exclusive) of the order to a model.

        Args:
            last: None for all prompts from `first` on, also those beyond the sample.
        """
        for place in self.order[first:last].tolist():
            yield self.call(target, place)

    def call(self, target: AskedModel, place: int) -> Question:
        """Return the call that puts a prompt to a model.

        Args:
            place: index of the prompt in `prompts`.
        """
        return Question(target, question(self.prompts.texts[place], self.collect.system))

    def spent(self, store: AnswerStore) -> tuple[float, float, int]:
        """Return the cost of the answers to all prompts, also those beyond the sample.

        Calls of judges do not count.

        Returns:
            (USD of the calls that ended, largest cost in USD of the calls without an end, number of calls
            without an end), as `AnswerStore.spent` returns them.
        """
        return store.spent(call.key for target in self.models for call in self.calls(target))

    def answered(self, store: AnswerStore, first: int, last: int) -> int:
        """Return the number of prompts, counted from `first` in the order, that all models have answered.

        Counting ends before the first prompt that lacks an answer, and before `last`.
        """
        least = last - first
        for target in self.models:
            keys = [call.key for call in self.calls(target, first, first + least)]
            known = store.known(keys)
            least = next((row for row, key in enumerate(keys) if key not in known), least)
        return least

    def most_cost(self, store: AnswerStore, number: int) -> float:
        """Return the most that the missing answers of all models to one prompt may cost together, USD.

        Args:
            number: position of the prompt in `order`.
        """
        calls = [self.call(target, int(self.order[number])) for target in self.models]
        known = store.known(call.key for call in calls)
        return sum(call.bound for call in calls if call.key not in known)


def collection_of(pool_file: PoolFile) -> Collection:
    """Return the collection of a pool of kind `collect`, with the prompts and upstreams that the pool names.

    Raises:
        PoolError, DataError, RouterError: a file, a column or a price is missing.
    """
    pool = pool_file.pool
    assert isinstance(pool, PromptsPool)
    collect = pool.collect
    prompts = read_prompts(pool_file)
    names = pool.source_names() or {}
    path = pool_file.existing_file(collect.upstreams, "collect.upstreams")
    upstreams = load_upstreams(path).models
    models = [
        replace(t, name=name, upstream=t.upstream.model_copy(update={"model": t.model}))
        for t, name in zip(targets(collect, upstreams, list(names.values()), str(path)), names, strict=True)
    ]
    order = np.random.default_rng(collect.seed).permutation(len(prompts))
    return Collection(pool_file, collect, prompts, models, _judges(collect, upstreams, str(path)), order)


def _judges(collect: Collect, upstreams: dict[str, Upstream], origin: str) -> dict[str, AskedModel]:
    """Return {judge: model with which it is asked}."""
    judges = {}
    for judge in collect.judges:
        (target,) = targets(collect, upstreams, [judge.model], origin)
        params = {**target.upstream.params, "temperature": 0, "max_tokens": judge.max_tokens}
        judges[judge.called] = AskedModel(judge.model, target.upstream, params, judge.max_tokens)
    return judges


def check_keys(targets: Iterable[AskedModel]) -> None:
    """Check that the API keys of models are set in the environment.

    A key may also stand in a file that the environment names (`base.secret`).

    Raises:
        RouterError: a key is not set, or its file cannot be read.
    """
    for target in targets:
        if target.upstream.key_env and not secret(target.upstream.key_env):
            raise RouterError(
                f"model {target.name} needs {target.upstream.key_env}, which is not set in the environment"
            )


def plan_of(collection: Collection, store: AnswerStore) -> list[ModelPlan]:
    """Return the calls that are left to make for each model and each judge, with their cost and its range.

    The calls are those of the prompts that are asked (`Collection.size`).
    """
    collect = collection.collect
    lines: list[ModelPlan] = []
    out: dict[str, float] = {}
    for target in collection.models:
        calls = list(collection.calls(target, 0, collection.size))
        answers = store.get([c.key for c in calls], texts=False)
        seen = [a.tokens.output for a in answers.values() if a.tokens is not None]
        if len(seen) >= 10:
            out[target.name] = float(np.mean(seen))
        else:
            out[target.name] = min(EXPECTED, target.max_tokens)
        to_ask = [c.characters for c in calls if c.key not in answers]
        line = _line(target, "answers", len(calls), to_ask, out[target.name])
        paid = sum(answer.usd for answer in answers.values())
        today = sum(target.cost_of(answer) for answer in answers.values())
        lines.append(replace(line, paid=paid, today=today))
    for judge in collect.judges:
        target = collection.judges[judge.called]
        lines.append(_line(target, f"judge {judge.called}", *_judged(judge, collection, out, store)))
    return lines


def _judged(
    judge: Judge, collection: Collection, out: dict[str, float], store: AnswerStore
) -> tuple[int, list[int], float]:
    """Count the calls of a judge over the answers that it scores.

    Answers to tasks that the judge leaves out, and answers known to be refused or rejected, need no call. The
    question about a known answer is known exactly, and is not counted as left if the store has its reply.
    The size of other questions is estimated.

    Args:
        out: {model: expected output tokens of its answers}.

    Returns:
        (number of calls, characters of each call without an answer, expected output tokens of a call).
    """
    target = collection.judges[judge.called]
    orders = 1 if judge.against is None else 2
    total = 0
    sizes: list[int] = []
    models = [target.name for target in collection.models]
    applies = [
        i
        for i in collection.order[: collection.size].tolist()
        if not judge.tasks or collection.prompts.tasks[i] in judge.tasks
    ]
    for start in range(0, len(applies), _BLOCK):
        questions: list[Question] = []
        block = applies[start : start + _BLOCK]
        answers = _answers(collection, block, store)
        for i in block:
            prompt = collection.prompts.texts[i]
            base = len(judge.rubric) + 600 + len(prompt)
            theirs = answers.get((judge.against or "", i))
            for name in models:
                if name == judge.against:
                    continue
                mine = answers.get((name, i))
                if mine is not None and mine.state in WORTHLESS:
                    continue  # scored without a question
                total += orders
                if mine is None or (orders == 2 and theirs is None):
                    expected = out[name] + (out.get(judge.against or "", 0.0) if orders == 2 else 0.0)
                    sizes += [int(base + BYTES_A_TOKEN * expected)] * orders
                else:
                    second = "" if theirs is None else theirs.text or ""
                    questions += judging.questions(
                        judge, target, prompt, mine.text or "", second, collection.prompts.rows[i]
                    )
        known = store.known([call.key for call in questions])
        sizes += [call.characters for call in questions if call.key not in known]
    return total, sizes, min(30.0, judge.max_tokens)


def _answers(
    collection: Collection, places: Sequence[int], store: AnswerStore
) -> dict[tuple[str, int], StoredAnswer]:
    """Return {(model, index of the prompt): the answer in the store}.

    Only answers with a text, and answers that are scored without one, are returned.

    Args:
        places: indices of the prompts in `collection.prompts`.
    """
    keys = {collection.call(t, i).key: (t.name, i) for t in collection.models for i in places}
    answers = store.get(list(keys))
    return {keys[k]: a for k, a in answers.items() if a.text is not None or a.state in WORTHLESS}


def _line(target: AskedModel, role: str, calls: int, to_ask: Sequence[int], out: float) -> ModelPlan:
    """Return the plan of a model in one role.

    Args:
        calls: number of all calls.
        to_ask: characters of each call without an answer.
        out: expected output tokens of a call.
    """
    characters = float(sum(to_ask))
    n = len(to_ask)
    tokens_in = characters / BYTES_A_TOKEN
    tokens_out = n * out
    least = target.upstream.usd_of_tokens(characters / _PROSE, n * min(_SHORT, out))
    most = target.upstream.usd_of_tokens(characters / _DENSE, n * target.max_tokens)
    usd = target.upstream.usd_of_tokens(tokens_in, tokens_out)
    return ModelPlan(target.name, role, calls, calls - n, tokens_in, tokens_out, usd, least, most)


def mean_costs(pool_file: PoolFile) -> list[float]:
    """Return the expected cost of a call to each model by its price alone, USD.

    Raises:
        PoolError, DataError, RouterError: prompts or upstreams cannot be read, or there are no models.
    """
    collection = collection_of(pool_file)
    if not collection.models:
        raise DataError("no models")
    mean = float(np.mean([len(t) for t in collection.prompts.texts])) + len(collection.collect.system or "")
    return [
        t.upstream.usd_of_tokens(mean / BYTES_A_TOKEN, min(EXPECTED, t.max_tokens)) for t in collection.models
    ]


def described(lines: Sequence[ModelPlan], collection: Collection, spent: float) -> list[str]:
    """Return the lines of text that `cabs plan` and `cabs collect --dry-run` print.

    The lines are a table with a row for each plan, the sum of the costs, the budgets, and notes on changed
    and doubtful prices.

    Args:
        spent: USD that were spent before.
    """
    collect = collection.collect
    width = max(5, *(len(line.model) for line in lines))
    text = [
        f"{'model':{width}s}  {'for':16s} {'calls':>8s} {'known':>8s} {'tokens in':>11s} {'out':>10s} "
        f"{'USD':>10s}  range"
    ]
    text += [
        f"{x.model:{width}s}  {x.role:16.16s} {x.calls:8,} {x.known:8,} {x.tokens_in:11,.0f} "
        f"{x.tokens_out:10,.0f} {x.usd:10.4f}  {x.low:.4f} to {x.high:.4f}"
        for x in lines
    ]
    usd = sum(line.usd for line in lines)
    low = sum(line.low for line in lines)
    high = sum(line.high for line in lines)
    text.append(f"about {money(usd)} ({money(low)} to {money(high)}); {money(spent)} spent before")
    caps = [
        f"{money(collect.max_usd)} for answers",
        *(f"{money(j.max_usd)} for {j.called}" for j in collect.judges),
    ]
    text.append(f"it stops before it passes {', '.join(caps)} (max_usd)")
    changes = [repriced(line.model, line.paid, line.today) for line in lines]
    notes = [*(sentence for sentence in changes if sentence), *doubts(collection)]
    return text + [f"note: {note}" for note in notes]


def repriced(model: str, paid: float, today: float) -> str:
    """Return a sentence about a model whose price changed since its answers were paid for, otherwise ''."""
    if abs(paid - today) <= 1e-6 * max(paid, today):
        return ""
    return f"the price of {model} changed: its answers cost {money(paid)} and count {money(today)} at today's"


def out_of_budget(collection: Collection, store: AnswerStore, spent: float) -> str:
    """Return a sentence that the budget does not allow the next prompt, or ''.

    The text is '' if the budget allows the next prompt, or if all prompts that are asked have their answers.

    Args:
        spent: USD that were spent before.
    """
    number = collection.answered(store, 0, collection.size)
    if number == collection.size:
        return ""
    most = collection.most_cost(store, number)
    cap = collection.collect.max_usd
    if spent + most <= cap:
        return ""
    return (
        f"the budget ends after {number:,} of {collection.size:,} prompts: {money(cap - spent)} of "
        f"{money(cap)} is left and the next prompt may cost {money(most)}; a higher max_usd goes on"
    )


def doubts(collection: Collection) -> list[str]:
    """Return questions about prices that look like USD per token, not USD per million tokens."""
    asked = {t.name: t.upstream.price for t in (*collection.models, *collection.judges.values())}
    found = [price.doubt(f"models.{name}.price") for name, price in asked.items() if price]
    return [doubt for doubt in found if doubt]


def plan_in_words(pool_file: PoolFile) -> list[str]:
    """Return lines of text on the calls that a pool's collection would make now, and their cost.

    The lines are those of `described`, and a note if the budget does not allow the next prompt.

    Raises:
        PoolError, DataError, RouterError: a file, a column or a price is missing.
    """
    collection = collection_of(pool_file)
    with AnswerStore() as store:
        paid, perhaps, _ = collection.spent(store)
        ended = out_of_budget(collection, store, paid + perhaps)
        lines = described(plan_of(collection, store), collection, paid + perhaps)
        if ended:
            return [*lines, f"note: {ended}"]
        return lines
