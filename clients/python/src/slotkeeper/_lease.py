"""A lease: when it expires, its renewals, its loss and its release."""

from __future__ import annotations

import logging
import math
import os
import threading
from types import TracebackType
from typing import Any, Callable
from urllib.parse import quote

from . import _clock
from ._transport import MAX_SLEEP, NotListening, Request, Wire
from .errors import Cancelled, Lost, Refused, Unavailable

RENEWALS = 3
"""Renewals within the time of a lease, so that two may fail."""

REQUEST_TIMEOUT = 5.0
"""Seconds for the answer to a request that does not wait for a slot."""

RETRY_INTERVAL = 1.0
"""The most seconds from a failed renewal to the next one."""

MIN_INTERVAL = 0.1
"""The fewest seconds for a renewal, and between two."""

MAX_LEASE = 48 * 3600.0
"""Seconds: longer than any session's TTL."""

EXPIRY_MARGIN = 0.1
"""Seconds before its expiry at which a lease counts as lost, so that the program learns of it in time."""

_log = logging.getLogger("slotkeeper")
# Only a program that sets up logging sees the lines.
_log.addHandler(logging.NullHandler())


class Lease:
    """A slot or lock that this process holds, renewed by a thread. The `with` block releases it.

    A child made by `os.fork` does not hold it: there `check` raises `Lost`, and a release or the end of the block does nothing.

    `lost` is set when the lease is no longer held, and `loss` says why. `fencing_token` increases with each grant. No other
    holder has one of the `slot_indexes`. `lock_index` is the LockIndex in Consul, for a lock. `draining` tells that the agent
    ends: the lease lasts until it expires, and cannot be renewed once the agent has ended.
    """

    def __init__(self, wire: Wire, granted: dict[str, Any], sent: float, on_loss: Callable[[Lost], object] | None) -> None:
        try:
            self.id = str(granted["lease"])
            self.kind = str(granted["kind"])
            self.name = str(granted["name"])
            self.session = str(granted["session"])
            self.fencing_token = int(granted["fencing_token"])
            self.slot_indexes = tuple(int(index) for index in granted["slot_indexes"])
            self.lock_index: int | None = granted["lock_index"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Unavailable(f"the agent's answer is not a lease: {error!r}") from error
        self.draining = False
        self.lost = threading.Event()
        self.loss: Lost | None = None
        self._wire = wire
        self._on_loss = on_loss
        self._expires = _expiry(granted, sent)
        # A request that has waited for its slot says nothing of what is left of the lease: a renewal does.
        self._is_confirmed = _clock.now() - sent < (self._expires - sent) / RENEWALS
        self._failure = "it was not renewed in time"
        self._is_unknown = False
        self._process = os.getpid()
        # Guards `loss`, `_expires`, and that the release begins once. A signal handler may interrupt the thread that has it.
        self._guard = threading.RLock()
        self._is_releasing = False
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"slotkeeper lease {self.id}", daemon=True)

    def __repr__(self) -> str:
        return f"<Lease of the {self.kind} {self.name}, {self.remaining():.1f} s left>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Releases the lease. Raises `Lost` if it was lost: the block has not held the slot to its end."""
        if self._is_of_another_process():
            return
        try:
            if error is None and not self._released.is_set():
                self.check()
        finally:
            self.release()

    def remaining(self) -> float:
        """Seconds for which the slot is certainly held."""
        if self._is_of_another_process():
            return 0.0
        with self._guard:
            if self.loss is not None or self._released.is_set():
                return 0.0
            return max(0.0, self._expires - _clock.now())

    def check(self) -> None:
        """Raises `Lost` if the slot is no longer held. Call it before each step that must not run without the slot."""
        if self._is_of_another_process():
            raise Lost(
                f"the lease of the {self.kind} {self.name} belongs to the process {self._process}, which has forked this one"
            )
        with self._guard:
            if self._has_expired():
                # A new one each time, since several threads may raise it.
                raise Lost(str(self.loss))
            if self._released.is_set():
                raise Lost(f"the lease of the {self.kind} {self.name} was released")

    def show(self) -> dict[str, Any]:
        """The lease as the agent knows it. This does not renew it."""
        return self._wire.ask(Request("GET", lease_path(self.id)), _clock.now() + REQUEST_TIMEOUT).content()

    def release(self) -> None:
        """Releases the slot, once, in a bounded time. An agent that does not answer releases the lease later by itself, since
        it is no longer renewed. A second call does nothing, and does not wait for the first."""
        if self._is_of_another_process():
            return
        deadline = _clock.now() + REQUEST_TIMEOUT
        with self._guard:
            if self._is_releasing:
                return
            self._is_releasing = True
            self._released.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            # A renewal stops waiting for its answer at once. A program's `on_loss` may take longer: leave time for the request.
            self._thread.join(REQUEST_TIMEOUT / 2)
        if self._is_unknown:
            return
        try:
            self._wire.ask(Request("DELETE", lease_path(self.id)), deadline).content()
        except Exception as error:  # An error here would replace that of the block.
            _log.info("release failed: lease=%s error=%s", self.id, error)

    def start(self) -> None:
        """Begins to renew the lease. Raises `Lost`, or what has kept the first renewal from an answer."""
        if not self._is_confirmed:
            self._expires = math.inf
            self._renew(_clock.now() + REQUEST_TIMEOUT)
            self.check()
        self._thread.start()

    def _is_of_another_process(self) -> bool:
        """Whether this process was forked. It has no thread that renews, and a lock may be held that no thread will free."""
        return os.getpid() != self._process

    def _keep(self) -> None:
        """Renews until the lease is released or lost."""
        longest = math.inf
        while self._sleep(max(min(self.remaining() / RENEWALS, longest), MIN_INTERVAL)):
            timeout = max(min(self.remaining() / RENEWALS, REQUEST_TIMEOUT), MIN_INTERVAL)
            try:
                self._renew(min(self._expires, _clock.now() + timeout))
                longest = math.inf
            except Cancelled:
                return
            except Exception as error:  # Without its thread, the lease would expire unnoticed.
                _log.warning("lease renewal failed, retrying: lease=%s error=%s", self.id, error)
                self._failure = f"the last renewal failed: {error}"
                longest = RETRY_INTERVAL
        if self.loss is not None and not self._released.is_set():
            _log.warning("lease lost: lease=%s reason=%s", self.id, self.loss)
            if self._on_loss is not None:
                self._on_loss(self.loss)

    def _sleep(self, pause: float) -> bool:
        """Sleeps until the next renewal. Returns whether there is one: the lease is neither released nor lost."""
        wakes = _clock.now() + pause
        while not self._released.is_set():
            with self._guard:
                if self._released.is_set() or self._has_expired():
                    return False
                pause = min(wakes, self._expires) - _clock.now()
            if pause <= 0:
                return True
            self._released.wait(min(pause, MAX_SLEEP))
        return False

    def _renew(self, deadline: float) -> None:
        sent = _clock.now()
        try:
            renewed = self._wire.ask(Request("POST", lease_path(self.id, "/renew")), deadline, self._released).content()
            if renewed.get("lease") != self.id:
                raise Unavailable(f"the agent's answer is of the lease {renewed.get('lease')!r}")
            expires = _expiry(renewed, sent)
        except NotListening as error:
            # A draining agent leaves the slot to this program: nothing renews the lease any more, and it expires.
            if self.draining:
                raise
            self._lose_guarded(f"its agent has ended: {error}")
            return
        except Refused as refused:
            # The agent has ended, or its successor answers, which does not know the lease.
            if self.draining and refused.status != 410:
                raise
            if (refused.status, refused.code) == (503, "draining"):
                self._lose_guarded(f"its agent has ended: {refused}")
            elif refused.status == 410 or refused.code == "unknown_lease":
                self._is_unknown = refused.code == "unknown_lease"
                self._lose_guarded(str(refused))
            else:
                raise
            return
        self.draining = renewed.get("draining") is True
        with self._guard:
            # An answer that comes after the expiry is too late: the program knows of the loss.
            if not self._has_expired():
                self._expires = expires

    def _has_expired(self) -> bool:
        """Whether the lease is lost, by the time or by an answer."""
        if self.loss is None and not self._released.is_set() and self._expires <= _clock.now():
            self._lose(self._failure)
        return self.loss is not None

    def _lose_guarded(self, reason: str) -> None:
        with self._guard:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self.loss is None and not self._released.is_set():
            self.loss = Lost(f"the lease of the {self.kind} {self.name} is lost: {reason}")
            self.lost.set()


def lease_path(lease: str, action: str = "") -> str:
    """The path of a lease's endpoint."""
    return f"/v1/leases/{quote(lease, safe='')}{action}"


def _expiry(answer: dict[str, Any], sent: float) -> float:
    """When a lease expires by this answer. It counts from before the request: this process may have been paused since."""
    try:
        expires_in = float(answer["expires_in_seconds"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Unavailable(f"the agent's answer is not a lease: {error!r}") from error
    if not 0 <= expires_in < math.inf:
        raise Unavailable(f"the agent's answer is not a lease: it expires in {expires_in} seconds")
    return sent + min(expires_in, MAX_LEASE) - EXPIRY_MARGIN
