"""How sure a figure is. Pure NumPy; no files, no policies.

clusters     what an independent observation is: prompts with near-copies, conversations
uncertainty  standard errors, their intervals and p-values; many comparisons
paired       bounds of mean paired differences, exact where losses are rare
costs        share of all money that a few clusters hold
bootstrap    resampling, for what has no formula
people       what people would say, from a sample and an instrument's verdicts
"""
