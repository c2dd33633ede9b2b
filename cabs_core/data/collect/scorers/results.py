"""Reads the result that an answer gives: a number, or the letter of a choice.

Language models write results in many ways: "The answer is: **B) 42**", "#### 1,234", "\\boxed{\\frac{1}{2}}",
"3 x 4 = 12". No pattern here has two consecutive repetitions that match the same characters, since a long run
of these characters would take quadratic time.
"""

import math
import re

#: "answer is", "answer:" and the like, up to the result. A closing tag </answer> is no mark.
_ANSWER = r"(?<!/)\banswer\b[\s*_\"'`]*(?:is\b|[:=>])[\s*_\"'`:=$]*"
#: A result that the answer marks as such.
_MARKED = re.compile(rf"(?:####|\\boxed\{{|{_ANSWER})([^\n}}]*)", re.IGNORECASE)
#: What LaTeX or typography writes in another way -> the same in plain characters.
_PLAIN = (
    (re.compile("\N{MINUS SIGN}"), "-"),
    (re.compile(r"\{,\}"), ","),
    # thin and other spaces between thousands
    (re.compile(r"(?<=\d)(?:\\[,!;: ]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[dt]?frac\s?\{\s?([-+\d.,]+)\s?\}\s?\{\s?([\d.,]+)\s?\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac\s?(\d)\s?(\d)"), r"\1/\2"),
    (re.compile(r"(?<=\d)\s?(?:[x*×]|\\times|\\cdot)\s?10\s?\^\s?\{?([-+]?\d+)\}?"), r"e\1"),
    (re.compile(r"\\(?:times|cdot|div)\b"), "*"),
)
_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
#: A number with commas between thousands, a fraction such as 3/4, or a mixed number such as 1 3/4. A sign
#: after another number or word is an operator or a range.
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w.)])[-+]\\?[$€£]?)?(?:(?P<whole>\d+) (?=\d+/\d))?(?P<number>{_UNSIGNED})"
    rf"(?:\s?/\s?(?P<divisor>{_UNSIGNED}))?"
)
#: A calculation at the beginning, up to its last equals sign, such as `3 * 4 =` or `x =`.
_CALCULATION = re.compile(r"\A(?:[\dx\s.,+\-*/×÷^()$]*=)+")

#: What may stand between "answer" and the letter.
_BEFORE_LETTER = (
    r"(?:[\s*_$:=>({\[\"'`]|\\(?:boxed|text|textbf|mathrm|mathbf)\b|(?:is|option|choice|letter)\b)*"
)
#: A letter on its own that names a choice, so neither the article `a` nor the pronoun in `I think`.
_LETTER_WORD = (
    r"(?!(?-i:a\s+[a-z]|I\s+(?:am|believe|can|choose|chose|guess|have|pick|think|will|would)\b))"
    r"([A-Z])(?![A-Za-z'])"
)
#: Patterns of the letter of a choice, the surest first, and whether the last match counts or the first.
_LETTERS = (
    (
        re.compile(
            rf"(?:(?<!/)\banswer|\b(?:correct|right|best)\s(?:option|choice))\b{_BEFORE_LETTER}{_LETTER_WORD}",
            re.IGNORECASE,
        ),
        True,
    ),
    (re.compile(r"\\boxed\{\s*(?:\\\w+\{)?\(?([A-Z])\)?", re.IGNORECASE), True),
    (re.compile(r"^\W*([A-Z])(?=[).:,\]*]|\s[-–—]|\s*(?:\n|$))"), False),
    (re.compile(r"^\W*([a-z])(?=[)\]])"), False),
    (re.compile(r"^\W*(?:option|choice|letter)\s[*(]*([A-Z])(?![A-Za-z'])", re.IGNORECASE), False),
    (
        re.compile(
            r"(?<![A-Za-z'])([A-Z])[)*]*\sis\s(?:the\s)?(?:only\s)?(?:correct|right|best)\b",
        ),
        True,
    ),
    (re.compile(r"\(([A-Z])\)"), False),
    (re.compile(r"(?<![A-Za-z'])([B-HJ-Z]|A(?!\s+[a-z]))(?![A-Za-z'])\W*$"), False),
)


def result_number(text: str) -> float | None:
    """Return the number that an answer gives as its result, or None if the answer holds no number.

    The result stands after the last mark that has a number in its line: `####`, `\\boxed{`, "answer is" or
    `<answer>`. It is the first number there, or the first after the equals sign of a calculation. If no mark
    has a number, the result is the last number in the text. Fractions, also those of LaTeX, are divided. A
    percent sign is ignored. A number too large for a float does not count.
    """
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    for mark in reversed(list(_MARKED.finditer(text))):
        marked = mark.group(1)
        for part in (_CALCULATION.sub("", marked), marked):
            values = _values(part)
            if values:
                return values[0]
    values = _values(text)
    return values[-1] if values else None


def _values(text: str) -> list[float]:
    """Return the finite numbers of a text in their order."""
    found = []
    for match in _NUMBER.finditer(text):
        value = _float(match["number"])
        if match["divisor"] is not None:
            divisor = _float(match["divisor"])
            value = value / divisor if divisor else math.nan
        if match["whole"] is not None:
            value += _float(match["whole"])
        if (match["sign"] or "").startswith("-"):
            value = -value
        if math.isfinite(value):
            found.append(value)
    return found


def _float(digits: str) -> float:
    """Return the value of digits with commas between thousands."""
    return float(digits.replace(",", ""))


def chosen_letter(text: str) -> str | None:
    """Return the letter A to Z that an answer to a multiple-choice question chooses, or None.

    The letter is looked for in this order: after the last "answer is", "answer:" or "correct option is", in
    the last `\\boxed{`, at the start before a sign or the end of the line or after "option", before the last
    "is correct", in the first brackets, at the end of the text. None if no place has a letter. The article
    "a" and the pronoun "I" are no letters.
    """
    for pattern, is_last in _LETTERS:
        letters = pattern.findall(text.strip())
        if letters:
            return str(letters[-1 if is_last else 0]).upper()
    return None
