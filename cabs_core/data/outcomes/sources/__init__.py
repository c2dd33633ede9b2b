"""Sources of outcomes, one module per source. Each has a function that returns `RawOutcomes` with every
model.
"""
