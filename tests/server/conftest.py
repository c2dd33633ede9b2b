"""The fixtures of the small router."""

from small_router import *  # noqa: F403  (pytest finds fixtures by their names)
