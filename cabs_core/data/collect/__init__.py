"""Collection of answers: models are asked, their answers are scored, and judges are measured.

`plan` says what a collection would cost, `answers` makes the calls, `scoring` scores the answers, and
`instrument` says how good a judge is. Everything that was paid for lies in one `AnswerStore`, by the content
of the call, so that no answer is paid twice.
"""
