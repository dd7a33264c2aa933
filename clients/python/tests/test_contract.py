"""The client covers the control API, and the checks of its requests and answers find faults."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from contract import Contract, Documents, operations
from harness import Site, http_answer, stub

import slotkeeper


def test_the_client_has_every_operation_of_the_control_api(site: Site, contract: Contract, documents: Documents) -> None:
    agent = site.agent()
    client = agent.client()
    with client.acquire("licences") as lease, client.acquire_lock("leader", wait="1s") as lock:
        assert lease.show()["lease"] == lease.id
        lease._renew(lease._expires)
        assert (lease.kind, lease.name, lease.lock_index) == ("semaphore", "licences", None)
        assert (lock.kind, lock.name, lock.slot_indexes) == ("lock", "leader", (0,))
        assert lock.lock_index == 1
        assert lease.session != lock.session
    assert client.reload()["changed"] == []
    client.drain()
    # What the read-only address serves too is no part of the control API.
    control_api = {name for name, _, _ in operations(documents.unix) - operations(documents.read_only)}
    assert set(contract.used) == control_api
    assert len(control_api) >= 7, control_api


def test_a_wrong_request_is_found(contract: Contract) -> None:
    for body in [b'{"wait":"forever"}', b'{"wait":30}', b'{"wiat":"30s"}']:
        fields = f"Host: slotkeeper\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        contract.check_request(f"POST /v1/locks/leader/acquire HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body)
    contract.check_request(b"PUT /v1/leases/x HTTP/1.1\r\nHost: slotkeeper\r\n\r\n")
    assert len(contract.faults) == 4, contract.faults
    contract.faults.clear()


@pytest.mark.parametrize("answer", [http_answer("200 OK", '{"lease":"x"}'), http_answer("418 I'm a teapot", "{}")])
def test_a_wrong_answer_is_found(tmp_path_short: Path, contract: Contract, answer: bytes) -> None:
    def serve(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(answer)

    with stub(tmp_path_short, serve) as server, pytest.raises(slotkeeper.SlotkeeperError):
        slotkeeper.Agent(server.address).acquire("licences")
    assert len(contract.faults) == 1, contract.faults
    contract.faults.clear()
