"""Units that several rooms count in."""

from __future__ import annotations

SECONDS_PER_DAY = 86_400.0
