#!/usr/bin/env python3
"""A pool of workers, of which only as many touch the thing at once as the semaphore has slots, across all machines.

    examples/worker_pool.py --control unix:/run/slotkeeper/control.sock --semaphore writers --workers 8 --items 20

Each worker takes items from a queue. Around the part that must be limited it holds a lease; where that is lost in the
middle, it stops, and the item is done again from the start, by whoever comes to it. An item that fails is not done again, and
the others are. SIGTERM and SIGINT let the items that have begun come to their end. Standard output has a line for each begin and
end. The exit code is 0 where all items are done.
"""

import argparse
import queue
import signal
import sys
import threading
import time
import traceback

from slotkeeper import Agent, Lease, Lost, TimedOut, Refused

STEPS = 10

PAUSE = 1.0
"""Seconds before the next attempt, where the agent does not answer, or has too much to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--control", default="unix:/run/slotkeeper/control.sock", help="where the agent's control listens")
    parser.add_argument("--semaphore", default="writers", help="its name in the agent's configuration")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="time that one item takes")
    asked = parser.parse_args()

    items: queue.Queue[int] = queue.Queue()
    for item in range(asked.items):
        items.put(item)
    told_to_stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: told_to_stop.set())

    agent = Agent(asked.control)
    done: queue.Queue[int] = queue.Queue()
    pool = [
        threading.Thread(target=work, args=(number, agent, asked.semaphore, items, done, asked.seconds, told_to_stop))
        for number in range(asked.workers)
    ]
    for worker in pool:
        worker.start()
    for worker in pool:
        worker.join()
    return 0 if done.qsize() == asked.items else 1


def work(
    number: int,
    agent: Agent,
    semaphore: str,
    items: queue.Queue,
    done: queue.Queue,
    takes: float,
    told_to_stop: threading.Event,
) -> None:
    """Does items until none is left."""
    while not told_to_stop.is_set():
        try:
            item = items.get_nowait()
        except queue.Empty:
            return
        try:
            # Short waits, so that one who waits hears that it is to stop.
            with agent.lease(semaphore, wait="5s") as lease:
                tell(f"worker {number} item {item} start slot {lease.slot} token {lease.token}")
                try:
                    do(lease, takes)
                    tell(f"worker {number} item {item} end")
                    done.put(item)
                except Lost:
                    tell(f"worker {number} item {item} lost")
                    items.put(item)
                except Exception:
                    # It would fail again; the worker is needed for the others.
                    tell(f"worker {number} item {item} failed")
                    traceback.print_exc()
        except TimedOut:
            items.put(item)
        except Refused as refused:
            complain(number, refused)
            items.put(item)
            if is_final(refused):
                told_to_stop.set()
            told_to_stop.wait(PAUSE)
        except OSError as error:
            complain(number, f"no agent answers: {error}")
            items.put(item)
            told_to_stop.wait(PAUSE)


def do(lease: Lease, takes: float) -> None:
    """What is to be done on one item: put your own here. Raises `Lost` where the slot is not ours any more."""
    for _ in range(STEPS):
        lease.check()
        time.sleep(takes / STEPS)
    lease.check()


def is_final(refused: Refused) -> bool:
    """Whether another attempt would fare no better: no such semaphore, a wrong token, an agent that is kept out or ends."""
    return refused.status in (401, 403, 404) or refused.code in ("blocked", "draining")


def complain(number: int, of: object) -> None:
    """One write a line here too."""
    sys.stderr.write(f"worker {number}: {of}\n")


def tell(what: str) -> None:
    """One write a line, so that lines of several workers do not mix."""
    sys.stdout.write(f"{time.monotonic():.6f} {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
