"""`replay.sessions` in a pool file: conversations of condition `sessions`, and what keeps a model there."""

from pydantic import Field

from cabs_core.base.utility import Sticky
from cabs_core.data.pool_files.strict import Strict


class Sessions(Strict):
    """How queries become conversations; `cabs_core.evaluation.replay.sessions` says what each number does."""

    #: mean number of turns of a conversation (geometric, at least 1)
    turns: float = Field(4.0, ge=1, le=1000)
    #: when a turn keeps the model of the turn before, as `cabs serve --sticky`: session, tools or off
    sticky: Sticky = "session"
    cached: float = Field(0.1, ge=0, le=1)  #: price of a cached token in, as a share of that of a token in
    tools: float = Field(0.0, ge=0, le=1)  #: share of the later turns that are steps of a tool loop
    #: share of a call's cost that is input, where the table has no token counts
    input_share: float = Field(0.4, gt=0, le=1)
