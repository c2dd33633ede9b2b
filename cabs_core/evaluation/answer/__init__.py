"""The answer: what may be used instead of what is used today, what that saves, and how sure it is.

Pure functions of arrays; no files and no orchestrator.

table     what is known (scores, costs, tasks, clusters) and what an option plays
rule      which difference matters: the words of an option, and which option is recommended
compare   an option beside today's model: quality and money with their intervals
ladder    the answer: keep, switch, rules, router
rules     one model for each task, fitted from other folds than the one that it is judged on
goals     the option that fulfils a goal, by the same rows
worth     what an option is worth beside today's model, if a right answer is worth so many dollars
neighbours  what an option gains on prompts unlike those that it was made from
newest    what an option gains on the newest prompts and on the older ones
more_data the chance that more prompts replace "cannot tell"
logged    a log of one answer a prompt as a scored table
choice    which policy and cost sensitivity a router gets, from other prompts than it is judged on
"""

from cabs_core.evaluation.answer.choice import (
    RouterCandidate,
    choose_router,
    cross_fitted_weights,
    play_shares,
)
from cabs_core.evaluation.answer.goals import Condition, GoalFound, choose_router_for_goal, goal_answer
from cabs_core.evaluation.answer.ladder import Answer, Note, Rung, TaskRow, answer, losses
from cabs_core.evaluation.answer.logged import LoggedTable
from cabs_core.evaluation.answer.more_data import MORE, Outlook, more_data
from cabs_core.evaluation.answer.neighbours import Unlike, near_neighbours, unlike_prompts
from cabs_core.evaluation.answer.newest import Newest, newest_fifth
from cabs_core.evaluation.answer.rule import TOLERANCE, Word
from cabs_core.evaluation.answer.rules import fit_rules, rule_for_all
from cabs_core.evaluation.answer.table import AnswerOptions, Decisions, ScoredTable
from cabs_core.evaluation.answer.worth import Worth, option_worth

__all__ = [
    "MORE",
    "TOLERANCE",
    "Answer",
    "AnswerOptions",
    "Condition",
    "Decisions",
    "GoalFound",
    "LoggedTable",
    "Newest",
    "Note",
    "Outlook",
    "RouterCandidate",
    "Rung",
    "ScoredTable",
    "TaskRow",
    "Unlike",
    "Word",
    "Worth",
    "answer",
    "choose_router",
    "choose_router_for_goal",
    "cross_fitted_weights",
    "fit_rules",
    "goal_answer",
    "losses",
    "more_data",
    "near_neighbours",
    "newest_fifth",
    "option_worth",
    "play_shares",
    "rule_for_all",
    "unlike_prompts",
]
