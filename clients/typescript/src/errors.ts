/** An error of this client. */
export class SlotkeeperError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The agent answered with an error. `code` is for programs, such as `blocked`; the message is for people. */
export class RefusedError extends SlotkeeperError {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** No slot became free within the wait. */
export class TimedOutError extends RefusedError {}

/** The agent did not answer, or not completely, or not in time. */
export class UnavailableError extends SlotkeeperError {}

/** The lease is no longer held, and another client may have the slot. Stop what uses it. */
export class LostError extends SlotkeeperError {}

/** Whether the agent has answered that a lease is not held. */
export function isGone(error: unknown): boolean {
  return isUnknown(error) || (error instanceof RefusedError && error.status === 410);
}

/** Whether the agent has answered that it does not know a lease. */
export function isUnknown(error: unknown): boolean {
  return error instanceof RefusedError && error.code === "unknown_lease";
}

/**
 * Whether the agent that granted a lease has ended, or is ending: it refuses the connection, its socket is missing, or it answers
 * that it is draining. Nothing renews its leases any more.
 */
export function hasEnded(error: unknown): boolean {
  if (error instanceof RefusedError) {
    return error.status === 503 && error.code === "draining";
  }
  return error instanceof UnavailableError && isNotListening(error.cause);
}

function isNotListening(error: unknown): boolean {
  if (error instanceof AggregateError) {
    // A name with several addresses.
    return error.errors.every(isNotListening);
  }
  // A token file may be missing too: that is no failure of a connection.
  const { code, syscall } = (error instanceof Error ? error : {}) as NodeJS.ErrnoException;
  return syscall === "connect" && (code === "ECONNREFUSED" || code === "ENOENT");
}
