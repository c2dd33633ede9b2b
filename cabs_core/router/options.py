"""What is chosen when a bundle is opened, in a program, by `cabs serve` or inside LiteLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

from cabs_core.base.errors import RouterError
from cabs_core.base.utility import Sticky
from cabs_core.data.endpoints.person_text import HARNESS_BLOCKS, TextRules
from cabs_core.router.bundle import Manifest, check_mode
from cabs_core.router.marks import RULES, check_share

STICKY: tuple[str, ...] = get_args(Sticky)
ROUTE_BY: tuple[str, ...] = ("last_user", "first_user", "conversation")


@dataclass(frozen=True)
class RouterOptions:
    """Options of a router.

    Attributes:
        mode: route, shadow (decides and logs, answers with the fallback) or guarded (answers with the
            fallback until scores show that the policy earns more, see `guarded`); None: the bundle's.
        epsilon: share of uniform exploration; None: the bundle's.
        fallback: the arm of shadow and guarded mode; None: the bundle's.
        budget_per_request, budget_per_day: USD, at most one of them; a pacer then moves rho, from the lowest
            of the pool's grid to twice its range (`Pacer`).
        seed: of the random streams. None: fresh ones, for processes that share; 'bundle': the replay's.
        keep_prompts: log the prompts themselves.
        score_share: share of the drawn decisions that are marked to be scored; None: none is. score_rule:
            which ones (`marks`).
        prices: {model: USD per one million tokens in}. With them the expected cost of a call is its known
            part plus what was learnt about its output (`charges`); without, it is what the bundle predicts
            for the text.
        cache_prices: {model: (USD per one million tokens in, the same when cached, or None)}; without, a lost
            cache costs nothing.
        sticky, route_by: of `route_conversation`, see `sessions`.
        harness_blocks: names of further blocks that agents' harnesses write into a user's message, beside
            `person_text.HARNESS_BLOCKS`. text_pattern: regular expression of the person's text within the
            template of an application. Both are used by `text_rules`.
        learned: folder of checkpoints; None: beside the log's file, of PostgreSQL beside the bundle.

    Raises:
        RouterError: sticky, route_by or score_rule is none of `STICKY`, `ROUTE_BY`, `RULES`; score_share,
            harness_blocks or text_pattern cannot be used.
    """

    mode: str | None = None
    epsilon: float | None = None
    fallback: str | None = None
    budget_per_request: float | None = None
    budget_per_day: float | None = None
    seed: int | str | None = None
    keep_prompts: bool = False
    score_share: float | None = None
    score_rule: str = "uniform"
    prices: Mapping[str, float] | None = None
    cache_prices: Mapping[str, tuple[float, float | None]] | None = None
    sticky: str = "session"
    route_by: str = "last_user"
    harness_blocks: Sequence[str] = ()
    text_pattern: str | None = None
    learned: str | Path | None = None

    def __post_init__(self) -> None:
        check_share(self.score_share)
        _ = self.text_rules  # raises an error where a block or the pattern cannot be used
        for what, value, choices in (
            ("sticky", self.sticky, STICKY),
            ("route_by", self.route_by, ROUTE_BY),
            ("score_rule", self.score_rule, RULES),
        ):
            if value not in choices:
                raise RouterError(f"{what} {value!r:.40}: expected one of {', '.join(choices)}")

    @cached_property
    def text_rules(self) -> TextRules:
        """How the text of a person is found in a message."""
        return TextRules((*HARNESS_BLOCKS, *self.harness_blocks), self.text_pattern)

    def of(self, manifest: Manifest) -> RouterOptions:
        """The same, with the bundle's own mode, epsilon and fallback where none is given.

        Raises RouterError: unfit ones.
        """
        epsilon = manifest.epsilon if self.epsilon is None else float(self.epsilon)
        mode = self.mode or manifest.mode
        check_mode(mode, epsilon)
        return replace(self, mode=mode, epsilon=epsilon, fallback=self.fallback or manifest.fallback)
