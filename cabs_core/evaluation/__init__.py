"""How good a policy is: by replay on a table (`replay`), from the log of another one (`ope`).

`metrics` has the figures that say so; how sure they are says `base.statistics`, and what people read of it
is made in `report`. Public: `replay_many`, `ReplayResult`, `tune`, `frontier`, `paired_difference`,
`evaluate`.
"""
