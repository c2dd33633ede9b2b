"""Rows of a table that were meant to belong to one prompt or to one model, but are written in two ways."""

import unicodedata
from collections.abc import Iterable

from cabs_core.base.errors import counted
from cabs_core.data.outcomes.raw import RawOutcomes


def split_rows_text(raw: RawOutcomes) -> str:
    """Return sentences on likely mistakes that keep rows apart, or '' if there are none.

    Two models or two prompts may be one, written in two ways. Ids of queries may number the rows, so that no
    query has scores of two models.
    """
    causes = []
    models = _twins(raw.arms)
    if models:
        one, other = models[0]
        causes.append(
            f"Models {one!r:.100} and {other!r:.100} differ in case or white space alone: if they are one, "
            f"write `{one.strip()}: [{one!r}, {other!r}]` under `models`, where all models are to stand then"
        )
    prompts = _twins(raw.prompts)
    if prompts:
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
    """Return pairs (earlier text, later text) that differ in case, white space or Unicode form alone."""
    first: dict[str, str] = {}
    twins = []
    for text in dict.fromkeys(texts):
        known = first.setdefault(" ".join(unicodedata.normalize("NFKC", text).casefold().split()), text)
        if known != text:
            twins.append((known, text))
    return twins
