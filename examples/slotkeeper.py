"""Slots and locks of the local slotkeeper agent, through its control endpoints. Needs only Python.

    from slotkeeper import Agent, Lost

    agent = Agent("unix:/run/slotkeeper/control.sock")
    with agent.lease("warehouse-writers", wait="10m") as lease:
        for part in parts:
            lease.check()                      # raises Lost: stop here
            write(part, token=lease.token)     # a store that refuses old tokens is safe in any case

The agent's configuration has `control: {listen: "unix:/run/slotkeeper/control.sock"}` and a semaphore with
`mode: on_demand`. A lease is renewed in the background at a third of its time. It is lost when the agent reports it, or
when it expires without an answer.
"""

import http.client
import json
import re
import socket
import threading
import time
from urllib.parse import quote, urlsplit

RENEWALS = 3
"""Renewals within the time of a lease, so that two may fail."""

REQUEST_TIMEOUT = 5.0
"""Seconds for the answer to a request that does not wait for a slot."""

ACQUIRE_TIMEOUT_MARGIN = 15.0
"""Seconds after the end of the wait until a request for a slot fails: an agent that is paused does not answer."""


class Refused(Exception):
    """The agent refused the request; `code` is for programs, such as `blocked`."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(f"{status}: {message}")
        self.status, self.code = status, code


class Timeout(Refused):
    """No slot became free within the wait."""


class Lost(Exception):
    """The lease has expired, and another client may have the slot."""


class OverSocket(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float | None):
        super().__init__("slotkeeper", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Agent:
    """The agent at `unix:/path/to/the.sock`, or at `http://127.0.0.1:port` with the token from a file."""

    def __init__(self, address: str, token_file: str | None = None):
        self.address = address
        self.token_file = token_file

    def lease(self, name: str, wait: str = "30s", kind: str = "semaphores") -> "Lease":
        """A lease of a semaphore, or of one of the `locks`, as a context manager."""
        return Lease(self, f"/v1/{kind}/{quote(name, safe='')}/acquire", wait)

    def request(self, method: str, path: str, body: dict | None = None, timeout: float | None = REQUEST_TIMEOUT) -> dict:
        """Sends a request on its own connection, so that any thread may call it at any time."""
        connection = self._connection(timeout)
        try:
            headers = {"Content-Type": "application/json"}
            if self.token_file:
                with open(self.token_file, encoding="utf-8") as file:
                    headers["Authorization"] = f"Bearer {file.read().strip()}"
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"incomplete answer from {self.address}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            code = code_of(text)
            raise (Timeout if code == "timed_out" else Refused)(answer.status, code, text.strip())
        return json.loads(text) if text else {}

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        if self.address.startswith("unix:"):
            return OverSocket(self.address.removeprefix("unix:"), timeout)
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)


class Lease:
    """A slot that this program holds. `token` grows with each grant; no other holder has the number `slot`."""

    def __init__(self, agent: Agent, path: str, wait: str):
        self._agent, self._path, self._wait = agent, path, wait
        self._released = threading.Event()
        self.lost = threading.Event()

    def __enter__(self) -> "Lease":
        sent = now()
        # The agent ends the wait. If this request fails first, the agent releases the slot.
        timeout = seconds(self._wait) + ACQUIRE_TIMEOUT_MARGIN
        granted = self._agent.request("POST", self._path, {"wait": self._wait}, timeout)
        self.id, self.session = granted["lease"], granted["session"]
        self.token, self.slot = granted["fencing_token"], granted["slot_indexes"][0]
        # The lease counts from the request, since this process may have been paused before it read the answer. After a wait it may
        # have expired by that count. A renewal, which is answered at once, returns the rest.
        self._ends = sent + seconds(granted["expires_in_seconds"])
        self._try_to_renew(REQUEST_TIMEOUT)
        self._keeper = threading.Thread(target=self._keep, name=f"lease {self.id}", daemon=True)
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._keeper.join()
        try:
            self._agent.request("DELETE", f"/v1/leases/{quote(self.id, safe='')}")
        except (OSError, Refused):
            # The lease has expired, or will expire without renewals.
            pass

    def remaining(self) -> float:
        """Seconds for which the slot is certainly held."""
        return 0.0 if self.lost.is_set() else max(0.0, self._ends - now())

    def check(self) -> None:
        """Raises `Lost` if the slot is no longer held. Call it before each step that must not run without the slot."""
        if self.remaining() <= 0:
            raise Lost(f"lease {self.id} has expired")

    def _keep(self) -> None:
        while not self._released.wait(min(self._every, self.remaining())):
            if self.remaining() > 0:
                self._try_to_renew(min(REQUEST_TIMEOUT, max(0.1, self.remaining())))
            if self.remaining() <= 0:
                self.lost.set()
                return

    def _try_to_renew(self, timeout: float) -> None:
        sent = now()
        try:
            renewed = self._agent.request("POST", f"/v1/leases/{quote(self.id, safe='')}/renew", {}, timeout)
            self._ends = sent + seconds(renewed["expires_in_seconds"])
        except Refused as refused:
            if refused.status in (404, 410):
                self.lost.set()
        except OSError:
            # No answer: the slot is held until the lease expires, and the next attempt may succeed.
            pass
        self._every = max(0.1, self.remaining() / RENEWALS)


def code_of(answer: str) -> str:
    """The code of a refusal, or an empty string."""
    try:
        return str(json.loads(answer)["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def now() -> float:
    """Seconds on a clock that continues while the machine is suspended and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def seconds(wait: float | str) -> float:
    """A duration: seconds, or a text such as `27s` or `1m30s`."""
    if isinstance(wait, (int, float)):
        return float(wait)
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)(ms|s|m|h|)", wait))
