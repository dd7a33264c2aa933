import { uptime } from "node:os";

/** Milliseconds, or a text such as `30s`, `500ms` or `1m30s`. */
export type Duration = number | string;

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

/** The longest time of a timer: a longer one would fire at once. */
const MAX_TIMER = 2 ** 31 - 1;

/**
 * An instant in the past. Its clocks cannot be set. The one of timers is exact, but it stops while the machine is suspended.
 * The one of `uptime` continues, in steps of 10 ms on Linux. The one that has advanced more counts.
 */
export class Instant {
  readonly #timers = performance.now();
  readonly #uptime = uptime();

  /** Milliseconds since then. */
  elapsed(): number {
    return Math.max(performance.now() - this.#timers, (uptime() - this.#uptime) * 1000);
  }
}

/** The duration in whole milliseconds, rounded up. */
export function milliseconds(duration: Duration): number {
  if (typeof duration === "number") {
    if (!(duration >= 0 && duration < Infinity)) {
      throw new RangeError(`${duration} is not a duration: write milliseconds from 0, or such as "30s"`);
    }
    return Math.ceil(duration);
  }
  if (!/^(\d+(ms|s|m|h))+$/.test(duration)) {
    throw new RangeError(
      `${JSON.stringify(duration)} is not a duration: write whole numbers with ms, s, m or h, such as "1m30s"`,
    );
  }
  return [...duration.matchAll(/(\d+)(ms|s|m|h)/g)].reduce(
    (sum, [, number, unit]) => sum + Number(number) * UNITS[unit as keyof typeof UNITS],
    0,
  );
}

/** The duration as the agent reads it, rounded up to seconds if it is long. */
export function asText(ms: number): string {
  return ms % 1000 === 0 || ms > 999_999 ? `${Math.ceil(ms / 1000)}s` : `${ms}ms`;
}

/** Calls back after that time. Returns how to cancel it. */
export function after(ms: number, callback: () => void): () => void {
  const timer = setTimeout(callback, Math.min(ms, MAX_TIMER));
  return () => {
    clearTimeout(timer);
  };
}
