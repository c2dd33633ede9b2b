"""The router inside LiteLLM's Router or proxy: a group, a deployment for each model (extra [litellm]).

    from cabs_server.litellm import CabsLogger
    logger = CabsLogger("router", log="router.events.sqlite")
    litellm.callbacks = [logger]
    await logger.check(router, "cabs")             # at start: prices known, events arrive

`model_info.id` of a deployment is the router's model. LiteLLM hands over the deployments that are healthy and
not cooling down; one comes back. Every attempt is a decision of its own, also a retry after a failure. An
error in here never stops a call: the deployments go back as they came, and the error is counted, and logged
at most once a minute.
"""

from cabs_server.litellm.logger import CabsLogger

__all__ = ["CabsLogger"]
