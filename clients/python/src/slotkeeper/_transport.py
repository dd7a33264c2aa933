"""One request to the agent: on a connection of its own, and bounded in time and size."""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import os
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from . import _clock
from .errors import Cancelled, Refused, TimedOut, Unavailable

MAX_ANSWER_BYTES = 1024 * 1024
"""The largest answer. The usual one has 400 bytes."""

MAX_TOKEN_BYTES = 8 * 1024
"""The largest token file."""

MAX_SLEEP = 1.0
"""The clock of the system's waits stops while the machine is suspended: after this time, the lease's clock is read again."""

CANCEL_POLL = 0.1
"""Seconds until a wait notices its `cancel`."""


class Signal(Protocol):
    """Such as `threading.Event`."""

    def is_set(self) -> bool:
        """Whether the wait ends."""


@dataclass(frozen=True)
class Address:
    """Where the agent listens: `unix:/path/of/the.sock`, or `http://127.0.0.1:port`."""

    text: str
    family: socket.AddressFamily
    target: str | tuple[str, int]
    host: str

    @classmethod
    def parse(cls, text: str) -> Address:
        if text.startswith("unix:/"):
            return cls(text, socket.AF_UNIX, text[len("unix:") :], "slotkeeper")
        wrong = ValueError(f"{text!r} is not an agent's address: write unix:/path/of/the.sock or http://127.0.0.1:port")
        try:
            parts = urlsplit(text)
            port = parts.port
            # Only an address of this machine: the token is sent in clear.
            host = loopback_address(parts.hostname or "")
        except ValueError as error:
            raise wrong from error
        if parts.scheme != "http" or not port or "@" in parts.netloc or parts.path not in ("", "/"):
            raise wrong
        if parts.query or parts.fragment:
            raise wrong
        return cls(text, socket.AF_INET6 if host.version == 6 else socket.AF_INET, (str(host), port), parts.netloc)


def loopback_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address of a host of this machine. `localhost` is not looked up."""
    address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    if (address.version == 4 and address.is_loopback) or str(address) == "::1":
        return address
    raise ValueError(f"{host} is not a loopback address")


@dataclass(frozen=True)
class Request:
    """What is sent, without the token."""

    method: str
    path: str
    body: dict[str, Any] | None = None

    def encode(self, host: str, token: str | None) -> bytes:
        body = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        if self.body is not None:
            lines.append("Content-Type: application/json")
        if self.method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    content_type: str
    body: bytes

    def content(self) -> dict[str, Any]:
        """The JSON of an answer that is no refusal; empty if it has none."""
        if self.status >= 300:
            raise self._refusal()
        if not self.body:
            return {}
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"the agent's answer is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise Unavailable("the agent's answer is not a JSON object")
        return content

    def _refusal(self) -> Refused:
        try:
            content = json.loads(self.body)
            code, message = str(content["code"]), str(content["error"])
        except (ValueError, RecursionError, KeyError, TypeError):
            code, message = "", "the agent refused the request"
        return (TimedOut if code == "timed_out" else Refused)(self.status, code, message)


class TokenFile:
    """A token file, read anew for each request, by a thread: no deadline ends a read of a file system that hangs.

    While a read hangs, requests wait for that one, so that there is at most one such thread.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        # A signal handler may send a request while its thread has it.
        self._guard = threading.RLock()
        self._reading: _Reading | None = None

    def read(self, deadline: float, cancel: Signal | None) -> str:
        with self._guard:
            # In a forked process, the thread of its parent is not alive.
            if self._reading is None or not self._reading.is_alive():
                self._reading = _Reading(self._path)
                self._reading.start()
            reading = self._reading
        while reading.is_alive():
            raise_if_set(cancel)
            remaining = deadline - _clock.now()
            if remaining <= 0:
                raise Unavailable(f"the token file {os.fspath(self._path)} cannot be read in time")
            reading.join(min(remaining, MAX_SLEEP if cancel is None else CANCEL_POLL))
        return reading.token()


class _Reading(threading.Thread):
    """One read of a token file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(name="slotkeeper token", daemon=True)
        self._path = path
        self._result: str | Unavailable = Unavailable(f"the token file {os.fspath(path)} cannot be read")

    def run(self) -> None:
        try:
            self._result = read_token(self._path)
        except Unavailable as error:
            self._result = error

    def token(self) -> str:
        if isinstance(self._result, Unavailable):
            # A new one each time, since several threads may raise it.
            raise Unavailable(str(self._result)) from self._result
        return self._result


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file, which is read for each request: it may have changed."""
    try:
        with open(path, "rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise Unavailable(f"the token file {os.fspath(path)} cannot be read: {error.strerror}") from error
    if len(token) > MAX_TOKEN_BYTES or not token or not all(33 <= byte <= 126 for byte in token):
        raise Unavailable(f"the token file {os.fspath(path)} must have one token of visible ASCII characters")
    return token.decode("ascii")


def raise_if_set(cancel: Signal | None) -> None:
    """Ends a wait that is cancelled."""
    if cancel is not None and cancel.is_set():
        raise Cancelled("the request was cancelled")


class NotListening(Unavailable):
    """Nothing listens at the agent's address: its process has ended."""


class Call:
    """A request on its way. Whatever happens, its connection is closed at the end of the `with` block."""

    def __init__(self, address: Address) -> None:
        self._address = address
        try:
            self._socket = socket.socket(address.family, socket.SOCK_STREAM)
        except OSError as error:
            raise self._unavailable(f"no socket: {error.strerror}") from error
        self._received = bytearray()

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def exchange(self, request: bytes, deadline: float, cancel: Signal | None = None) -> Answer:
        """Sends the request and waits for the whole answer. `deadline` is a time of the lease's clock."""
        raise_if_set(cancel)
        try:
            self._wait_at_most(deadline, MAX_SLEEP)
            self._connect()
            self._socket.sendall(request)
        except OSError as error:
            raise self._unavailable(f"no connection: {error.strerror or error}") from error
        return self.receive(deadline, cancel)

    def _connect(self) -> None:
        try:
            self._socket.connect(self._address.target)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise NotListening(f"nothing listens at {self._address.text}: {error.strerror}") from error

    def withdraw(self, deadline: float) -> Answer:
        """Ends a request that waits: the agent sees the end of the connection. Returns an answer that was on its way."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        return self.receive(deadline)

    def receive(self, deadline: float, cancel: Signal | None = None) -> Answer:
        """The whole answer: the agent closes the connection after it."""
        while True:
            raise_if_set(cancel)
            self._wait_at_most(deadline, MAX_SLEEP if cancel is None else CANCEL_POLL)
            try:
                piece = self._socket.recv(64 * 1024)
            except socket.timeout:  # An alias of TimeoutError from Python 3.10 on.
                continue
            except OSError as error:
                raise self._unavailable(error.strerror or str(error)) from error
            if not piece:
                return self._parse()
            self._received += piece
            if len(self._received) > MAX_ANSWER_BYTES:
                raise self._unavailable(f"its answer has more than {MAX_ANSWER_BYTES} bytes")

    def _wait_at_most(self, deadline: float, longest: float) -> None:
        remaining = deadline - _clock.now()
        if remaining <= 0:
            raise self._unavailable("its answer did not come in time")
        self._socket.settimeout(min(remaining, longest))

    def _parse(self) -> Answer:
        if not self._received:
            raise self._unavailable("it closed the connection without an answer")
        response = http.client.HTTPResponse(cast(socket.socket, _Received(bytes(self._received))))
        try:
            response.begin()
            body = response.read()
        except (http.client.HTTPException, ValueError, OSError) as error:
            raise self._unavailable(f"its answer is not complete: {error!r}") from error
        return Answer(response.status, response.headers.get("Content-Type", ""), body)

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"the agent at {self._address.text} did not answer: {why}")


class _Received:
    """The bytes of an answer, where `HTTPResponse` expects a socket."""

    def __init__(self, received: bytes) -> None:
        self._file = io.BytesIO(received)

    def makefile(self, mode: str) -> io.BytesIO:
        return self._file


class Wire:
    """Sends requests to one agent."""

    def __init__(self, address: str, token_file: str | os.PathLike[str] | None) -> None:
        self.address = Address.parse(address)
        self._token_file = None if token_file is None else TokenFile(token_file)

    def encode(self, request: Request, deadline: float, cancel: Signal | None = None) -> bytes:
        token = None if self._token_file is None else self._token_file.read(deadline, cancel)
        return request.encode(self.address.host, token)

    def ask(self, request: Request, deadline: float, cancel: Signal | None = None) -> Answer:
        with Call(self.address) as call:
            return call.exchange(self.encode(request, deadline, cancel), deadline, cancel)
