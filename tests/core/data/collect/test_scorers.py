"""Scores of single answers, by hand."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.errors import DataError
from cabs_core.data.collect.calls import AskedModel, Question, read_reply
from cabs_core.data.collect.scorers.judge import grade_of, preference_of, questions
from cabs_core.data.collect.scorers.labels import blank_sheet, read_labels
from cabs_core.data.collect.scorers.results import chosen_letter, result_number
from cabs_core.data.collect.scorers.text import json_value, text_score
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.pool_files.collect import (
    Collect,
    Contains,
    Exact,
    JsonSchema,
    Judge,
    MultipleChoice,
    Number,
    Regex,
)

ROW = {"answer": "42"}


def score(scorer, answer, row=ROW):
    return text_score(scorer, lambda path, field: path)("prompt", answer, row)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("42", 42),
        ("It is 42.", 42),
        ("#### 1,234.5", 1234.5),
        ("The answer is -7 because 3 and 4", -7),
        (r"so \boxed{0.5} of 12", 0.5),
        ("1e3", 1000),
        ("50%", 50),
        ("none", None),
        ("first 3, then 9", 9),
        ("The answer is \N{MINUS SIGN}5", -5),
        ("The final answer is: **-5**", -5),
        ("**Answer:** 12", 12),
        ("<answer>12</answer> is 3 more than 9", 12),
        ('{"answer": 12, "of": 3}', 12),
        ("The answer to task 7 is easy: 12", 12),
        ("The answers are 1, 2, 3", 3),
        ("1/2", 0.5),
        (r"\boxed{\frac{1}{2}}", 0.5),
        (r"\boxed{-\dfrac12}", -0.5),
        ("The answer is 1 3/4 cups", 1.75),
        ("1/0", None),
        ("The answer is 3 x 4 = 12", 12),
        ("The answer is 20, since 20 - 5 = 15", 20),
        (r"\boxed{x = 7}", 7),
        ("between 3-5", 5),
        ("a loss of -$1,200.50", -1200.5),
        (r"\boxed{12{,}345}", 12345),
        ("12\u202f345", 12345),
        (r"$3 \times 10^{8}$", 3e8),
        ("the numbers 1,2,3", 3),
        ("9" * 400, None),
    ],
)
def test_the_number_of_an_answer(answer, number):
    assert result_number(answer) == number


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(C)", "C"),
        ("The answer is (D).", "D"),
        ("Answer: a", "A"),
        ("**B** because of A", "B"),
        ("D) green", "D"),
        ("I think it is green", None),
        ("A dog", None),
        (r"\boxed{\text{C}}", "C"),
        ("A car is a vehicle. The answer is B", "B"),
        ("The answer is a bit surprising: (C)", "C"),
        ("The answer is A because of B", "A"),
        ("The correct answer is: **B) 42**", "B"),
        ("The correct answer is: B) Paris.\n\nParis is in France (C).", "B"),
        ("Option (A) is wrong. The correct answer is: (B) Paris, since Rome (C) is not.", "B"),
        ("**Answer**: B", "B"),
        ("**Answer:** (b)", "B"),
        ("<answer>B</answer>\nA good question.", "B"),
        ('{"answer": "B"}', "B"),
        ("Of the answers (B) is best.", "B"),
        ("The answer is option B, not C.", "B"),
        (r"Is the answer A? No: the answer is $\boxed{\text{B}}$.", "B"),
        ("The correct option is B. Option A is wrong.", "B"),
        ("Option B is correct, and A is wrong", "B"),
        ("Options A and C are wrong; B is the correct one.", "B"),
        ("b) Paris", "B"),
        ("B - Paris, not C", "B"),
        ("My answer: I think (B)", "B"),
        ("The answer is not A but B", "B"),
        ("i.e. nothing", None),
    ],
)
def test_the_letter_of_an_answer(answer, letter):
    assert chosen_letter(answer) == letter


@pytest.mark.parametrize(
    "run",
    ["answer ", "answer: ", "1,234", "1 ", "*", " ", "(", "9", "A is ", "\\boxed{", "1/2 ", "=", "x = "],
)
@pytest.mark.parametrize("read", [chosen_letter, result_number])
def test_long_runs_are_read_in_a_short_time(read, run):
    start = time.process_time()
    read(run * (100_000 // len(run)))
    assert time.process_time() - start < 2


def test_texts_and_patterns():
    assert score(Exact(kind="exact", column="answer"), " `42`. \n") == 1
    assert score(Exact(kind="exact", column="answer"), "43") == 0
    assert score(Number(kind="number", column="answer", tolerance=0.1), "it is 45.9") == 1
    assert score(Number(kind="number", column="answer"), "it is 45.9") == 0
    assert score(Contains(kind="contains", column="answer"), "x 42 y") == 1
    assert score(Contains(kind="contains", column="answer"), "anything", {"answer": ""}) == 0
    assert score(Regex(kind="regex", pattern=r"^\d+$"), "a\n42") == 1
    assert score(Regex(kind="regex", column="answer"), "4 2") == 0
    with pytest.raises(DataError, match="no regular expression"):
        score(Regex(kind="regex", pattern="("), "x")
    choice = MultipleChoice(kind="choice", column="answer")
    references = ("b", "(B)", "B.", "B) Paris", "**B**")
    assert [score(choice, "The answer is: B", {"answer": text}) for text in references] == [1] * 5
    for text in ("Paris", "2", ""):
        with pytest.raises(DataError, match="names no letter of a choice"):
            score(choice, "B", {"answer": text})
    with pytest.raises(DataError, match="holds no number"):
        score(Number(kind="number", column="answer"), "1", {"answer": "many"})


def test_json_by_a_schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object", "required": ["size"]}))
    by = text_score(JsonSchema(kind="json_schema", file="schema.json"), lambda *_: path)
    assert by("", 'Here:\n```json\n{"size": 1}\n```', {}) == 1
    assert [by("", text, {}) for text in ('{"size": 1}', "{}", "no", "[" * 100_000)] == [1, 0, 0, 0]
    path.write_text('{"type": 3}')
    with pytest.raises(DataError, match="is no JSON schema"):
        text_score(JsonSchema(kind="json_schema", file="schema.json"), lambda *_: path)
    assert json_value("[1]") == [1]


JUDGE = Judge(kind="judge", model="secret-name", rubric="Be right, please.", max_usd=1)
TARGET = AskedModel(
    "secret-name", Upstream(url="http://127.0.0.1:1/v1", free=True), {"temperature": 0, "max_tokens": 9}, 9
)


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_judge_reads_texts_as_data_and_sees_no_names(prompt, answer):
    (call,) = questions(JUDGE, TARGET, prompt, answer, "", {})
    content = json.loads(call.messages[1]["content"])
    assert content == {"rubric": JUDGE.rubric, "task": prompt, "answer": answer}
    assert call.body["temperature"] == 0
    comparing = JUDGE.model_copy(update={"against": "other-name"})
    both, _ = questions(comparing, TARGET, prompt, answer, "other", {})
    assert json.loads(both.messages[1]["content"])["second"] == "other"


def test_replies_of_a_judge():
    grades = {
        '{"grade": 4}': 1.0,
        ' {"grade": "2"} ': 0.5,
        "3": 0.75,
        '{"grade": 9}': None,
        "good": None,
        "": None,
    }
    assert {reply: grade_of(reply, 5) for reply in grades} == grades
    preferences = {'{"better": "first"}': 1.0, '{"better":"TIE"}': 0.5, "second": None}
    assert {reply: preference_of(reply) for reply in preferences} == preferences


def test_labels_of_people(tmp_path):
    sheet = blank_sheet(["p", "p", "q"], ["one", "two", "one"])
    path = tmp_path / "labels.csv"
    sheet.assign(score=["1", "", "0"]).to_csv(path, index=False)
    labels = read_labels(path)
    assert "model" not in sheet and len(labels) == 2
    assert labels.score_of("x", "p", "m", "one") == 1 and labels.score_of("x", "q", "m", "one") == 0
    path.write_text("query_id,model,score\na,m,4\na,n,\n")
    assert read_labels(path, (0.0, 5.0)).score_of("a", "", "m", "") == 0.8
    for text, why in (
        ("query_id,model,score\na,m,2\n", "expected a number in"),
        ("query_id,score\na,1\n", "expected score and either item"),
        ("query_id,model,score\na,m,1\na,m,0\n", "has two scores"),
        ("query_id,model,score\na,m,\n", "holds no score"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=why):
            read_labels(path)


def reply(status=200, body=b"{}", **headers):
    return read_reply(Question(TARGET, ({"role": "user", "content": "hello"},)), status, headers, body, 0.1)


def message(**more):
    choice = {"message": {"content": "hi"} | more.pop("message", {}), "finish_reason": "stop"} | more
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()


def test_what_a_reply_means():
    assert reply(body=message()).answer.state == "answered"
    assert reply(body=message(finish_reason="length")).answer.state == "truncated"
    assert reply(body=message(finish_reason="content_filter")).answer.state == "refused"
    assert reply(body=message(message={"content": None, "refusal": "no"})).answer.text == "no"
    parts = {"content": [{"type": "text", "text": "a"}, {"type": "image"}]}
    assert reply(body=message(message=parts)).answer.text == "a"
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"choices": []}',
        b'{"error": {"message": "x"}}',
        message()[:-9],
        b"[" * 100_000,
    ):
        assert reply(body=body).means == "retry" and reply(body=body).billed
    assert reply(429, **{"Retry-After": "2"}).wait == 2.0 and reply(429).means == "wait"
    assert reply(400, b'{"error": {"code": "context_length_exceeded"}}').answer.state == "rejected"
    assert reply(400, b'{"error": {"code": "content_filter"}}').answer.state == "refused"


@given(st.binary(max_size=300), st.integers(100, 599))
def test_no_reply_breaks_the_reader(body, status):
    end = reply(status, body)
    assert (end.answer is not None) == (end.means in ("answered", "too_long", "filtered"))


@given(st.one_of(st.floats(), st.integers(-(10**30), 10**400), st.text(max_size=5), st.none(), st.booleans()))
def test_odd_token_counts_are_estimated(value):
    body = json.loads(message()) | {"usage": {"prompt_tokens": value}}
    answer = reply(body=json.dumps(body).encode()).answer
    assert answer is not None and answer.estimated and 0 <= answer.tokens.input < 1e12


def test_params_are_bounded():
    base = {"upstreams": "u", "max_usd": 1, "scores": [{"kind": "exact", "column": "a"}]}
    assert Collect(**base, params={"max_tokens": "7", "temperature": "0.5", "x": {"y": "true"}}).params == {
        "max_tokens": 7,
        "temperature": 0.5,
        "x": {"y": True},
    }
    for params in ({}, {"max_tokens": 0}, {"max_tokens": "many"}, {"max_tokens": 5, "stream": True}):
        with pytest.raises(ValueError, match="params"):
            Collect(**base, params=params)
