"""`hier_mix`: the policy (`policy`), the rule of a round (`rounds`), the arithmetic (`models`)."""
