"""Condition `sessions`: queries of a task as turns of conversations, where a switch loses the prompt cache.

docs/model-pools.md, "Conversations", says how they are made, what a turn costs, who answers it and what a
decision is told. All this depends on the trial alone, so that differences of policies are paired.

With a_j the price of a token in of model j, H_j the tokens of the earlier turns and R_j those of them that
the last turn read as well,

    cost of model j = its cost in the table + a_j H_j                             another than the last turn's
                    = its cost in the table + a_j (H_j - R_j) + cached a_j R_j    the last turn's model

A kept turn is no decision: its propensity is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cabs_core.algorithms.policies.play import Lane, Stream
from cabs_core.algorithms.policies.request import Decision, Request
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.threads import over_threads
from cabs_core.base.utility import clipped_utility, may_keep, worth_a_switch
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.data.pool_files.sessions import Sessions

#: price of a token out, in prices of one in, where the table has no token counts (list prices: 2 to 8)
ANSWER_PRICE = 4.0


@dataclass(frozen=True)
class Turns:
    """The conversations of one trial: number of each turn `[T]`, from 0, in a tool loop or not `[T]`."""

    number: np.ndarray
    in_tools: np.ndarray


@dataclass(frozen=True)
class TokenCounts:
    """Tokens `[n, K]` that each model reads and writes on each query, and its price `[K]`, USD each read."""

    read: np.ndarray
    written: np.ndarray
    price: np.ndarray


def tokens_of(problem: ReplayProblem, options: Sessions) -> TokenCounts:
    """The problem's own counts, or what `input_share` says of its costs (see the module)."""
    if problem.input_tokens is not None and problem.output_tokens is not None:
        assert problem.input_prices is not None
        read, written = (
            np.asarray(x, dtype=np.float64) for x in (problem.input_tokens, problem.output_tokens)
        )
        return TokenCounts(read, written, problem.input_prices)
    lengths, offline = problem.prompt_lengths, problem.offline_prompt_lengths
    read = np.ones(problem.n) if lengths is None else np.maximum(lengths / BYTES_A_TOKEN, 1.0)
    costs, counts = problem.costs, read
    if len(problem.offline_costs):
        costs = problem.offline_costs
        counts = np.ones(len(costs)) if offline is None else np.maximum(offline / BYTES_A_TOKEN, 1.0)
    price = options.input_share * costs.mean(axis=0) / counts.mean()
    out = (1.0 - options.input_share) * problem.costs / np.where(price > 0, ANSWER_PRICE * price, np.inf)
    return TokenCounts(np.repeat(read[:, None], problem.K, axis=1), out, price)


def in_conversations(
    order: np.ndarray,
    tasks: np.ndarray,
    times: np.ndarray | None,
    options: Sessions,
    generator: np.random.Generator,
) -> tuple[np.ndarray, Turns]:
    """(the queries of an order in the sequence of their conversations, the conversations).

    Args:
        tasks: names `[n]`; times: `[n]` or None, conversations hold queries of one time.
    """
    total = len(order)
    groups = np.unique(tasks, return_inverse=True)[1]
    if times is not None:
        groups = groups * total + np.unique(times, return_inverse=True)[1]
    waiting: dict[int, list[int]] = {}
    for place in reversed(range(total)):
        waiting.setdefault(int(groups[order[place]]), []).append(place)
    lengths = generator.geometric(1.0 / options.turns, size=total)
    places, number = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    played = np.zeros(total, dtype=bool)
    filled = conversation = 0
    for place in range(total):
        if played[place]:
            continue
        queue = waiting[int(groups[order[place]])]
        for turn in range(min(int(lengths[conversation]), len(queue))):
            places[filled], number[filled] = queue.pop(), turn
            played[places[filled]] = True
            filled += 1
        conversation += 1
    in_tools = (number > 0) & (generator.random(total) < options.tools)
    return order[places], Turns(number, in_tools)


class Context:
    """What one conversation after another has cost so far: what the next turn costs, by who answered."""

    def __init__(self, tokens: TokenCounts, cached: float):
        self.tokens, self.saved = tokens, (1.0 - cached) * tokens.price
        self.begin()

    def begin(self) -> None:
        """A new conversation."""
        self.before = np.zeros(len(self.tokens.price))
        self.cache = np.zeros_like(self.before)
        self.last = -1

    def context_costs(self) -> np.ndarray:
        """USD `[K]` of the earlier turns of the conversation, read by each model without a cache."""
        return self.tokens.price * self.before

    def cache_worth(self) -> float:
        """USD that the cache of the last turn's model saves; 0 in a first turn."""
        return float(self.saved[self.last] * self.cache[self.last]) if self.last >= 0 else 0.0

    def costs(self, table: np.ndarray) -> np.ndarray:
        """USD `[K]` of a turn whose query alone costs `table` `[K]`."""
        usd: np.ndarray = table + self.context_costs()
        if self.last >= 0:
            usd[self.last] -= self.cache_worth()
        return usd

    def answered(self, row: int, arm: int) -> None:
        """Model `arm` answered the turn with query `row`."""
        self.cache = self.before + self.tokens.read[row]
        self.before = self.cache + self.tokens.written[row, arm]
        self.last = arm


def kept_costs(
    problem: ReplayProblem, orders: Sequence[np.ndarray], turns: Sequence[Turns], options: Sessions
) -> np.ndarray:
    """USD `[n, K]`, mean over trials, of each query where one model answers all of its conversation.

    A query that was played in no trial costs what the table says.
    """
    tokens = tokens_of(problem, options)
    total, plays = np.zeros((problem.n, problem.K)), np.zeros(problem.n)
    for order, spoken in zip(orders, turns, strict=True):
        cache = before = np.zeros(problem.K)
        for row, number in zip(order.tolist(), spoken.number.tolist(), strict=True):
            if number == 0:
                cache = before = np.zeros(problem.K)
            total[row] += tokens.price * (before - (1.0 - options.cached) * cache)
            cache = before + tokens.read[row]
            before = cache + tokens.written[row]
        plays[order] += 1
    return problem.costs + total / np.maximum(plays, 1)[:, None]


class Talk:
    """One lane of a replay in conversations; `play` takes the place of the policy's `run`.

    Attributes:
        costs, best, random: `[T]` cost in USD of the answer, clipped utility of the best model of the turn,
            and mean clipped utility of all. kept: bool `[T]`, the turn was no decision.
    """

    def __init__(
        self,
        policy: SafePolicy,
        stream: Stream,
        lane: Lane,
        turns: Turns,
        tokens: TokenCounts,
        options: Sessions,
    ):
        self.policy, self.stream, self.lane, self.turns = policy, stream, lane, turns
        self.sticky = "off" if policy.algorithm.needs_outcomes else options.sticky
        self.context = Context(tokens, options.cached)
        rounds = len(lane.order)
        self.costs, self.best, self.random = (np.zeros(rounds) for _ in range(3))
        self.kept = np.zeros(rounds, dtype=bool)
        key = policy.algorithm.reads().static
        self.predicted = stream.static_scores.get(key or "", stream.predicted_scores)
        self.decision: Decision | None = None
        self.answers: list[tuple[int, np.ndarray]] = []

    def play(self, start: int, stop: int) -> None:
        """Rounds start..stop-1, in order."""
        lane, stream = self.lane, self.stream
        for t in range(start, stop):
            row = int(lane.order[t])
            if self.turns.number[t] == 0:
                self.context.begin()
            costs = self.context.costs(stream.costs[row])
            latencies = None if stream.latencies is None else stream.latencies[row]
            utilities = clipped_utility(
                stream.scores[row], costs, stream.rho, latencies, stream.latency_weight
            )
            arm = self._keeps(t, row)
            if arm is None:
                arm = self._decide(t, row, utilities)
            else:
                self.kept[t], lane.propensities[t] = True, 1.0
                if lane.meta_weights is not None:
                    lane.meta_weights[t] = lane.meta_weights[t - 1]
            lane.actions[t] = arm
            self.costs[t], self.best[t], self.random[t] = costs[arm], utilities.max(), utilities.mean()
            self.answers.append((row, costs))
            self.context.answered(row, arm)
        if stop == len(lane.order):
            self._learn()

    def _keeps(self, t: int, row: int) -> int | None:
        """The model of the last turn, where the rule keeps it."""
        context, in_tools = self.context, bool(self.turns.in_tools[t])
        if context.last < 0 or not may_keep(self.sticky, in_tools):
            return None
        if not in_tools:
            full_costs = self.stream.predicted_costs[row] + context.context_costs()
            if worth_a_switch(
                self.predicted[row], full_costs, context.last, self.stream.rho, context.cache_worth()
            ):
                return None
        return context.last

    def _decide(self, t: int, row: int, utilities: np.ndarray) -> int:
        self._learn()
        if self.policy.algorithm.needs_outcomes:
            self.lane.propensities[t] = 1.0
            return int(np.argmax(utilities))
        self.decision = self.policy.decide(self._request(t, row))
        self.lane.record(t, self.decision, self.policy.algorithm.trace(self.decision))
        return self.decision.arm

    def _request(self, t: int, row: int) -> Request:
        request, more = self.stream.request(row, t), self.context.context_costs()
        assert request.predicted_costs is not None and request.static_costs is not None
        return replace(
            request,
            predicted_costs=request.predicted_costs + more,
            static_costs=request.static_costs + more,
        )

    def _learn(self) -> None:
        """Give the waiting decision its feedback."""
        decision, answers, stream = self.decision, self.answers, self.stream
        self.decision, self.answers = None, []
        if decision is None:
            return
        arm, rows = decision.arm, [row for row, _ in answers]
        scores = stream.scores[rows].mean(axis=0)
        costs = np.mean([each for _, each in answers], axis=0)
        full = {"all_scores": scores, "all_costs": costs} if self.policy.algorithm.full_feedback else {}
        self.policy.update(
            decision,
            float(scores[arm]),
            float(costs[arm]),
            latency_penalty=float(np.mean([stream.latency_penalty(row, arm) for row in rows])),
            deltas=stream.deltas[rows, arm].mean(axis=0),
            **full,
        )


def play_talks(talks: Sequence[Talk], start: int, stop: int, threads: int) -> None:
    """Rounds start..stop-1 of every lane; results do not depend on `threads`."""
    over_threads([partial(talk.play, start, stop) for talk in talks], threads)
