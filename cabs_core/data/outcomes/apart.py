"""Why rows of a table that belong to one prompt, or to one model, may not meet."""

import unicodedata
from collections.abc import Iterable

from cabs_core.base.errors import counted
from cabs_core.data.outcomes.raw import RawOutcomes


def apart_because(raw: RawOutcomes) -> str:
    """What the user may have meant to be one and wrote in two ways; '' where nothing speaks for it."""
    causes = []
    if models := _twins(raw.arms):
        one, other = models[0]
        causes.append(
            f"Models {one!r:.100} and {other!r:.100} differ in case or white space alone: if they are one, "
            f"write `{one.strip()}: [{one!r}, {other!r}]` under `models`, where all models are to stand then"
        )
    if prompts := _twins(raw.prompts):
        one, other = prompts[0]
        causes.append(
            f"{counted(len(prompts), 'prompt')} differ from another one in case, white space or the form of "
            f"accents alone ({one!r:.80} and {other!r:.80}): write them alike, or give a query_id column"
        )
    alone = len(raw.query_ids) > len(set(raw.prompts)) and ((raw.scores == raw.scores).sum(axis=1) <= 1).all()
    if alone:
        causes.append(
            "No query_id has the scores of two models, but prompts repeat: if it numbers rows, "
            "`source.columns.query_id: null` goes by the prompt"
        )
    return ". ".join(causes)


def _twins(texts: Iterable[str]) -> list[tuple[str, str]]:
    """(a text, another that reads the same) of texts that differ in case, white space or Unicode form."""
    first: dict[str, str] = {}
    twins = []
    for text in dict.fromkeys(texts):
        known = first.setdefault(" ".join(unicodedata.normalize("NFKC", text).casefold().split()), text)
        if known != text:
            twins.append((known, text))
    return twins
