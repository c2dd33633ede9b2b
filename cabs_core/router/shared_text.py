"""A warning that most prompts share most of their text: then a template is routed, not what people ask.

A template that an application writes around each question (documents, instructions, reminders) decides the
route if it is longer than the question. Consecutive prompts that begin or end alike show such a template.
"""

from collections import deque

from cabs_core.base.units import percentage

#: most compared prompts whose shares are kept
_WINDOW = 64
#: fewest compared prompts from which a share is computed
_FEWEST = 20
#: earlier prompts that a prompt is compared with
_COMPARED = 4
#: characters that a template has at least
_SHORTEST = 200
#: share of its characters above which a prompt counts, and share of the prompts above which it warns
_MOST = 0.5


class SharedText:
    """Shares of text that recent prompts have in common with prompts before them.

    Each `Router` object has its own, so processes do not share theirs.
    """

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=_COMPARED)
        self._shares: deque[float] = deque(maxlen=_WINDOW)

    def add(self, text: str) -> None:
        """Note the largest share of a prompt's text that is shared with one of the last `_COMPARED` prompts.

        A prompt that equals one of these is left out, and the first prompt is compared with none.
        """
        earlier = list(self._texts)
        if text in earlier:
            return
        if earlier:
            self._shares.append(max(_shared(text, before) for before in earlier))
        self._texts.append(text)

    @property
    def share(self) -> float | None:
        """Mean share of shared text, over the recent prompts that share more than half of their text.

        None if these are at most half of the recent prompts, or if fewer than `_FEWEST` were compared.
        """
        shares = list(self._shares)
        over = [share for share in shares if share > _MOST]
        if len(shares) < _FEWEST or len(over) <= _MOST * len(shares):
            return None
        return sum(over) / len(over)

    def sentence(self) -> str | None:
        """Return the warning in words, or None if there is nothing to warn of."""
        share = self.share
        if share is None:
            return None
        return (
            f"most prompts share {percentage(share)} of their text with the prompts before them. A template "
            "decides the route: name the block of your harness (--harness-block), say where the text of the "
            "person stands (--text-pattern), or send the text as x-cabs-text"
        )


def _shared(text: str, before: str) -> float:
    """Return the share of a text whose beginning and end are those of another text.

    Return 0 if the common beginning and end have fewer than `_SHORTEST` characters together.
    """
    most = min(len(text), len(before))
    begin = _common_length(text, before, most)
    rest = most - begin
    if rest:
        end = _common_length(text[::-1], before[::-1], rest)
    else:
        end = 0
    common = begin + end
    if common >= _SHORTEST:
        return common / len(text)
    return 0.0


def _common_length(one: str, other: str, most: int) -> int:
    """Return the length of the common beginning of two texts, at most `most`, by bisection."""
    low = 0
    high = most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
