"""The client for asyncio."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from contract import Contract
from harness import GRANTED, LEASE, Site, http_answer, renewing_stub, stub, wait_for

import slotkeeper
from slotkeeper import _clock, aio


def run(program: Coroutine[Any, Any, None]) -> None:
    """Runs a program that takes at most half a minute."""

    async def limited() -> None:
        await asyncio.wait_for(program, 30)

    asyncio.run(limited(), debug=True)


def cancellations() -> int:
    """How often this task was cancelled, as far as Python counts: from 3.11 on."""
    return asyncio.current_task().cancelling() if sys.version_info >= (3, 11) else 0  # type: ignore[union-attr]


def test_a_lease_is_held_for_the_block(site: Site) -> None:
    agent = site.agent()

    async def program() -> None:
        client = aio.Agent(agent.address)
        async with client.acquire("licences") as lease, client.acquire_lock("leader", wait=1):
            assert lease.remaining() > 0
            with pytest.raises(slotkeeper.TimedOut):
                async with client.acquire("licences"):
                    pytest.fail("there is one slot")
        with pytest.raises(KeyError, match="mine"):
            async with client.acquire("licences"):
                raise KeyError("mine")
        async with client.acquire("licences"):
            pass
        assert (await client.reload())["changed"] == []
        await client.drain()

    run(program())


def test_a_loss_cancels_the_block(site: Site) -> None:
    agent = site.agent()

    async def program() -> None:
        with pytest.raises(slotkeeper.Lost, match="410 lease_lost"):
            async with aio.Agent(agent.address).acquire("licences") as lease:
                site.evict(lease)
                await asyncio.Event().wait()
        assert cancellations() == 0
        # It was released, so that the slot is free at once.
        async with aio.Agent(agent.address).acquire("licences", wait="2s"):
            pass

    run(program())


def test_a_loss_in_a_block_that_keeps_the_loop_busy_is_raised_at_its_end(site: Site) -> None:
    agent = site.agent()

    async def program() -> None:
        with pytest.raises(slotkeeper.Lost, match="410 lease_lost"):
            async with aio.Agent(agent.address).acquire("licences") as lease:
                site.evict(lease)
                assert lease.lost.wait(30)
        await asyncio.sleep(0.2)
        assert cancellations() == 0

    run(program())


def test_a_block_that_ends_just_after_a_suspend_has_lost_its_lease(
    tmp_path_short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = _clock.now

    async def program() -> None:
        with renewing_stub(tmp_path_short, []) as server:
            with pytest.raises(slotkeeper.Lost, match="was not renewed in time"):
                async with aio.Agent(server.address).acquire("licences"):
                    monkeypatch.setattr(_clock, "now", lambda: now() + 3600)
            async with aio.Agent(server.address).acquire("licences") as lease:
                await asyncio.to_thread(lease.release)

    run(program())


def test_a_busy_loop_loses_no_lease(site: Site) -> None:
    agent = site.agent()

    async def program() -> None:
        async with aio.Agent(agent.address).acquire("licences") as lease:
            assert not threading.Event().wait(1.5 * LEASE)
            lease.check()

    run(program())


def test_a_cancelled_wait_leaves_the_queue(site: Site) -> None:
    agent = site.agent()

    async def program() -> None:
        client = aio.Agent(agent.address)

        async def hold() -> None:
            async with client.acquire("licences", wait="1h"):
                pytest.fail("there is one slot")

        async with client.acquire("licences"):
            # More than the event loop has threads.
            waiters = [asyncio.create_task(hold()) for _ in range(12)]
            await asyncio.to_thread(wait_for, "the waiters", lambda: site.contenders() == 13)
            for waiter in waiters:
                waiter.cancel()
            ends = await asyncio.gather(*waiters, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
            await asyncio.to_thread(wait_for, "the queue to be empty", lambda: site.contenders() == 1, LEASE / 2)

    run(program())
    assert site.contenders() == 0


def test_a_cancelled_block_releases_and_stays_cancelled(site: Site) -> None:
    agent = site.agent()

    async def program() -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with aio.Agent(agent.address).acquire("licences"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert site.contenders() == 0

    run(program())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not count cancellations")
def test_a_cancellation_beside_a_loss_is_kept(site: Site) -> None:
    agent = site.agent()

    async def hold() -> None:
        async with aio.Agent(agent.address).acquire("licences") as lease:
            site.evict(lease)
            # The loop is kept busy, so that both cancellations come at once.
            assert lease.lost.wait(30)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()

    async def program() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(hold())

    run(program())


def test_a_grant_in_the_instant_of_the_cancellation_is_released(tmp_path_short: Path, contract: Contract) -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()

        def serve(connection: socket.socket, request: bytes) -> None:
            if b"/acquire" not in request:
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                return
            # The loop cancels the task while the thread has its answer already.
            loop.call_soon_threadsafe(cancel_late)
            connection.sendall(http_answer("200 OK", GRANTED))

        def cancel_late() -> None:
            wait_for("the answer to be taken", lambda: any("lease abc" in thread.name for thread in threading.enumerate()))
            task.cancel()

        with stub(tmp_path_short, serve) as server:

            async def hold() -> None:
                async with aio.Agent(server.address).acquire("licences"):
                    pytest.fail("the task was cancelled")

            task = asyncio.create_task(hold())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert server.requests[-1].startswith(b"DELETE /v1/leases/abc "), server.requests

    run(program())
    assert contract.used.count("release_lease") == 1
