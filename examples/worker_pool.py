#!/usr/bin/env python3
"""A pool of workers, of which only as many as the semaphore has slots run the limited part at once, across all machines.

    pip install clients/python
    examples/worker_pool.py --control unix:/run/slotkeeper/control.sock --semaphore writers --workers 8 --items 20

Each worker takes items from a queue. It holds a lease during the part that must be limited. If the lease is lost, the worker
stops, and the item is done again from the start, by any worker. An item that fails is not done again; the other items
are. SIGTERM and SIGINT let the current items finish. Standard output has a line for each start and
end. The exit code is 0 if all items are done.
"""

import argparse
import queue
import signal
import sys
import threading
import time
import traceback

from slotkeeper import Agent, Cancelled, Lease, Lost, Refused, TimedOut, Unavailable

STEPS = 10

PAUSE = 1.0
"""Seconds before the next attempt, if the agent does not answer or has too many requests."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--control", default="unix:/run/slotkeeper/control.sock", help="the address of the agent's control endpoints")
    parser.add_argument("--semaphore", default="writers", help="its name in the agent's configuration")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="time that one item takes")
    options = parser.parse_args()

    items: queue.Queue[int] = queue.Queue()
    for item in range(options.items):
        items.put(item)
    stopping = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())

    agent = Agent(options.control)
    done: queue.Queue[int] = queue.Queue()
    pool = [
        threading.Thread(target=work, args=(number, agent, options.semaphore, items, done, options.seconds, stopping))
        for number in range(options.workers)
    ]
    for worker in pool:
        worker.start()
    for worker in pool:
        worker.join()
    return 0 if done.qsize() == options.items else 1


def work(
    number: int,
    agent: Agent,
    semaphore: str,
    items: queue.Queue,
    done: queue.Queue,
    takes: float,
    stopping: threading.Event,
) -> None:
    """Does items until none is left."""
    while not stopping.is_set():
        try:
            item = items.get_nowait()
        except queue.Empty:
            return
        try:
            with agent.acquire(semaphore, wait="10m", cancel=stopping) as lease:
                report(f"worker {number} item {item} start slot {lease.slot_indexes[0]} token {lease.fencing_token}")
                try:
                    do(lease, takes)
                    report(f"worker {number} item {item} end")
                except Lost:
                    report(f"worker {number} item {item} lost")
                    raise
                except Exception:
                    # A retry would fail again, and the worker is needed for the other items.
                    report(f"worker {number} item {item} failed")
                    traceback.print_exc()
                    continue
            done.put(item)
        except (Lost, TimedOut, Cancelled):
            items.put(item)
        except Refused as refused:
            report_error(number, refused)
            items.put(item)
            if is_final(refused):
                stopping.set()
            stopping.wait(PAUSE)
        except Unavailable as error:
            report_error(number, error)
            items.put(item)
            stopping.wait(PAUSE)


def do(lease: Lease, takes: float) -> None:
    """The work on one item: replace it by your own. Raises `Lost` if the slot is no longer held."""
    for _ in range(STEPS):
        lease.check()
        time.sleep(takes / STEPS)
    lease.check()


def is_final(refused: Refused) -> bool:
    """Whether a retry would fail too: no such semaphore, a wrong token, an agent that is blocked or ends."""
    return refused.status in (401, 403, 404) or refused.code in ("blocked", "draining")


def report_error(number: int, error: object) -> None:
    """Writes each line at once, like `report`."""
    sys.stderr.write(f"worker {number}: {error}\n")


def report(what: str) -> None:
    """Writes each line at once, so that lines of several workers do not mix."""
    sys.stdout.write(f"{time.monotonic():.6f} {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
