"""The answer of a pool in Markdown, for a pull request."""

from cabs_core.report.answer_page import AnswerPage
from cabs_core.report.data import PoolData
from cabs_core.report.names import condition_text, label
from cabs_core.report.tables import PageTable, error_text, missing


def as_good(data: PoolData) -> list[str]:
    """Return the names of routers whose mean utility is not significantly below that of the best router.

    Significance is adjusted for all pairs of routers. A router is a policy that routes by prompt. The best
    router itself and routers that the marts do not compare with the best one are left out.
    """
    alike = []
    for policy in data.routers[1:]:
        pair = data.pair(policy, data.routers[0])
        if pair is not None and not bool(pair["significant_adjusted"]):
            alike.append(policy)
    return alike


def markdown(
    data: PoolData,
    *,
    headline: str,
    first: AnswerPage | None,
    changes: list[str],
    banners: list[str],
    ranking: str,
) -> str:
    """Return the answer for a pull request: headline, limits, options, ranking and changes.

    The ranking has the first ten policies of the pool's leaderboard.

    Args:
        headline: the answer in one line.
        first: the part of the report page that answers with the options; None if the pool has no such answer.
        changes: sentences on changes since the last report.
        banners: sentences on the limits of the answer.
        ranking: the best policy in words, which stands in place of `first` if it is None.
    """
    lines = [f"## {data.info['title']}: {headline}", ""]
    if first is not None and first.found.goal is not None:
        lines += [first.found.goal.text, ""]
    if data.info["synthetic"]:
        lines += ["**Synthetic data.** Generated prompts and outcomes, no claim about real models.", ""]
    if condition_text(data.info["condition"]):
        lines += [f"{condition_text(data.info['condition'])}.", ""]
    for banner in banners:
        lines += [f"> {banner}", ""]
    if first is None:
        lines += [ranking, ""]
    else:
        lines += [first.question, "", first.why, ""]
        if first.newest:
            lines += [first.newest, ""]
        if first.ladder is not None:
            lines += _markdown_table(first.ladder)
    lines += ["| policy | mean utility | rank |", "|---|---:|---:|"]
    for policy, row in data.board.head(10).iterrows():
        if missing(row["utility_se"]):
            error = ""
        else:
            error = f" ± {error_text(row['utility_se'])}"
        if missing(row["rank"]):
            rank = "–"
        else:
            rank = str(int(row["rank"]))
        lines.append(f"| {label(policy)} | {row['utility']:.3f}{error} | {rank} |")
    if changes:
        lines += ["", "Since the last report:", "", *(f"* {c}" for c in changes)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: PageTable) -> list[str]:
    """Return a table of the report page as lines of Markdown, without standard errors and notes."""
    lines = [f"| {' | '.join(table.headers)} |", f"|{'---|' * len(table.headers)}"]
    lines += [f"| {' | '.join(cell.text for cell in row)} |" for row in table.rows]
    return [*lines, ""]
