"""Fixtures: a site of their own for each test, and the contract for all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import Contract, Documents, fetch
from harness import Site

from slotkeeper import _clock
from slotkeeper._transport import Answer, Call, Signal


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    try:
        yield site
    finally:
        site.close()


@pytest.fixture
def tmp_path_short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a unix socket."""
    with tempfile.TemporaryDirectory(prefix="slotkeeper-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def documents() -> Iterator[Documents]:
    """The agents' OpenAPI documents."""
    site = Site()
    try:
        loopback = site.agent("loopback", control=f"listen: '127.0.0.1:0', token_file: '{site.folder}/token'")
        unix = site.agent("unix")
        yield Documents(fetch(unix.address), fetch(loopback.address), fetch(unix.http_address()))
    finally:
        site.close()


@pytest.fixture(autouse=True)
def contract(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> Iterator[Contract]:
    """Whatever the client sends and gets in a test is checked. The test clears the faults that it expects."""
    contract = Contract(documents)
    exchange, parse = Call.exchange, Call._parse

    def checked_exchange(call: Call, request: bytes, deadline: float, cancel: Signal | None = None) -> Answer:
        call.request = contract.check_request(request)  # type: ignore[attr-defined]
        call.sent = _clock.now()  # type: ignore[attr-defined]
        return exchange(call, request, deadline, cancel)

    def checked_parse(call: Call) -> Answer:
        answer = parse(call)
        contract.check_answer(call.request, call.sent, answer)  # type: ignore[attr-defined]
        return answer

    monkeypatch.setattr(Call, "exchange", checked_exchange)
    monkeypatch.setattr(Call, "_parse", checked_parse)
    yield contract
    assert contract.faults == []
