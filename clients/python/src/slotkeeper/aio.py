"""The client for asyncio: `async with agent.acquire("licences", wait="30s") as lease`.

A lease is renewed by a thread, as in the rest of the package: a task that keeps the event loop busy loses no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import AsyncIterator
from typing import Any, Callable, TypeVar

from . import _agent
from ._clock import Duration
from ._lease import Lease
from .errors import Lost

T = TypeVar("T")


class Agent:
    """The agent at `unix:/path/of/the.sock`, or at `http://127.0.0.1:port` with the token in a file."""

    def __init__(self, address: str, token_file: str | os.PathLike[str] | None = None) -> None:
        self._agent = _agent.Agent(address, token_file)

    def acquire(self, name: str, wait: Duration = 0) -> contextlib.AbstractAsyncContextManager[Lease]:
        """Holds the slots of a semaphore for an `async with` block.

        If the lease is lost, the block is cancelled, and the `async with` statement raises `Lost`. A task that is cancelled
        while it waits leaves the queue.
        """
        return _hold(lambda cancel, on_loss: self._agent.acquire(name, wait, cancel=cancel, on_loss=on_loss))

    def acquire_lock(self, name: str, wait: Duration = 0) -> contextlib.AbstractAsyncContextManager[Lease]:
        """Holds a lock for an `async with` block, like `acquire`."""
        return _hold(lambda cancel, on_loss: self._agent.acquire_lock(name, wait, cancel=cancel, on_loss=on_loss))

    async def reload(self) -> dict[str, Any]:
        """Has the agent read its configuration again and apply all of it. Returns the report."""
        return await _in_thread(self._agent.reload)

    async def drain(self) -> None:
        """Tells the agent that the workload is done. It releases everything, all leases too, and exits."""
        await _in_thread(self._agent.drain)


@contextlib.asynccontextmanager
async def _hold(acquire: Callable[[threading.Event, Callable[[Lost], None]], Lease]) -> AsyncIterator[Lease]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"  # noqa: S101
    cancelled_before = task.cancelling() if hasattr(task, "cancelling") else 0
    cancel = threading.Event()
    is_inside, is_interrupted = False, False

    def interrupt() -> None:
        nonlocal is_interrupted
        if is_inside:
            is_interrupted = True
            task.cancel()

    def on_loss(_loss: Lost) -> None:
        _post(loop, interrupt)

    def take_back() -> bool:
        """Ends the cancellation by a loss. Returns whether it was the only one, as far as Python knows: from 3.11 on."""
        return is_interrupted and (not hasattr(task, "uncancel") or task.uncancel() <= cancelled_before)

    lease = await _in_thread(lambda: acquire(cancel, on_loss), cancel, Lease.release)
    try:
        try:
            lease.check()
            is_inside = True
            yield lease
            # The lease may have expired just now, such as while the machine was suspended, unnoticed by its thread.
            if not lease._released.is_set():
                lease.check()
        finally:
            is_inside = False
            await _in_thread(lease.release)
    except asyncio.CancelledError:
        if not take_back():
            raise
    except BaseException:
        take_back()
        raise
    else:
        take_back()
    if lease.loss is not None:
        raise Lost(str(lease.loss))


async def _in_thread(
    call: Callable[[], T], cancel: threading.Event | None = None, undo: Callable[[T], None] | None = None
) -> T:
    """Runs a call that may block in a thread of its own: the threads of the event loop are few.

    If the task is cancelled, sets `cancel`, so that the call ends soon, and undoes what the call has done nevertheless.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    guard = threading.Lock()
    is_wanted, results = True, list[T]()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # It is raised where it is awaited.
            _post(loop, future.set_exception, error)
            return
        with guard:
            results.append(result)
            if is_wanted:
                _post(loop, future.set_result, result)
                return
        if undo is not None:
            undo(result)
        _post(loop, future.set_result, result)

    threading.Thread(target=run, name="slotkeeper request", daemon=True).start()
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        if cancel is not None:
            cancel.set()
        with guard:
            is_wanted = False
        if results and undo is not None:
            # It came in the instant of the cancellation.
            await _in_thread(functools.partial(undo, results[0]))
        # A second cancellation ends this wait, not the thread.
        await asyncio.wait([future])
        future.exception()
        raise
    return future.result()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Calls in the event loop, unless it has ended: then nothing waits there."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
