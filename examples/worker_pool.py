#!/usr/bin/env python3
"""A pool of workers, of which only as many touch the thing at once as the semaphore has slots, across all machines.

    examples/worker_pool.py --control unix:/run/slotkeeper/control.sock --semaphore writers --workers 8 --items 20

Each worker takes items from a queue. Around the part that must be limited it holds a lease; where that is lost in the
middle, it stops, and the item is done again from the start, by whoever comes to it. SIGTERM and SIGINT let the items that
have begun come to their end. Standard output has a line for each begin and end.
"""

import argparse
import queue
import signal
import sys
import threading
import time

from slotkeeper import Agent, Lost, NotInTime, Refused

STEPS = 10


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
    pool = [
        threading.Thread(target=work, args=(number, agent, asked.semaphore, items, asked.seconds, told_to_stop))
        for number in range(asked.workers)
    ]
    for worker in pool:
        worker.start()
    for worker in pool:
        worker.join()
    return 0 if items.empty() else 1


def work(
    number: int, agent: Agent, semaphore: str, items: queue.Queue, takes: float, told_to_stop: threading.Event
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
                    for _ in range(STEPS):
                        lease.check()
                        time.sleep(takes / STEPS)
                    lease.check()
                    tell(f"worker {number} item {item} end")
                except Lost:
                    tell(f"worker {number} item {item} lost")
                    items.put(item)
        except NotInTime:
            items.put(item)
        except Refused as refused:
            # No such semaphore, or an agent that ends: another attempt would fare no better.
            print(f"worker {number}: {refused}", file=sys.stderr)
            items.put(item)
            told_to_stop.set()
        except OSError as error:
            print(f"worker {number}: no agent answers: {error}", file=sys.stderr)
            items.put(item)
            told_to_stop.wait(1)


def tell(what: str) -> None:
    """One write a line, so that lines of several workers do not mix."""
    sys.stdout.write(f"{time.monotonic():.6f} {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
