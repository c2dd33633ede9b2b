"""Templated prompts of the synthetic demo. Their wording tells family, topic and difficulty of a task."""

from dataclasses import dataclass

import numpy as np

from cabs_core.base.errors import DataError

#: latent skills that a family draws on
SKILLS = ("math", "code", "knowledge", "language")


@dataclass(frozen=True)
class Family:
    """A task family: every prompt is one template with a topic, a difficulty level and small details.

    Attributes:
        loads: weight of each of `SKILLS`.
        graded: scores in quarters (judged answers) instead of right or wrong.
        output_tokens: typical length of an answer.
        topics, levels: phrases with their difficulty (logits, higher is harder).
        templates: texts with `{topic}`, `{level}` and `{detail}`.
        details: phrases without influence on the outcome.
    """

    name: str
    loads: tuple[float, float, float, float]
    graded: bool
    output_tokens: float
    topics: tuple[tuple[str, float], ...]
    levels: tuple[tuple[str, float], ...]
    templates: tuple[str, ...]
    details: tuple[str, ...]


PEOPLE = (
    *("Ana", "Bilal", "Chen", "Dora", "Emeka", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Kavya", "Luis"),
    *("Mira", "Nadia", "Omar", "Petra", "Ravi", "Sofia", "Tomas", "Yuki"),
)
DAYS = tuple(
    f"{day} {time}"
    for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    for time in ("morning", "noon", "afternoon", "evening")
)

FAMILIES = (
    Family(
        "word_problems", (1.0, 0.1, 0.0, 0.1), False, 160,
        (("buying oranges at the market", -0.9), ("saving pocket money every week", -0.7),
         ("filling a water tank through two pipes", 0.6), ("two trains travelling towards each other", 0.5),
         ("mixing two salt solutions", 0.9), ("sharing the rent of a flat", -0.3),
         ("a discount followed by sales tax", 0.2), ("compound interest on a loan", 0.8)),
        (("in one step", -1.0), ("with two quantities", -0.3), ("with three people and a remainder", 0.5),
         ("where the rate changes halfway through", 1.1)),
        ("{detail} has a question about {topic}, {level}. Work out the number and show each step.",
         "Solve this word problem {level}: {detail} is {topic}. What is the final amount?",
         "A problem about {topic} {level}, told by {detail}. Give only the resulting number."),
        PEOPLE,
    ),
    Family(
        "algebra", (1.2, 0.3, 0.1, -0.2), False, 220,
        (("a linear equation", -1.0), ("a quadratic equation", -0.1), ("a system of two equations", 0.1),
         ("an inequality with absolute values", 0.7), ("a cubic polynomial", 0.8),
         ("a modular congruence", 1.0),
         ("an arithmetic sequence", -0.5), ("a functional equation", 1.4)),
        (("with integer coefficients", -0.6), ("with fractions", 0.1), ("with a parameter a", 0.8),
         ("with irrational roots", 0.9)),
        ("Find every solution of {topic} {level}, in the unknown {detail}.",
         "Let {detail} be the unknown of {topic} {level}. Determine {detail} exactly.",
         "Competition mathematics: {topic} {level}; solve for {detail} and justify."),
        tuple("xyzwtuvnmkpq"),
    ),
    Family(
        "python_functions", (0.2, 1.3, 0.0, -0.1), False, 260,
        (("reverses a string", -1.2), ("counts vowels in a sentence", -1.0),
         ("merges two sorted lists", -0.2),
         ("parses a date without libraries", 0.5), ("finds the longest common subsequence", 0.8),
         ("evaluates an arithmetic expression", 1.0), ("removes duplicates but keeps the order", -0.6),
         ("computes a minimum spanning tree", 1.0)),
        (("Keep it simple.", -0.5), ("It must run in linear time.", 0.4),
         ("Handle empty and malformed input.", 0.3),
         ("Do not use recursion or imports.", 0.5)),
        ("Write a Python function `{detail}` that {topic}. {level}",
         "Complete this code. def {detail}(value): \"\"\"{topic}\"\"\" {level}",
         "Implement `{detail}` in Python; it {topic}. {level} Your code should pass the hidden tests."),
        ("solve", "transform", "process", "compute", "handle", "run", "work", "build", "task", "helper"),
    ),
    Family(
        "sql_queries", (0.1, 1.0, 0.3, 0.0), False, 140,
        (("all customers from one city", -1.1), ("the total revenue per month", -0.2),
         ("products that were never ordered", 0.2), ("the second highest salary per department", 0.8),
         ("a running total over time", 0.7), ("employees and their managers", 0.1),
         ("days with gaps in a sequence", 1.3)),
        (("from one table", -0.8), ("joining two tables", 0.0), ("joining four tables", 0.8),
         ("without window functions", 0.9)),
        ("Write a SQL query that lists {topic}, {level}. The schema belongs to a {detail}.",
         "Database of a {detail}: return {topic} {level} in standard SQL."),
        ("bookshop", "hospital", "airline", "school", "bank", "warehouse", "museum", "hotel", "garage",
         "library"),
    ),
    Family(
        "science_questions", (0.1, 0.0, 1.0, 0.2), False, 12,
        (("photosynthesis in leaves", -0.9), ("the phases of the moon", -0.8),
         ("friction between surfaces", -0.5),
         ("acids reacting with metals", 0.0), ("plate tectonics and earthquakes", -0.3),
         ("entropy of an ideal gas", 1.0), ("gene regulation in bacteria", 0.8),
         ("quantum numbers of an electron", 1.2)),
        (("for grade 5", -0.9), ("for high school", -0.1), ("for college students", 0.6),
         ("for a graduate examination", 1.2)),
        ("Multiple choice {level}: which statement about {topic} is correct? A) B) C) D) The setting is "
         "{detail}.",
         "A science quiz {level} asks about {topic}, using an example with {detail}. Print a single letter."),
        ("a garden", "a kitchen", "a laboratory", "a mountain", "a river", "a classroom", "a desert",
         "an ocean"),
    ),
    Family(
        "history_and_geography", (-0.1, -0.2, 1.2, 0.3), False, 10,
        (("capitals of European countries", -1.3), ("the Roman Republic", -0.2),
         ("rivers of South America", 0.0),
         ("the Meiji restoration", 0.5), ("trade in the Hanseatic League", 0.8),
         ("the peace of Westphalia", 0.6), ("borders of Central Asian states", 0.9),
         ("the French Revolution", -0.5)),
        (("a well known fact", -0.8), ("the order of two events", 0.2), ("an exact year", 0.7),
         ("a little known treaty", 1.2)),
        ("Trivia on {topic}: {level}. Choose among four options; a {detail} asks.",
         "As a {detail} I need {level} concerning {topic}. Answer with the option's letter."),
        ("teacher", "student", "journalist", "traveller", "librarian", "novelist", "guide", "quiz host"),
    ),
    Family(
        "professional_law", (0.0, -0.3, 0.9, 0.6), False, 15,
        (("a breach of a sales contract", -0.1), ("negligence after a road accident", 0.0),
         ("hearsay evidence at trial", 0.7), ("easements over a neighbour's land", 0.8),
         ("freedom of speech on a campus", 0.2), ("the rule against perpetuities", 1.4),
         ("a landlord keeping a deposit", -0.5)),
        (("with one clear rule", -0.6), ("with two competing rules", 0.4),
         ("with an exception to the exception", 1.1)),
        ("Bar examination: {topic}, {level}. The plaintiff is {detail}. Who prevails? Pick one option.",
         "Legal reasoning about {topic} {level}; {detail} seeks advice. Which answer is best?"),
        PEOPLE,
    ),
    Family(
        "common_sense", (0.0, -0.1, 0.3, 1.0), False, 8,
        (("someone washing a car", -0.7), ("a child building a sandcastle", -0.8),
         ("repairing a bicycle tyre", -0.2),
         ("folding a paper crane", 0.2), ("a referee stopping a match", 0.3),
         ("sharpening a kitchen knife", 0.1),
         ("setting up a loom", 1.0)),
        (("the obvious ending", -0.9), ("four similar endings", 0.5),
         ("endings that differ in one word", 1.0)),
        ("Which continuation is most plausible? A clip shows {topic}; there are {level}. Narrator: {detail}.",
         "Finish the story of {topic}. Choose between {level}, as {detail} would."),
        PEOPLE,
    ),
    Family(
        "pronoun_resolution", (0.1, 0.0, 0.1, 1.1), False, 6,
        (("the trophy and the suitcase", -0.2), ("the doctor and the patient", 0.1),
         ("the cat and the mouse", -0.5),
         ("the statue and the shelf", 0.3), ("the lawyer and the witness", 0.6),
         ("the cup and the table", 0.0)),
        (("in a short sentence", -0.5), ("in a sentence with a negation", 0.5),
         ("after two subordinate clauses", 0.9)),
        ("Fill the blank {level} about {topic}: {detail} said that the _ was too large. Option 1 or "
         "option 2?",
         "Who does the pronoun refer to {level} that mentions {topic}? Told by {detail}."),
        PEOPLE,
    ),
    Family(
        "translation", (-0.2, -0.1, 0.4, 1.1), True, 60,
        (("French", -0.8), ("Spanish", -0.8), ("German", -0.4), ("Chinese", 0.3), ("Polish", 0.2),
         ("Swahili", 0.9),
         ("Icelandic", 1.1), ("classical Latin", 0.8)),
        (("a greeting", -0.8), ("a news headline", 0.0), ("a proverb", 0.7), ("a legal clause", 0.6)),
        ("Translate {level} into {topic}. The text is about {detail}.",
         "How does one say this in {topic}? It is {level} on the subject of {detail}."),
        ("weather", "football", "food", "music", "elections", "medicine", "harvest", "tourism", "housing",
         "trains"),
    ),
    Family(
        "writing_assistance", (0.0, 0.1, 0.2, 1.2), True, 320,
        (("a birthday card", -0.9), ("a complaint to a shop", -0.5), ("a cover letter", -0.2),
         ("a product review", -0.4),
         ("a sonnet", 0.8), ("a press release", 0.2), ("a grant proposal", 0.7), ("a satirical essay", 0.9)),
        (("in a friendly tone", -0.4), ("in exactly fifty words", 0.8), ("without the letter e", 1.5),
         ("with three headings", 0.1)),
        ("Write {topic} {level} for someone interested in {detail}.",
         "Please draft {topic}, {level}; mention {detail}."),
        ("gardening", "chess", "sailing", "astronomy", "cooking", "pottery", "cycling", "jazz", "hiking",
         "knitting"),
    ),
    Family(
        "logic_puzzles", (0.8, 0.3, 0.0, 0.4), False, 190,
        (("three friends standing in a queue", -0.5), ("five houses in a row", 0.6),
         ("knights who always tell the truth", 0.7),
         ("weighing coins on a balance", 0.6), ("seats around a table", 0.2),
         ("a calendar with a missing day", 0.0),
         ("boxes with wrong labels", 0.1)),
        (("two clues", -0.8), ("four clues", 0.1), ("six clues", 0.8), ("a clue that may be false", 1.2)),
        ("Logic puzzle: {topic}, {level}. Deduce where {detail} is.",
         "Given {level} about {topic}, decide whether {detail} is first. Answer yes or no with reasons."),
        PEOPLE,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class PromptTable:
    """Generated prompts, all different.

    Attributes:
        prompts: n texts.
        family: `[n]` index into `FAMILIES`.
        topic: `[n]` index of (family, topic) over all families.
        difficulty: `[n]` logits, centred over the table.
    """

    prompts: list[str]
    family: np.ndarray
    topic: np.ndarray
    difficulty: np.ndarray


def topic_count() -> int:
    """Return the number of pairs of a family and one of its topics."""
    return sum(len(family.topics) for family in FAMILIES)


def generate_prompts(n: int, rng: np.random.Generator) -> PromptTable:
    """Return `n` different random prompts. Families are unequally frequent, as in real traffic.

    Raises:
        DataError: `n` is too large: the random draws repeat prompts more than 20 n times. The templates make
            about 10,000 texts, and each text has 560 possible endings.
    """
    weights = rng.dirichlet(np.full(len(FAMILIES), 8.0))
    first_topic = np.cumsum([0] + [len(family.topics) for family in FAMILIES])
    seen: set[str] = set()
    repeats = 0
    rows: list[tuple[str, int, int, float]] = []
    while len(rows) < n:
        f = int(rng.choice(len(FAMILIES), p=weights))
        family = FAMILIES[f]
        t = int(rng.integers(len(family.topics)))
        level, hardness = family.levels[rng.integers(len(family.levels))]
        topic, topic_hardness = family.topics[t]
        template = family.templates[rng.integers(len(family.templates))]
        detail = family.details[rng.integers(len(family.details))]
        text = template.format(topic=topic, level=level, detail=detail)
        if text in seen:  # a small family runs out of combinations: say when and by whom it was asked
            day = DAYS[rng.integers(len(DAYS))]
            person = PEOPLE[rng.integers(len(PEOPLE))]
            text = f"{text} Asked by {person} on {day}."
            if text in seen:
                repeats += 1
                if repeats > 20 * n:
                    raise DataError(f"source.queries is {n}: the templates do not give that many prompts")
                continue
        seen.add(text)
        rows.append((text, f, int(first_topic[f]) + t, hardness + topic_hardness))
    texts, families, topics, difficulty = zip(*rows, strict=True)
    centred = np.array(difficulty) - np.mean(difficulty)
    return PromptTable(list(texts), np.array(families), np.array(topics), centred)
