"""Writes a small generated table of outcomes in CSV, for the documentation: three models, arithmetic and
trivia.

python -m cabs_core.router.example outcomes.csv
"""

import argparse
import csv
import random
from pathlib import Path

#: {model: (share of right answers to easy questions, to hard ones, mean cost of a call in USD)}
MODELS = {"large": (0.9, 0.85, 2e-3), "medium": (0.8, 0.5, 3e-4), "small": (0.75, 0.15, 4e-5)}
_EASY = (
    "How many legs do {a} spiders have?",
    "What colour is the sky at noon on day {a}?",
    "Name {a} fruits.",
)
_HARD = (
    "Prove that {a} divides n^{b} - n for all n.",
    "Integrate x^{a} exp(-x) from 0 to {b}.",
    "How many primes lie between {a} and {b}?",
)


def write_example(path: str | Path, questions: int = 600) -> Path:
    """Write a table with the columns question, model, correct and usd, and return its path.

    All models do well on easy questions, and few on hard ones. Every call writes the same rows.

    Args:
        questions: number of questions, half of them hard. The table has a row for each question and model.
    """
    rng = random.Random(0)
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["question", "model", "correct", "usd"])
        seen: set[str] = set()
        while len(seen) < questions:
            hard = len(seen) % 2
            text = rng.choice(_HARD if hard else _EASY).format(a=rng.randint(2, 900), b=rng.randint(2, 900))
            if text in seen:
                continue
            seen.add(text)
            for model, (easy, difficult, usd) in MODELS.items():
                right = rng.random() < (difficult if hard else easy)
                writer.writerow([text, model, int(right), f"{usd * rng.uniform(0.7, 1.3):.3g}"])
    return Path(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a generated table of outcomes.")
    parser.add_argument("path")
    print(write_example(parser.parse_args().path))
