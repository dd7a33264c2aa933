"""The clock of leases, and durations."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Union

Duration = Union[str, float, timedelta]
"""Seconds, a `timedelta`, or a text such as `30s`, `500ms` or `1m30s`."""

# CLOCK_BOOTTIME continues while the machine is suspended. Only Linux has it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_TEXT = re.compile(r"(?:[0-9]+(?:ms|s|m|h))+")
_PART = re.compile(r"([0-9]+)(ms|s|m|h)")


def now() -> float:
    """Seconds on a clock that nobody can set."""
    return time.clock_gettime(_CLOCK)


def milliseconds(duration: Duration) -> int:
    """The duration in whole milliseconds."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if not isinstance(duration, str):
        if not 0 <= duration < float("inf"):
            raise ValueError(f"{duration!r} is not a duration: write seconds from 0, or such as '30s'")
        return round(duration * 1000)
    if not _TEXT.fullmatch(duration):
        raise ValueError(f"{duration!r} is not a duration: write whole numbers with ms, s, m or h, such as '1m30s'")
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(duration))


def as_text(duration_ms: int) -> str:
    """The duration as the agent reads it."""
    return f"{duration_ms // 1000}s" if duration_ms % 1000 == 0 else f"{duration_ms}ms"
