#!/usr/bin/env python3
"""Fifteen threads that want one of three slots: the test by which semaphores on Consul are usually shown to work.

    examples/fifteen_threads.py --control unix:/run/slotkeeper/control.sock --semaphore mg-init

Each thread takes a slot, says `start!`, sleeps for a random while, says `end!` and gives the slot back. At no line of the
log have more than three started and not ended. The times are those of the monotonic clock.
"""

import argparse
import random
import sys
import threading
import time

from slotkeeper import Agent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--control", default="unix:/run/slotkeeper/control.sock", help="where the agent's control listens")
    parser.add_argument("--semaphore", default="mg-init", help="its name in the agent's configuration")
    parser.add_argument("--threads", type=int, default=15)
    parser.add_argument("--longest", type=float, default=10.0, help="seconds that a thread works at most")
    parser.add_argument("--log", help="a file instead of standard output")
    asked = parser.parse_args()

    agent = Agent(asked.control)
    log = open(asked.log, "a", encoding="utf-8") if asked.log else sys.stdout
    failed = threading.Event()

    def tell(what: str) -> None:
        log.write(f"{time.monotonic():.6f} {what}\n")
        log.flush()

    def run(number: int) -> None:
        try:
            with agent.lease(asked.semaphore, wait="10m") as lease:
                tell(f"Thread {number} start!")
                # Not `sleep`: one that loses its slot stops working.
                lost = lease.lost.wait(random.uniform(0, asked.longest))
                tell(f"Thread {number} {'lost its slot!' if lost else 'end!'}")
                if lost:
                    failed.set()
        except Exception as error:
            print(f"Thread {number}: {error}", file=sys.stderr)
            failed.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, asked.threads + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failed.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
