"""Slots and locks of a slotkeeper agent beside us, through its control endpoints. Needs nothing but Python.

    from slotkeeper import Agent, Lost

    agent = Agent("unix:/run/slotkeeper/control.sock")
    with agent.lease("warehouse-writers", wait="10m") as lease:
        for part in parts:
            lease.check()                      # raises Lost: stop here
            write(part, token=lease.token)     # a store that refuses old tokens is safe whatever happens

The agent's configuration has `control: {listen: "unix:/run/slotkeeper/control.sock"}` and a semaphore with
`mode: on_demand`. A lease is renewed in the background at a third of its time. It counts as lost when the agent says so,
and when the time is over without an answer: whichever comes first.
"""

import http.client
import json
import re
import socket
import threading
import time
from urllib.parse import quote, urlsplit

RENEWALS = 3
"""Renewals in a lease's time, so that two may fail."""

PATIENCE = 5.0
"""Seconds for an answer that does not wait for a slot."""

BEYOND_WAIT = 15.0
"""Seconds that the answer to a request for a slot may take beyond the wait: an agent that stands still answers nothing."""


class Refused(Exception):
    """What the agent answered instead of yes; `code` is its word for programs, such as `blocked`."""

    def __init__(self, status: int, code: str, said: str):
        super().__init__(f"{status}: {said}")
        self.status, self.code = status, code


class TimedOut(Refused):
    """The slot was not to be had in the time given."""


class Lost(Exception):
    """The lease is over, and somebody else may have the slot."""


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
        """A lease of a semaphore, or of one of the `locks`, to be entered by `with`."""
        return Lease(self, f"/v1/{kind}/{quote(name, safe='')}/acquire", wait)

    def ask(self, method: str, path: str, body: dict | None = None, timeout: float | None = PATIENCE) -> dict:
        """One request on a connection of its own, so that any thread may ask at any time."""
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
            raise OSError(f"half an answer from {self.address}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            code = code_of(text)
            raise (TimedOut if code == "timed_out" else Refused)(answer.status, code, text.strip())
        return json.loads(text) if text else {}

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        if self.address.startswith("unix:"):
            return OverSocket(self.address.removeprefix("unix:"), timeout)
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)


class Lease:
    """A slot while it is ours. `token` grows from grant to grant; `slot` is a number that nobody else has now."""

    def __init__(self, agent: Agent, path: str, wait: str):
        self._agent, self._path, self._wait = agent, path, wait
        self._given_back = threading.Event()
        self.lost = threading.Event()

    def __enter__(self) -> "Lease":
        sent = now()
        # The agent ends the waiting. Where we go away first, it gives the slot back.
        patience = seconds(self._wait) + BEYOND_WAIT
        granted = self._agent.ask("POST", self._path, {"wait": self._wait}, patience)
        self.id, self.session = granted["lease"], granted["session"]
        self.token, self.slot = granted["fencing_token"], granted["slot"]
        # What the answer says counts from when we asked, since it may have lain there while we stood still. After a wait that may
        # be over already; what is left is told by a renewal, which is answered at once.
        self._ends = sent + seconds(granted["expires_in"])
        self._try_to_renew(PATIENCE)
        self._keeper = threading.Thread(target=self._keep, name=f"lease {self.id}", daemon=True)
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._given_back.set()
        self._keeper.join()
        try:
            self._agent.ask("DELETE", f"/v1/leases/{quote(self.id, safe='')}")
        except (OSError, Refused):
            # It is over already, or will be soon: nobody renews it any more.
            pass

    def remaining(self) -> float:
        """Seconds for which it is ours for sure."""
        return 0.0 if self.lost.is_set() else max(0.0, self._ends - now())

    def check(self) -> None:
        """Raises `Lost` where it is not ours any more. Ask before each step that must not be done without the slot."""
        if self.remaining() <= 0:
            raise Lost(f"lease {self.id} is over")

    def _keep(self) -> None:
        while not self._given_back.wait(min(self._every, self.remaining())):
            if self.remaining() > 0:
                self._try_to_renew(min(PATIENCE, max(0.1, self.remaining())))
            if self.remaining() <= 0:
                self.lost.set()
                return

    def _try_to_renew(self, patience: float) -> None:
        sent = now()
        try:
            renewed = self._agent.ask("POST", f"/v1/leases/{quote(self.id, safe='')}/renew", {}, patience)
            self._ends = sent + seconds(renewed["expires_in"])
        except Refused as refused:
            if refused.status in (404, 410):
                self.lost.set()
        except OSError:
            # Nobody answers: the lease is ours as long as it lasts, and the next attempt may succeed.
            pass
        self._every = max(0.1, self.remaining() / RENEWALS)


def code_of(answer: str) -> str:
    """The code of a refusal, where it has one."""
    try:
        return str(json.loads(answer)["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def now() -> float:
    """Seconds on a clock that goes on while the machine is suspended, and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def seconds(expires_in: float | str) -> float:
    """A duration as the agent writes it: seconds, or a text such as `27s` or `1m30s`."""
    if isinstance(expires_in, (int, float)):
        return float(expires_in)
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)(ms|s|m|h|)", expires_in))
