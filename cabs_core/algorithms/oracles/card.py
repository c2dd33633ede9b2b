"""The model card that is saved with the oracles."""

from collections.abc import Mapping, Sequence
from typing import Any


def model_card(arms: Sequence[str], chosen: Mapping[str, str], metrics: Mapping[str, Any]) -> str:
    """Return the model card in Markdown: data, settings, errors on validation, and the chosen heads.

    Args:
        arms, chosen, metrics: attributes of `Oracles`.
    """
    m = metrics
    lines = [
        "# Routing oracles",
        "",
        "Predict the score and cost of every arm for a prompt, and what one arm's score says about the "
        "others.",
        "Learned from the train split; early stopping and the choice of heads use the validation split.",
        "",
        f"* arms ({len(arms)}): {', '.join(arms)}",
        f"* data: outcomes `{m.get('outcomes_hash', '')}`, rows {m.get('rows', {})}",
        f"* settings: {m.get('settings', {})}",
        "",
        "| head | used | squared error on validation, by candidate |",
        "|---|---|---|",
    ]
    for head, errors in m.get("validation", {}).items():
        values = ", ".join(
            f"{name} {value:.5g}" for name, value in sorted(errors.items(), key=lambda p: p[1])
        )
        used = chosen.get("accuracy" if head == "contrasts" else head, "")
        lines.append(f"| {head} | {used} | {values} |")
    log = m.get("training")
    if log:
        lines += [
            "",
            f"Network: {log['parameters']} parameters, best epoch {log['best_epoch']} of "
            f"{len(log['epochs']) - 1}, {log['stopped']}, on {log['device']}.",
        ]
    lines += [
        "",
        "Predictions hold for prompts like those of the data, and for these arms as they were then.",
        "",
    ]
    return "\n".join(lines)
