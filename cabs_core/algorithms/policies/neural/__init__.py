"""Policies with a network in place of ridge models: the rule in `policies`, the arithmetic in `networks`."""
