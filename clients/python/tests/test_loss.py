"""The loss of a lease is told before another client can have the slot, whatever happens to the agent."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from contract import Contract
from harness import GRANTED, LEASE, PATIENCE, RENEWED, TTL, RunningAgent, Site, http_answer, renewing_stub, stub, wait_for

import slotkeeper
from slotkeeper import _clock, _lease

LATE = 0.2
"""Seconds that a busy machine may add to the instant of a loss, which is `EXPIRY_MARGIN` before the expiry."""


class Losing:
    """A lease at an agent, and another client that waits for the slot at another agent."""

    def __init__(self, site: Site, contract: Contract) -> None:
        self.agent: RunningAgent = site.agent()
        self._contract = contract
        self.losses: list[slotkeeper.Lost] = []
        self.told_at = 0.0
        self.lease = self.agent.client().acquire("licences", on_loss=self._on_loss)
        self._rival_client = site.agent("rival").client()
        self._rival = threading.Thread(target=self._take_over)
        self.taken_at = 0.0
        self._rival.start()
        wait_for("the rival to wait", lambda: site.contenders() == 2)

    def _on_loss(self, loss: slotkeeper.Lost) -> None:
        self.told_at = _clock.now()
        self.losses.append(loss)

    def _take_over(self) -> None:
        with self._rival_client.acquire("licences", wait="2m"):
            self.taken_at = _clock.now()

    def expires(self) -> float:
        """When the lease expires, by the last answer."""
        return self._contract.expires[self.lease.id]

    def assert_told_in_time(self, reason: str) -> None:
        wait_for("the loss", lambda: self.losses != [])
        assert self.told_at <= self.expires() + LATE
        assert self.lease.lost.is_set()
        assert re.search(reason, str(self.losses[0]))
        with pytest.raises(slotkeeper.Lost, match="licences is lost"):
            self.lease.check()
        assert self.lease.remaining() == 0
        self._rival.join(PATIENCE)
        assert self.told_at < self.taken_at, "the rival has it before"
        self.lease.release()
        assert len(self.losses) == 1


def test_the_agent_is_killed(site: Site, contract: Contract) -> None:
    losing = Losing(site, contract)
    losing.agent.process.kill()
    began = time.monotonic()
    losing.assert_told_in_time("its agent has ended: .* Connection refused")
    # By the next renewal, not by the time.
    assert losing.told_at < losing.expires() - LEASE / 4
    # The release of a lease of an agent that is no more is no error.
    assert time.monotonic() - began < 4 * TTL


def test_an_agent_that_is_terminated_takes_nothing(site: Site, contract: Contract) -> None:
    losing = Losing(site, contract)
    ending = threading.Thread(target=losing.agent.process.terminate)
    ending.start()
    wait_for("the end to be told", lambda: losing.lease.draining)
    losing.lease.check()
    assert losing.taken_at == 0
    losing.lease.release()
    losing._rival.join(PATIENCE)
    assert losing.taken_at > 0
    assert losing.losses == []
    ending.join(PATIENCE)
    assert "drained" in losing.agent.process.log()


@pytest.mark.parametrize("is_socket_left", [True, False])
def test_an_agent_that_does_not_listen_has_ended(tmp_path_short: Path, is_socket_left: bool) -> None:
    def serve(connection: socket.socket, request: bytes) -> None:
        connection.sendall(http_answer("200 OK", GRANTED))

    with stub(tmp_path_short, serve) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
    if not is_socket_left:
        (tmp_path_short / "stub.sock").unlink()
    assert lease.lost.wait(9.0 / 2), "the loss comes at the next renewal"
    assert "its agent has ended" in str(lease.loss)
    lease.release()


DRAINING = http_answer("503 Service Unavailable", '{"error":"the agent is ending","code":"draining"}')
BUSY = http_answer("503 Service Unavailable", '{"error":"too many requests at once","code":"busy"}')


@pytest.mark.parametrize(("answer", "is_lost"), [(DRAINING, True), (BUSY, False)])
def test_an_agent_that_drains_has_ended(tmp_path_short: Path, answer: bytes, is_lost: bool) -> None:
    renewed = threading.Semaphore(0)

    def serve(connection: socket.socket, request: bytes) -> None:
        is_renewal = b"/renew " in request
        if is_renewal:
            connection.sendall(answer)
            renewed.release()
        elif b"/acquire " in request:
            connection.sendall(http_answer("200 OK", GRANTED))
        else:
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with stub(tmp_path_short, serve) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        assert renewed.acquire(timeout=PATIENCE)
        # A failed attempt is repeated.
        assert lease.lost.wait(1) if is_lost else renewed.acquire(timeout=PATIENCE)
        assert lease.lost.is_set() == is_lost
        lease.release()


UNKNOWN = http_answer("404 Not Found", '{"error":"this agent has no such lease","code":"unknown_lease"}')
LOST = http_answer("410 Gone", '{"error":"another client may hold the slot","code":"lease_lost"}')


@pytest.mark.parametrize(("answer", "lasts"), [(DRAINING, True), (UNKNOWN, True), (LOST, False)])
def test_a_lease_outlasts_an_agent_that_has_drained(tmp_path_short: Path, answer: bytes, lasts: bool) -> None:
    told = GRANTED.replace("9.0", "4.5").replace('"draining":false', '"draining":true')
    with renewing_stub(tmp_path_short, [http_answer("200 OK", told), answer], GRANTED.replace("9.0", "3.0")) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        wait_for("the end to be told", lambda: lease.draining)
        expires = lease._expires
        assert lease.lost.wait(PATIENCE)
        assert (_clock.now() >= expires) == lasts
        lease.release()


def test_a_lease_outlasts_an_agent_that_has_drained_and_gone(tmp_path_short: Path) -> None:
    told = GRANTED.replace("9.0", "4.5").replace('"draining":false', '"draining":true')
    with renewing_stub(tmp_path_short, [http_answer("200 OK", told)], GRANTED.replace("9.0", "3.0")) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        wait_for("the end to be told", lambda: lease.draining)
    expires = lease._expires
    assert lease.lost.wait(PATIENCE)
    assert _clock.now() >= expires
    lease.release()


@pytest.mark.parametrize(("code", "is_lost"), [("unknown_lease", True), ("not_found", False)])
def test_only_a_lease_that_is_unknown_is_lost_by_a_404(tmp_path_short: Path, code: str, is_lost: bool) -> None:
    refused = http_answer("404 Not Found", f'{{"error":"nothing has that name","code":"{code}"}}')
    short = GRANTED.replace("9.0", "4.5")
    with renewing_stub(tmp_path_short, [refused, http_answer("200 OK", GRANTED)], short) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        wait_for("the end of the attempt", lambda: lease.remaining() > 6 or lease.lost.is_set())
        assert lease.lost.is_set() == is_lost
        lease.release()
        assert server.requests[-1].startswith(b"POST " if is_lost else b"DELETE "), "an unknown lease is not released"


def test_a_short_lease_has_another_attempt(tmp_path_short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The lease is short compared with the interval: two thirds of it.
    monkeypatch.setattr(_lease, "RETRY_INTERVAL", 9.0)
    short = GRANTED.replace("9.0", "6.0")
    with renewing_stub(tmp_path_short, [BUSY, http_answer("200 OK", GRANTED)], short) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        wait_for("the second attempt", lambda: lease.remaining() > 7 or lease.lost.is_set())
        lease.check()
        lease.release()


def test_a_lease_is_at_most_as_long_as_a_session(tmp_path_short: Path) -> None:
    long = GRANTED.replace('"expires_in_seconds":9.0', '"expires_in_seconds":1e300')
    with renewing_stub(tmp_path_short, [], long) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        assert 47 * 3600 < lease.remaining() <= 48 * 3600
        lease.release()


def test_an_answer_of_another_lease_renews_nothing(tmp_path_short: Path) -> None:
    short, other = GRANTED.replace("9.0", "3.0"), GRANTED.replace('"abc"', '"other"')
    with renewing_stub(tmp_path_short, [http_answer("200 OK", other)], short) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        wait_for("the loss", lambda: lease.lost.is_set() or lease.remaining() > 3)
        with pytest.raises(slotkeeper.Lost, match="the last renewal failed"):
            lease.check()
        lease.release()


def test_a_token_file_that_is_missing_is_a_failed_attempt(tmp_path_short: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    token = tmp_path_short / "token"
    with listener:
        agent = slotkeeper.Agent(f"http://127.0.0.1:{listener.getsockname()[1]}", token)
        lease = _lease.Lease(agent._wire, json.loads(GRANTED), _clock.now(), None)
        with pytest.raises(slotkeeper.Unavailable, match="cannot be read: No such file"):
            lease._renew(_clock.now() + 1)
        assert not lease.lost.is_set()


NO_LEASES = [
    '{"expires_in_seconds":1' + "0" * 400 + "}",
    '{"a":' + "[" * 100_000,
    "[]",
    '{"expires_in_seconds":1e999}',
]


@pytest.mark.parametrize("wrong", NO_LEASES, ids=["digits", "nested", "array", "infinite"])
@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_a_wrong_answer_is_a_failed_attempt(tmp_path_short: Path, contract: Contract, wrong: str, status: str) -> None:
    short = GRANTED.replace("9.0", "4.5")
    with renewing_stub(tmp_path_short, [http_answer(status, wrong), http_answer("200 OK", GRANTED)], short) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        wait_for("the second attempt", lambda: lease.remaining() > 6 or lease.lost.is_set())
        lease.check()
        lease.release()
    assert len(contract.faults) == 1, contract.faults
    contract.faults.clear()


def test_a_wrong_grant_is_unavailable(tmp_path_short: Path, contract: Contract) -> None:
    wrong = GRANTED.replace('"fencing_token":7', '"fencing_token":1e999')
    with renewing_stub(tmp_path_short, [], wrong) as server, pytest.raises(slotkeeper.Unavailable, match="not a lease"):
        slotkeeper.Agent(server.address).acquire("licences")
    contract.faults.clear()


def test_a_process_without_descriptors_retries(tmp_path_short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket
    exhausted = threading.Event()
    attempts: list[None] = []

    def limited(family: int, kind: int, proto: int = 0, fileno: int | None = None) -> socket.socket:
        # The stub accepts, which gives a `fileno`.
        if exhausted.is_set() and fileno is None:
            attempts.append(None)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return connect(family, kind, proto, fileno)

    with renewing_stub(tmp_path_short, [http_answer("200 OK", GRANTED)]) as server:
        agent = slotkeeper.Agent(server.address)
        with pytest.raises(KeyError, match="mine"), agent.acquire("licences") as lease:
            monkeypatch.setattr("slotkeeper._transport.socket.socket", limited)
            exhausted.set()
            wait_for("failed renewals", lambda: len(attempts) >= 2)
            exhausted.clear()
            wait_for("the next renewal", lambda: lease.remaining() > 8)
            exhausted.set()
            raise KeyError("mine")
        with pytest.raises(slotkeeper.Unavailable, match="Too many open files"):
            agent.acquire("licences")


def test_the_agent_hangs(site: Site, contract: Contract) -> None:
    losing = Losing(site, contract)
    losing.agent.process.stop()
    losing.assert_told_in_time("did not come in time")


def test_the_agent_hangs_and_goes_on_in_time(site: Site) -> None:
    agent = site.agent()
    with agent.client().acquire("licences") as lease:
        agent.process.stop()
        wait_for("most of the lease to pass", lambda: lease.remaining() < LEASE / 2.5)
        agent.process.go_on()
        wait_for("a renewal", lambda: lease.remaining() > RENEWED, LEASE / 2)
    assert not lease.lost.is_set()
    assert site.contenders() == 0


def test_the_agent_is_restarted(site: Site, contract: Contract) -> None:
    losing = Losing(site, contract)
    renewed_before = losing.expires()
    wait_for("a renewal", lambda: losing.expires() > renewed_before)
    losing.agent.process.kill()
    again = site.agent()
    # It knows no leases of the process before. A renewal while no agent listens is a loss too.
    losing.assert_told_in_time("404 unknown_lease|its agent has ended")
    again.client().acquire("licences", wait="30s").release()


def test_an_operator_evicts_it(site: Site, contract: Contract) -> None:
    losing = Losing(site, contract)
    site.evict(losing.lease)
    wait_for("the loss", lambda: losing.losses != [])
    # The agent keeps the slot until the lease has expired, or is released: then the rival has it at once.
    assert losing.taken_at == 0
    losing.lease.release()
    losing.assert_told_in_time("410 lease_lost")
    assert losing.taken_at < losing.expires()


def test_a_block_that_does_not_notice_the_loss_raises_it(site: Site) -> None:
    agent = site.agent()
    with pytest.raises(slotkeeper.Lost, match="410 lease_lost"), agent.client().acquire("licences") as lease:
        site.evict(lease)
        assert lease.lost.wait(PATIENCE)


def test_a_loss_does_not_hide_the_error_of_a_block(site: Site) -> None:
    agent = site.agent()
    with pytest.raises(KeyError, match="mine"), agent.client().acquire("licences") as lease:
        site.evict(lease)
        assert lease.lost.wait(PATIENCE)
        raise KeyError("mine")


def test_a_release_is_bounded_where_the_agent_hangs(site: Site) -> None:
    agent = site.agent()
    lease = agent.client().acquire("licences")
    agent.process.stop()
    began = time.monotonic()
    lease.release()
    assert time.monotonic() - began < _lease.REQUEST_TIMEOUT + 1
    assert not lease.lost.is_set()
    # An agent that has missed the request releases a lease that is not renewed.
    agent.process.go_on()
    wait_for("the release", lambda: site.contenders() == 0, 2 * TTL)


def test_a_release_is_bounded_where_on_loss_is_slow(tmp_path_short: Path) -> None:
    told, go_on = threading.Event(), threading.Event()

    def on_loss(_loss: slotkeeper.Lost) -> None:
        told.set()
        go_on.wait(PATIENCE)

    def serve(connection: socket.socket, request: bytes) -> None:
        if b"/acquire " in request:
            connection.sendall(http_answer("200 OK", GRANTED))
        elif b"/renew " in request:
            connection.sendall(http_answer("410 Gone", '{"error":"evicted","code":"lease_lost"}'))
        else:
            # No answer, until the client closes the connection.
            connection.recv(1024)

    with stub(tmp_path_short, serve) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences", on_loss=on_loss)
        try:
            assert told.wait(PATIENCE)
            began = time.monotonic()
            lease.release()
            assert time.monotonic() - began < _lease.REQUEST_TIMEOUT + 1
            assert server.requests[-1].startswith(b"DELETE ")
        finally:
            go_on.set()


def test_a_release_does_not_wait_for_a_renewal_that_hangs(tmp_path_short: Path) -> None:
    renewing = threading.Event()

    def serve(connection: socket.socket, request: bytes) -> None:
        if b"/acquire " in request:
            connection.sendall(http_answer("200 OK", GRANTED.replace("9.0", "4.5")))
        elif b"/renew " in request:
            renewing.set()
            # Until the client closes the connection.
            connection.recv(1024)
        else:
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with stub(tmp_path_short, serve) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        assert renewing.wait(PATIENCE)
        began = time.monotonic()
        lease.release()
        # The renewal has a third of the lease for its answer.
        assert time.monotonic() - began < 1
        assert not lease.lost.is_set()
        assert server.requests[-1].startswith(b"DELETE ")


def test_a_machine_that_was_suspended_has_lost_its_lease(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = site.agent().client().acquire("licences")
    now = _clock.now
    monkeypatch.setattr(_clock, "now", lambda: now() + 3600)
    # The sleeps of this process have not noticed.
    assert lease.remaining() == 0
    assert lease.lost.wait(2)
    with pytest.raises(slotkeeper.Lost, match="was not renewed in time"):
        lease.check()
    lease.release()


PROGRAM = """
import sys, time, slotkeeper
with slotkeeper.Agent(sys.argv[1]).acquire("licences") as lease:
    print("held", flush=True)
    while True:
        lease.check()
        time.sleep(0.01)
"""


def test_a_program_that_was_stopped_learns_of_the_loss_first(site: Site) -> None:
    agent = site.agent()
    arguments = [sys.executable, "-c", PROGRAM, agent.address]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        program.send_signal(signal.SIGSTOP)
        with agent.client().acquire("licences", wait="2m"):
            program.send_signal(signal.SIGCONT)
            _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 1
    assert "slotkeeper.errors.Lost" in errors
