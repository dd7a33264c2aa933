#!/usr/bin/env python3
"""Fifteen threads that compete for three slots: the usual demonstration of semaphores on Consul.

    pip install clients/python
    examples/fifteen_threads.py --control unix:/run/slotkeeper/control.sock --semaphore mg-init

Each thread acquires a slot, logs `start!`, sleeps for a random time, logs `end!` and releases the slot. At no line of the
log have more than three threads started and not ended. The times are those of the monotonic clock.
"""

import argparse
import random
import sys
import threading
import time

from slotkeeper import Agent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--control", default="unix:/run/slotkeeper/control.sock", help="the address of the agent's control endpoints")
    parser.add_argument("--semaphore", default="mg-init", help="its name in the agent's configuration")
    parser.add_argument("--threads", type=int, default=15)
    parser.add_argument("--longest", type=float, default=10.0, help="maximum seconds of work of a thread")
    parser.add_argument("--log", help="a file instead of standard output")
    options = parser.parse_args()

    agent = Agent(options.control)
    log = open(options.log, "a", encoding="utf-8") if options.log else sys.stdout
    failed = threading.Event()

    def report(event: str) -> None:
        log.write(f"{time.monotonic():.6f} {event}\n")
        log.flush()

    def run(number: int) -> None:
        try:
            with agent.acquire(options.semaphore, wait="10m") as lease:
                report(f"Thread {number} start!")
                # Not `sleep`: a thread that loses its slot stops working.
                lost = lease.lost.wait(random.uniform(0, options.longest))
                report(f"Thread {number} {'lost its slot!' if lost else 'end!'}")
        except Exception as error:
            print(f"Thread {number}: {error}", file=sys.stderr)
            failed.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, options.threads + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failed.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
