"""Slots and locks of the slotkeeper agent on this machine, through its control API.

    import slotkeeper

    agent = slotkeeper.Agent("unix:/run/slotkeeper/control.sock")
    with agent.acquire("licences", wait="30s") as lease:
        for part in parts:
            lease.check()  # raises Lost: stop here
            write(part, token=lease.fencing_token)

A lease is renewed in the background at a third of its time. It is lost when the agent reports that, or when it expires
without an answer. `slotkeeper.aio` is the same for asyncio.
"""

from ._agent import Agent
from ._clock import Duration
from ._lease import Lease
from .errors import Cancelled, Lost, Refused, SlotkeeperError, TimedOut, Unavailable

__all__ = [
    "Agent",
    "Cancelled",
    "Duration",
    "Lease",
    "Lost",
    "Refused",
    "SlotkeeperError",
    "TimedOut",
    "Unavailable",
]
