"""The agent: acquires leases, and reloads and drains it."""

from __future__ import annotations

import os
from typing import Any, Callable
from urllib.parse import quote

from . import _clock
from ._lease import REQUEST_TIMEOUT, Lease, lease_path
from ._transport import Call, Request, Signal, Wire, raise_if_set
from .errors import Lost, SlotkeeperError

ACQUIRE_MARGIN = 15.0
"""Seconds after the end of the wait until a request for a slot fails: the agent ends the wait, unless it is paused."""

WITHDRAW_TIMEOUT = 1.0
"""Seconds in which the agent notices that a request was withdrawn."""

RELOAD_TIMEOUT = 30.0
"""Seconds for the answer to a reload."""


class Agent:
    """The agent at `unix:/path/of/the.sock`, or at `http://127.0.0.1:port` with the token in a file.

    It may be used by any number of threads. Each request has a connection of its own, and reads the token anew.
    """

    def __init__(self, address: str, token_file: str | os.PathLike[str] | None = None) -> None:
        self._wire = Wire(address, token_file)

    def acquire(
        self,
        name: str,
        wait: _clock.Duration = 0,
        *,
        cancel: Signal | None = None,
        on_loss: Callable[[Lost], object] | None = None,
    ) -> Lease:
        """Acquires the slots of a semaphore, as a lease.

        `wait` is the time in the queue, at most an hour; without it, there is one attempt. `cancel` ends the wait: it is a
        `threading.Event`, or has its `is_set`. `on_loss` is called once, by the lease's thread, if the lease is lost.

        Raises `TimedOut`, `Refused`, `Unavailable`, `Cancelled`, or `Lost` if the lease is lost in the instant of its grant.
        """
        return self._acquire(f"/v1/semaphores/{quote(name, safe='')}/acquire", wait, cancel, on_loss)

    def acquire_lock(
        self,
        name: str,
        wait: _clock.Duration = 0,
        *,
        cancel: Signal | None = None,
        on_loss: Callable[[Lost], object] | None = None,
    ) -> Lease:
        """Acquires a lock, as a lease. The parameters are those of `acquire`."""
        return self._acquire(f"/v1/locks/{quote(name, safe='')}/acquire", wait, cancel, on_loss)

    def reload(self) -> dict[str, Any]:
        """Has the agent read its configuration again and apply all of it. Returns the report."""
        return self._wire.ask(Request("POST", "/v1/reload"), _clock.now() + RELOAD_TIMEOUT).content()

    def drain(self) -> None:
        """Tells the agent that the workload is done. It releases everything, all leases too, and exits."""
        self._wire.ask(Request("POST", "/v1/drain"), _clock.now() + REQUEST_TIMEOUT).content()

    def _acquire(
        self, path: str, wait: _clock.Duration, cancel: Signal | None, on_loss: Callable[[Lost], object] | None
    ) -> Lease:
        wait_ms = _clock.milliseconds(wait)
        raise_if_set(cancel)
        to_send = Request("POST", path, {"wait": _clock.as_text(wait_ms)})
        request = self._wire.encode(to_send, _clock.now() + REQUEST_TIMEOUT, cancel)
        sent = _clock.now()
        with Call(self._wire.address) as call:
            try:
                answer = call.exchange(request, sent + wait_ms / 1000 + ACQUIRE_MARGIN, cancel)
            except BaseException:
                self._withdraw(call)
                raise
        lease = Lease(self._wire, answer.content(), sent, on_loss)
        try:
            lease.start()
        except BaseException:
            lease.release()
            raise
        return lease

    def _withdraw(self, call: Call) -> None:
        """Leaves the queue. A lease that is granted in the same instant is released."""
        try:
            granted = call.withdraw(_clock.now() + WITHDRAW_TIMEOUT).content()
            self._wire.ask(Request("DELETE", lease_path(str(granted["lease"]))), _clock.now() + REQUEST_TIMEOUT)
        except (SlotkeeperError, KeyError):
            # The usual case: the agent has ended the request, and there is no lease.
            pass
