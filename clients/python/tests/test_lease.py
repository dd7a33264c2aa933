"""Leases: how they are acquired, renewed and released."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from contract import Contract
from harness import GRANTED, LEASE, PATIENCE, RENEWED, TTL, Site, http_answer, stub, wait_for

import slotkeeper
from slotkeeper import _agent, _clock, _lease
from slotkeeper._transport import Address


def test_a_lease_is_held_over_several_ttls(site: Site, contract: Contract) -> None:
    client = site.agent().client()
    with client.acquire("licences") as lease:
        # Much longer than a session lives that nothing renews.
        with pytest.raises(slotkeeper.TimedOut) as refusal:
            client.acquire("licences", wait=timedelta(seconds=2.5 * TTL))
        lease.check()
        assert 0 < lease.remaining() <= LEASE
        assert not lease.lost.is_set()
    assert (refusal.value.status, refusal.value.code) == (409, "timed_out")
    # A third of what is left after a renewal is 2 s to 3 s.
    assert 6 <= contract.used.count("renew_lease") <= 13
    assert contract.used.count("release_lease") == 1


def test_a_lease_that_was_waited_for_counts_from_a_renewal(site: Site, contract: Contract) -> None:
    client = site.agent().client()
    first = client.acquire("licences")
    threading.Timer(LEASE / 2, first.release).start()
    with client.acquire("licences", wait="30s") as second:
        assert contract.used[-1] == "renew_lease"
        # From the request for the slot, less than half of it would be left.
        assert second.remaining() > RENEWED
        assert second.fencing_token > first.fencing_token


def test_two_slots_have_different_indexes(site: Site) -> None:
    client = site.agent(limit=2).client()
    with client.acquire("licences") as first, client.acquire("licences") as second:
        assert {*first.slot_indexes, *second.slot_indexes} == {0, 1}
        assert first.session != second.session


def test_a_released_lease_is_no_longer_held(site: Site, contract: Contract) -> None:
    client = site.agent().client()
    with client.acquire("licences") as lease:
        lease.release()
        lease.release()
        assert lease.remaining() == 0
        with pytest.raises(slotkeeper.Lost, match="was released"):
            lease.check()
        client.acquire("licences").release()
    assert not lease.lost.is_set()
    assert contract.used.count("release_lease") == 2
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("slotkeeper")] == []


FORKING = """
import os, sys, slotkeeper
with slotkeeper.Agent(sys.argv[1]).acquire("licences") as lease:
    child = os.fork()
    if child == 0:
        assert lease.remaining() == 0
        try:
            lease.check()
        except slotkeeper.Lost as lost:
            assert "belongs to the process" in str(lost), lost
        else:
            raise AssertionError("the child holds the lease")
        lease.release()
    else:
        assert os.waitpid(child, 0)[1] == 0
        assert lease.show()["lease"] == lease.id
        lease.check()
"""


def test_a_forked_child_does_not_release(site: Site) -> None:
    arguments = [sys.executable, "-c", FORKING, site.agent().address]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    assert site.contenders() == 0


def test_a_signal_handler_may_release(site: Site) -> None:
    lease = site.agent().client().acquire("licences")
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: lease.release())
    try:
        with lease._guard:
            # As if the signal came within `check`.
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(slotkeeper.Lost, match="was released"):
            lease.check()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert site.contenders() == 0


def test_a_block_that_fails_releases(site: Site) -> None:
    client = site.agent().client()
    with pytest.raises(KeyError, match="mine"), client.acquire("licences"):
        raise KeyError("mine")
    client.acquire("licences").release()


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("unknown", 404, "unknown_semaphore"), ("held", 403, "not_on_demand")],
)
def test_a_refusal_has_its_code(site: Site, name: str, status: int, code: str) -> None:
    with pytest.raises(slotkeeper.Refused) as refusal:
        site.agent().client().acquire(name)
    assert (refusal.value.status, refusal.value.code) == (status, code)
    assert name in refusal.value.message
    assert not isinstance(refusal.value, slotkeeper.TimedOut)


def test_a_wait_over_the_maximum_is_refused(site: Site, contract: Contract) -> None:
    with pytest.raises(slotkeeper.Refused) as refusal:
        site.agent().client().acquire("licences", wait="1h1s")
    assert refusal.value.code == "bad_request"
    assert len(contract.faults) == 1, "the document has the maximum too"
    contract.faults.clear()


def test_durations() -> None:
    durations: list[tuple[slotkeeper.Duration, int]] = [
        ("1m30s", 90_000),
        ("250ms", 250),
        ("1h", 3_600_000),
        (1.5, 1500),
        (0, 0),
        (timedelta(minutes=2), 120_000),
    ]
    for given, expected in durations:
        assert _clock.milliseconds(given) == expected
    assert [_clock.as_text(duration) for duration in [0, 1500, 90_000]] == ["0s", "1500ms", "90s"]
    wrongs: list[slotkeeper.Duration] = ["", "30", "1.5s", "5 s", "s", "forever", -1, float("inf"), float("nan")]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="is not a duration"):
            _clock.milliseconds(wrong)


def test_addresses() -> None:
    for wrong in [
        "",
        "unix:",
        "/run/x.sock",
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "http://127.0.0.1:x",
        "http://127.0.0.1:1/v1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:80/path",
        "http://127.0.0.1:80?q",
        "http://127.0.0.1:80#f",
        "http://user@127.0.0.1:80",
        "http://@127.0.0.1:80",
        "http://example.com:80",
        "http://localhost.example.com:80",
        "http://10.0.0.1:80",
        "http://0.0.0.0:80",
        "http://[::]:80",
        "http://[::1%lo]:80",
        "http://[::ffff:10.0.0.1]:80",
        "http://[::1:80",
        "https://127.0.0.1:80",
        "unix:rel.sock",
    ]:
        with pytest.raises(ValueError, match="is not an agent's address"):
            slotkeeper.Agent(wrong)
    rights: list[tuple[str, str | tuple[str, int]]] = [
        ("http://127.0.0.1:1", ("127.0.0.1", 1)),
        ("http://127.9.9.9:80", ("127.9.9.9", 80)),
        ("http://[::1]:80", ("::1", 80)),
        ("http://[::1]:80/", ("::1", 80)),
        ("http://localhost:80", ("127.0.0.1", 80)),
        ("unix:/a/b", "/a/b"),
    ]
    for right, target in rights:
        assert Address.parse(right).target == target


def test_the_token_is_read_for_each_request(site: Site) -> None:
    right = site.folder / "right.token"
    agent = site.agent(control=f"listen: '127.0.0.1:0', token_file: '{right}'")
    used = site.folder / "used.token"
    client = agent.client(used)
    with pytest.raises(slotkeeper.Unavailable, match="cannot be read: No such file"):
        client.acquire("licences")
    used.write_text("two words\n")
    with pytest.raises(slotkeeper.Unavailable, match="must have one token"):
        client.acquire("licences")
    used.write_text("another-token-of-the-right-length\n")
    with pytest.raises(slotkeeper.Refused) as refusal:
        client.acquire("licences")
    assert (refusal.value.status, refusal.value.code) == (401, "unauthorized")
    used.write_bytes(right.read_bytes())
    with client.acquire("licences") as lease:
        # A renewal without the right token is a failed attempt, not a loss.
        used.write_text("another-token-of-the-right-length\n")
        time.sleep(LEASE / 2)
        used.write_bytes(right.read_bytes())
        wait_for("the next renewal", lambda: lease.remaining() > RENEWED, LEASE / 2)


def test_a_token_file_that_hangs_bounds_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    right = site.folder / "right.token"
    agent = site.agent(control=f"listen: '127.0.0.1:0', token_file: '{right}'")
    used = site.folder / "used.token"
    used.write_bytes(right.read_bytes())
    client = agent.client(used)
    losses: list[float] = []
    lease = client.acquire("licences", on_loss=lambda _loss: losses.append(_clock.now()))
    other = agent.client(right).acquire_lock("leader")
    used.unlink()
    # No process writes to it: a read hangs, as from a file server that is away.
    os.mkfifo(used)
    expires = lease._expires
    wait_for("the loss", lambda: losses != [])
    assert losses[0] < max(expires, lease._expires) + 1
    with pytest.raises(slotkeeper.Lost, match="cannot be read in time"):
        lease.check()
    other.check()
    began = time.monotonic()
    monkeypatch.setattr(_lease, "REQUEST_TIMEOUT", 1.0)
    lease.release()
    assert time.monotonic() - began < 2
    monkeypatch.setattr(_agent, "REQUEST_TIMEOUT", 1.0)
    with pytest.raises(slotkeeper.Unavailable, match="cannot be read in time"):
        client.acquire("licences")
    assert [thread.name for thread in threading.enumerate()].count("slotkeeper token") == 1
    # A writer ends the read that hangs. The next requests read the file anew.
    with used.open("w") as writer:
        writer.write(right.read_text())
    used.unlink()
    used.write_bytes(right.read_bytes())
    wait_for("the read to end", lambda: "slotkeeper token" not in [thread.name for thread in threading.enumerate()])
    client.acquire("licences", wait="30s").release()
    other.release()


def test_a_cancelled_wait_leaves_the_queue(site: Site) -> None:
    client = site.agent().client()
    with client.acquire("licences"):
        cancel = threading.Event()
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                client.acquire("licences", wait="1h", cancel=cancel)
            except slotkeeper.Cancelled as error:
                failures.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_for("the waiter", lambda: site.contenders() == 2)
        began = time.monotonic()
        cancel.set()
        waiter.join()
        assert time.monotonic() - began < 2
        assert len(failures) == 1
        wait_for("the queue to be empty", lambda: site.contenders() == 1, LEASE / 2)
        with pytest.raises(slotkeeper.Cancelled):
            client.acquire("licences", cancel=cancel)
    assert site.contenders() == 0


def test_an_interrupted_wait_leaves_the_queue(site: Site) -> None:
    agent = site.agent()
    program = f"import slotkeeper; slotkeeper.Agent({agent.address!r}).acquire('licences', wait='1h')"
    with agent.client().acquire("licences"):
        waiter = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
        with waiter:
            wait_for("the waiter", lambda: site.contenders() == 2)
            waiter.send_signal(signal.SIGINT)
            _, errors = waiter.communicate(timeout=PATIENCE)
        assert b"KeyboardInterrupt" in errors
        wait_for("the queue to be empty", lambda: site.contenders() == 1, LEASE / 2)


def test_a_grant_in_the_instant_of_the_cancellation_is_released(tmp_path_short: Path) -> None:
    cancel = threading.Event()

    def serve(connection: socket.socket, request: bytes) -> None:
        if request.startswith(b"POST"):
            cancel.set()
            # Until the client has sent all that it will: then the answer is on its way, though nothing waits for it.
            while connection.recv(1024):
                pass
            connection.sendall(http_answer("200 OK", GRANTED))
        else:
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with stub(tmp_path_short, serve) as server:
        with pytest.raises(slotkeeper.Cancelled):
            slotkeeper.Agent(server.address).acquire("licences", wait="30s", cancel=cancel)
        assert [request.split(b" HTTP")[0] for request in server.requests] == [
            b"POST /v1/semaphores/licences/acquire",
            b"DELETE /v1/leases/abc",
        ]


def test_a_lease_counts_from_before_the_request(tmp_path_short: Path) -> None:
    def serve(connection: socket.socket, request: bytes) -> None:
        if not request.startswith(b"DELETE"):
            time.sleep(1)
            # The first answer is so old that a renewal has to confirm it.
            connection.sendall(http_answer("200 OK", GRANTED.replace("9.0", "2.5")))

    with stub(tmp_path_short, serve) as server:
        lease = slotkeeper.Agent(server.address).acquire("licences")
        assert len(server.requests) == 2
        assert lease.remaining() <= 1.5 - _lease.EXPIRY_MARGIN
        lease.release()


def test_a_grant_whose_first_renewal_fails_is_released(tmp_path_short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lease, "RENEWALS", 1e9)  # An acquire that took any time at all has waited.

    def serve(connection: socket.socket, request: bytes) -> None:
        if b"/acquire" in request:
            connection.sendall(http_answer("200 OK", GRANTED))

    with stub(tmp_path_short, serve) as server:
        with pytest.raises(slotkeeper.Unavailable, match="without an answer"):
            slotkeeper.Agent(server.address).acquire("licences")
        assert [request.split(b" HTTP")[0] for request in server.requests[1:]] == [
            b"POST /v1/leases/abc/renew",
            b"DELETE /v1/leases/abc",
        ]


def endless(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * 65536)


def slow(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def shortened(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(http_answer("200 OK", GRANTED)[:-20])


def silent(connection: socket.socket, _request: bytes) -> None:
    connection.recv(1024)
    connection.recv(1024)


def foreign(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (endless, "has more than 1048576 bytes"),
        (slow, "did not come in time"),
        (shortened, "is not complete"),
        (silent, "did not come in time"),
        (foreign, "is not complete"),
    ],
)
def test_an_answer_is_bounded_and_complete(
    tmp_path_short: Path, monkeypatch: pytest.MonkeyPatch, serve: object, why: str
) -> None:
    monkeypatch.setattr(_agent, "ACQUIRE_MARGIN", 1.0)
    with stub(tmp_path_short, serve) as server:  # type: ignore[arg-type]
        began = time.monotonic()
        with pytest.raises(slotkeeper.Unavailable, match=why):
            slotkeeper.Agent(server.address).acquire("licences")
        assert time.monotonic() - began < 1 + _agent.WITHDRAW_TIMEOUT + 1


def test_no_agent(tmp_path_short: Path) -> None:
    with pytest.raises(slotkeeper.Unavailable, match=r"nothing listens at .*: No such file or directory"):
        slotkeeper.Agent(f"unix:{tmp_path_short}/none.sock").acquire("licences")
