"""Real agents on a development server, and stubs of agents."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import slotkeeper

BINARY = os.environ["SLOTKEEPER_BIN"]

TTL = 10.0
"""The TTL of the agents' sessions: the shortest that Consul has."""

LEASE = TTL * 0.9
"""The most that is left of a lease. A renewal returns two thirds of it or more, since the agent renews by itself."""

RENEWED = LEASE * 0.6
"""More than this is left after a renewal."""

PATIENCE = 60.0
"""Seconds for what must happen, on a busy machine."""


def wait_for(what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Process:
    """A slotkeeper process, with its log in a file."""

    def __init__(self, folder: Path, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.log_file = folder / f"{name}.log"
        # Without the settings of this process, such as its CONSUL_HTTP_ADDR.
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [BINARY, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def log(self) -> str:
        return self.log_file.read_text()

    def await_log(self, pattern: str) -> str:
        """Waits for a line; returns the first group of the pattern."""

        def is_there() -> bool:
            assert self._process.poll() is None, self.log()
            return re.search(pattern, self.log()) is not None

        wait_for(f"the log line {pattern}", is_there)
        found = re.search(pattern, self.log())
        assert found is not None
        return found.group(1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stops it where it is, like a machine that hangs."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)


class Site:
    """A development server and its agents, in a folder with a short name: a unix socket's has at most 107 bytes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slotkeeper-"))
        self._processes: list[Process] = []
        dev = self._start("dev", ["dev", "--listen", "127.0.0.1:0"], {})
        try:
            self.consul = dev.await_log(r"server on (http://[0-9.:]+)")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> Process:
        process = Process(self.folder, name, arguments, environment)
        self._processes.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs an operator's command on the development server."""
        environment = {"PATH": os.environ["PATH"], "CONSUL_HTTP_ADDR": self.consul}
        return subprocess.run(
            [BINARY, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
        )

    def evict(self, lease: slotkeeper.Lease) -> None:
        """Has an operator evict a lease, whose command waits for the release."""
        self._start("evict", ["evict", "service/licences", lease.session, "--yes"], {"CONSUL_HTTP_ADDR": self.consul})

    def agent(self, name: str = "agent", control: str | None = None, limit: int = 1) -> RunningAgent:
        """Starts an agent with the semaphore `licences` and the lock `leader`; again if it has ended."""
        socket_path = self.folder / f"{name}.sock"
        control = control or f"listen: 'unix:{socket_path}'"
        config = self.folder / f"{name}.yaml"
        config.write_text(
            f"session: {{ttl: {TTL:.0f}s}}\n"
            "semaphores:\n"
            f"  - {{name: licences, prefix: service/licences, limit: {limit}, mode: on_demand}}\n"
            "  - {name: held, prefix: service/held, limit: 9, required: false}\n"
            "locks: [{name: leader, key: service/leader, mode: on_demand}]\n"
            "http: {listen: '127.0.0.1:0'}\n"
            f"control: {{{control}}}\n"
        )
        environment = {"CONSUL_HTTP_ADDR": self.consul}
        process = self._start(name, ["agent", "--config", str(config)], environment)
        address = process.await_log(r"control endpoints served address=(\S+)")
        process.await_log(r"INFO (slotkeeper started)")
        return RunningAgent(self, process, address)

    def contenders(self) -> int:
        """The number of clients that hold or wait for the semaphore."""
        listed = self.run("inspect", "service/licences", "-o", "json").stdout
        return listed.count('"session":')

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
        shutil.rmtree(self.folder)


class RunningAgent:
    """An agent's process, and a client of it."""

    def __init__(self, site: Site, process: Process, address: str) -> None:
        self.site = site
        self.process = process
        self.address = address

    def client(self, token_file: Path | None = None) -> slotkeeper.Agent:
        return slotkeeper.Agent(self.address, token_file)

    def http_address(self) -> str:
        return self.process.await_log(r"INFO endpoints served address=(\S+)")


class Stub:
    """A server that answers as no agent should, or at an instant that no agent can be brought to."""

    def __init__(self, folder: Path, serve: Callable[[socket.socket, bytes], None]) -> None:
        self.requests: list[bytes] = []
        self.address = f"unix:{folder}/stub.sock"
        self._serve = serve
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"{folder}/stub.sock")
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(64 * 1024)
            self.requests.append(request)
            self._serve(connection, request)

    def close(self) -> None:
        # It does not wake up a thread that accepts; shutting down does.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def stub(folder: Path, serve: Callable[[socket.socket, bytes], None]) -> Iterator[Stub]:
    """A stub that ends with the block."""
    server = Stub(folder, serve)
    try:
        yield server
    finally:
        server.close()


def renewing_stub(folder: Path, renewals: list[bytes], lease: str = "") -> contextlib.AbstractContextManager[Stub]:
    """A stub that grants a lease and answers its renewals in turn, the last answer again and again."""
    answers = iter(renewals)
    last = b""

    def serve(connection: socket.socket, request: bytes) -> None:
        nonlocal last
        if b"/acquire " in request:
            connection.sendall(http_answer("200 OK", lease or GRANTED))
        elif b"/renew " in request:
            last = next(answers, last)
            connection.sendall(last)
        else:
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    return stub(folder, serve)


def http_answer(status: str, body: str) -> bytes:
    """An answer in one piece."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return (head + body).encode()


GRANTED = (
    '{"lease":"abc","session":"s","fencing_token":7,"lock_index":null,"slot_indexes":[0],"slot":0,'
    '"expires_in_seconds":9.0,"expires_in":9.0,"kind":"semaphore","name":"licences","prefix":"p","key":null,'
    '"draining":false,"draining_ends_in_seconds":null}'
)
"""A lease, as an agent grants it."""
