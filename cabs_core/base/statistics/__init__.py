"""Standard errors, intervals and tests, as functions of NumPy arrays.

clusters     independent observations: prompts with their near-copies, or conversations
uncertainty  standard errors, their intervals and p-values; many comparisons
paired       bounds of mean paired differences, exact where losses are rare
costs        share of all money that a few clusters hold
bootstrap    resampling, for figures whose error has no formula
people       means of people's scores, from a labelled sample and a judge's scores
"""
