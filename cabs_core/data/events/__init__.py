"""The router's event log: every decision before it is answered, every reward once.

`log` is what the rest uses, `rows` and `database` are below it; `reservations` are what calls under way may
cost, `retention` takes back and removes, `bills` counts what was paid.
"""
