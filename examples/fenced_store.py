#!/usr/bin/env python3
"""A resource that refuses the writes of clients that have lost their slot.

Every write carries the fencing token of its slot. The store keeps the highest token so far, in the same transaction as
the data, and refuses a smaller one. Try it:

    slotkeeper run demo/store -n 1 -- examples/fenced_store.py /tmp/store.db put colour red

Exits with 0 if the write succeeded, and with 3 if it was refused.
"""

import os
import sqlite3
import sys

STALE = 3


def put(path: str, key: str, value: str, token: int) -> bool:
    """Writes unless the store has a larger token. Check and write must be one transaction."""
    store = sqlite3.connect(path, isolation_level=None, timeout=30)
    store.execute("CREATE TABLE IF NOT EXISTS fence (only INTEGER PRIMARY KEY CHECK (only = 1), token INTEGER)")
    store.execute("CREATE TABLE IF NOT EXISTS data (key TEXT PRIMARY KEY, value TEXT)")
    store.execute("BEGIN IMMEDIATE")
    newest = store.execute("SELECT token FROM fence").fetchone()
    if newest and token < newest[0]:
        store.execute("ROLLBACK")
        return False
    store.execute("INSERT OR REPLACE INTO fence VALUES (1, ?)", (token,))
    store.execute("INSERT OR REPLACE INTO data VALUES (?, ?)", (key, value))
    store.execute("COMMIT")
    return True


def main() -> int:
    if len(sys.argv) != 5 or sys.argv[2] != "put":
        print(__doc__, file=sys.stderr)
        return 64
    _, path, _, key, value = sys.argv
    token = int(os.environ["SLOTKEEPER_FENCING_TOKEN"])
    if not put(path, key, value, token):
        print(f"refused: token {token} is smaller than the store's", file=sys.stderr)
        return STALE
    return 0


if __name__ == "__main__":
    sys.exit(main())
