"""Where outcomes come from: one module a source. Each returns `RawOutcomes` with every model it has."""
