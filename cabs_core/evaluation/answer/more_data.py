"""The chance that more scored prompts replace the word "cannot tell" by another one."""

import math
from dataclasses import dataclass

from scipy import special

from cabs_core.evaluation.answer.ladder import ROUTER, RULES, Rung
from cabs_core.evaluation.answer.rule import SHARES_OF_FITTED, SHARES_OF_MODELS, Word
from cabs_core.evaluation.answer.table import AnswerOptions

#: numbers of further prompts that the report speaks of
MORE = (200, 1000, 5000)


@dataclass(frozen=True)
class Outlook:
    """The chance that a number of further prompts replaces "cannot tell".

    Attributes:
        prompts: number of further prompts, drawn and scored like those in the table.
        chance: probability, from 0 to 1.
    """

    prompts: int
    chance: float


def more_data(rung: Rung, options: AnswerOptions | None = None, *, compared: int = 1) -> tuple[Outlook, ...]:
    """Return the chance that another word replaces "cannot tell" of a rung, for each number in `MORE`.

    The true difference is taken to be normal about the estimate, with the error of its interval. With m more
    prompts beside n, the new estimate then differs from the present one by m / (n + m) of the present
    variance. Options that learn are taken to stay as good as they are.

    Args:
        rung: the option.
        options: settings of the answer; None takes the defaults.
        compared: number of options that share the error of this one.

    Returns:
        One outlook for each number of prompts. The tuple is empty if the rung has another word, or if its
        interval is unknown or has no width.
    """
    options = options or AnswerOptions()
    if rung.word != Word.UNKNOWN or rung.independent < 2 or not math.isfinite(rung.high):
        return ()
    error = (rung.high - rung.difference) / -float(special.ndtri(options.level / 2))
    if error <= 0:
        return ()
    if rung.rung in (RULES, ROUTER):
        shares = SHARES_OF_FITTED
    else:
        shares = SHARES_OF_MODELS
    tail = options.level / 2 / compared
    found = []
    for prompts in MORE:
        more = prompts * rung.share * rung.independent / max(rung.prompts, 1)
        kept = rung.independent / (rung.independent + more)
        later = error * math.sqrt(kept)
        spread = error * math.sqrt(1.0 - kept)
        limits = [-float(special.ndtri(tail * shares.better)) * later]
        if rung.cost_high is not None:
            limits.append(-options.tolerance - float(special.ndtri(tail)) * later)
        above = special.ndtr((rung.difference - min(limits)) / spread)
        below = special.ndtr((float(special.ndtri(tail * shares.worse)) * later - rung.difference) / spread)
        found.append(Outlook(prompts, min(float(above + below), 1.0)))
    return tuple(found)
