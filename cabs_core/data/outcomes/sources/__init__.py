"""Where outcomes come from: one module per source. Each returns `RawOutcomes` with every model it has."""
