"""The router's event log: each decision is written before its request is answered, each reward once.

Other packages use `log`, which stands on `rows` and `database`. `reservations` holds what calls under way may
cost, `retention` takes back and removes rows, and `bills` sums up what was paid.
"""
