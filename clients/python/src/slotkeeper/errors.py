"""The errors of the client. All of them are a `SlotkeeperError`."""

from __future__ import annotations


class SlotkeeperError(Exception):
    """An error of this client."""


class Refused(SlotkeeperError):
    """The agent answered with an error. `code` is for programs, such as `blocked`; the text is for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{message} ({status} {code})" if code else f"{message} ({status})")
        self.status = status
        self.code = code
        self.message = message


class TimedOut(Refused):
    """No slot became free within the wait."""


class Unavailable(SlotkeeperError):
    """The agent did not answer, or not completely, or not in time. The cause is the error of the system, if there is one."""


class Lost(SlotkeeperError):
    """The lease is no longer held, and another client may have the slot. Stop what uses it."""


class Cancelled(SlotkeeperError):
    """The event of `cancel` was set while the request waited. The request has left the queue."""
