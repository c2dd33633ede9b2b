"""The text of a person: blocks of harnesses, templates, and the text that a caller gives."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.person_text import (
    LONGEST_HEADER,
    TextRules,
    without_blocks,
    without_given_text,
)
from cabs_core.data.endpoints.request import ChatRequest, chat_text
from cabs_core.router.shared_text import SharedText

BLOCK = "<system-reminder>\nbe careful\n</system-reminder>"
CASES = Path(__file__).parents[5] / "shared" / "cases" / "requests.json"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (f"{BLOCK}\nrename it", "rename it"),
        (f"rename it\n{BLOCK}", "rename it"),
        (f"{BLOCK}rename it", "rename it"),
        ("<environment_details mode='act'>\nx\n</environment_details>\nrename it", "rename it"),
        (f"<system-reminder>\na\n{BLOCK}\nb\n</system-reminder>\nrename it", "rename it"),
        ("<system-reminder>\n```\nx\n</system-reminder>\nrename it", "rename it"),
    ],
)
def test_a_closed_block_at_the_start_of_a_line_is_taken_out(message, text):
    assert without_blocks(message) == text


@pytest.mark.parametrize(
    "message",
    [
        "what does <system-reminder>x</system-reminder> mean?",
        "<system-reminder> is never closed",
        f"why is this sent?\n```xml\n{BLOCK}\n```\n",
        f"<system-reminder>\nwhy is this sent?\n~~~\n{BLOCK}\n~~~~\n",
        "<system-reminders>\nx\n</system-reminders>",
    ],
)
def test_words_of_a_person_about_blocks_stay(message):
    assert without_blocks(message) == message


def seconds_of(count: int) -> float:
    """Return the least seconds of processor that three readings of `count` pairs of tags take."""
    text = "<system-reminder>\n" * count + "</system-reminder>\n```\n" * count
    taken = []
    for _ in range(3):
        begin = time.thread_time()
        without_blocks(text)
        taken.append(time.thread_time() - begin)
    return min(taken)


def test_many_tags_take_time_in_proportion_to_the_text():
    assert seconds_of(20_000) < 8 * seconds_of(5_000)  # 4 in proportion, 16 where it grows with the square


@pytest.mark.parametrize("route_by", ["last_user", "first_user", "conversation"])
def test_more_space_than_is_read_hides_no_text(route_by):
    space = " " * 20_000
    body = {"messages": [{"role": "user", "content": f"{space}two?{space}"}]}
    assert ChatRequest.read(body, {}, "chat", route_by=route_by).text.strip() == "two?"
    given = {**body, "metadata": {"cabs_text": f"{space}three?"}}
    assert ChatRequest.read(given, {}, "chat", route_by=route_by).text == "three?"


def test_a_pattern_with_repetitions_in_each_other_answers_at_once():
    """Python's own patterns would take for ever over this text, which a stranger may send."""
    rules = TextRules(pattern=r"Question: (?P<text>(a+)+)$")
    begin = time.thread_time()
    assert rules.person_text("Question: " + "a" * 100_000) == "a" * 100_000
    text = "Question: " + "a" * 100_000 + "b"
    assert rules.person_text(text) == text
    assert time.thread_time() - begin < 1.0


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "\ud800"])
def test_a_pattern_that_cannot_be_searched_in_linear_time_is_refused(pattern):
    with pytest.raises(RouterError, match="RE2"):
        TextRules(pattern=pattern)


def test_the_newest_turn_with_words_of_a_person_counts():
    """Also beside the result of a tool, and before a turn that a harness wrote."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    first = {"role": "user", "content": "open it"}
    asked = {"role": "user", "content": [result, {"type": "text", "text": "and close it"}]}
    reminded = {"role": "user", "content": [result, {"type": "text", "text": BLOCK}]}
    assert ChatRequest.read({"messages": [first, asked]}).text == "and close it"
    request = ChatRequest.read({"messages": [first, reminded]})
    assert request.text == "open it" and request.in_tools
    assert chat_text([first, {"role": "user", "content": BLOCK}]) == "open it"
    assert ChatRequest.read({"messages": [{"role": "user", "content": BLOCK}]}).text is None


def test_a_conversation_keeps_its_session_when_a_harness_writes_another_reminder():
    bodies = [
        {"messages": [{"role": "user", "content": f"<system-reminder>\n{n}\n</system-reminder>\nopen it"}]}
        for n in range(2)
    ]
    assert len({ChatRequest.read(body).key for body in bodies}) == 1


def test_a_pattern_finds_the_text_within_a_template():
    rules = TextRules(pattern=r"Question: (.*?)\n")
    assert rules.person_text("Documents: a b\nQuestion: why?\nAnswer:") == "why?"
    assert rules.person_text("no template") == "no template"
    named = TextRules(pattern=r"(Q|Question): (?P<text>.*)")
    assert named.person_text("Question: why?") == "why?"
    for wrong in ({"pattern": "("}, {"blocks": ("a b",)}):
        with pytest.raises(RouterError):
            TextRules(**wrong)


def test_a_caller_gives_the_text():
    body = {"messages": [{"role": "user", "content": "x"}], "metadata": {"cabs_text": "why?", "user": "u"}}
    assert ChatRequest.read(body).text == "why?"
    assert ChatRequest.read(body, {"x-cabs-text": "caf%C3%A9%20ouvert"}).text == "café ouvert"
    assert without_given_text(body)["metadata"] == {"user": "u"}
    assert "metadata" not in without_given_text({"metadata": {"cabs_text": "why?"}})


@pytest.mark.parametrize("header", ["%E9", "%zz", "é", "%20", "a" * (LONGEST_HEADER + 1)])
def test_a_text_that_cannot_be_read_is_refused(header):
    with pytest.raises(RouterError, match="x-cabs-text"):
        ChatRequest.read({"messages": []}, {"x-cabs-text": header})
    with pytest.raises(RouterError, match="cabs_text"):
        ChatRequest.read({"metadata": {"cabs_text": 7}})


def test_most_prompts_that_share_their_text_are_noticed():
    shared = SharedText()
    for i in range(30):
        shared.add(f"Question {i * 7919} of somebody? " + "Use these documents. " * 40)
    assert shared.share is not None and shared.share > 0.9 and "--text-pattern" in str(shared.sentence())
    apart = SharedText()
    for i in range(30):
        apart.add(f"{chr(97 + i % 26) * 300} {i}")
        apart.add("the same question again")
    assert apart.share is None and apart.sentence() is None


@pytest.mark.skipif(not CASES.exists(), reason="needs ../shared/cases")
def test_public_requests_are_read_as_they_are_meant():
    for case in json.loads(CASES.read_text()):
        request = ChatRequest.read(case["body"], {}, case["dialect"])
        for name, want in case["want"].items():
            found = getattr(request, name)
            if isinstance(found, frozenset):
                found = sorted(found)
            if isinstance(found, tuple):
                found = list(found)
            assert found == want, (case["what"], name)
