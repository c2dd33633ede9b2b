"""From nothing to a table: models are asked, their answers scored, and the scoring measured.

`plan_of` says what a collection would cost, `collect` makes it, `score` scores the answers, `measure` says
how good a judge is. Everything that was paid for lies in one `AnswerStore`, by content.
"""
