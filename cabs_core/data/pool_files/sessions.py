"""`replay.sessions` in a pool file: how the stress condition `sessions` makes conversations of queries."""

from pydantic import Field

from cabs_core.base.utility import Sticky
from cabs_core.data.pool_files.strict import Strict


class Sessions(Strict):
    """Settings of the conversations that `cabs_core.evaluation.replay.sessions` makes of queries.

    Attributes:
        turns: mean number of turns of a conversation (geometric, at least 1).
        sticky: turns that keep the model of the turn before, as in `cabs serve --sticky`: session, tools or
            off.
        cached: price of a cached input token as a share of the price of an input token.
        tools: share of the turns after the first that are steps of a tool loop.
        input_share: share of a call's cost that is for input, used if the table has no token counts.
    """

    turns: float = Field(4.0, ge=1, le=1000)
    sticky: Sticky = "session"
    cached: float = Field(0.1, ge=0, le=1)
    tools: float = Field(0.0, ge=0, le=1)
    input_share: float = Field(0.4, gt=0, le=1)
