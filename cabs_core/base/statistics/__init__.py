"""How sure a figure is. Pure NumPy; no files, no policies.

clusters     what an independent observation is: prompts with near-copies, conversations
uncertainty  errors, intervals, bounds, and what was not seen; many comparisons
costs        mean costs, which have no largest value
bootstrap    resampling, for what has no formula
people       what people would say, from a sample and an instrument's verdicts
"""
