import { hasEnded, isGone, isUnknown, LostError, SlotkeeperError, UnavailableError } from "./errors.js";
import { after, Instant } from "./time.js";
import type { Content, Endpoint } from "./transport.js";

/** Milliseconds for the answer to a request that does not wait for a slot. */
export const REQUEST_TIMEOUT = 5000;

/** Renewals within the time of a lease, so that two may fail. */
const RENEWALS = 3;
/** The longest time from a failed renewal to the next one. */
const RETRY_INTERVAL = 1000;
/** The shortest time of a renewal, and between two. */
const MIN_INTERVAL = 100;
/** How much earlier a lease ends here, so that its loss is told in time. */
const EXPIRY_MARGIN = 100;
/**
 * How long to sleep at most. Timers do not count the time that the machine is suspended: after this time, the lease's clock is
 * read again.
 */
const MAX_SLEEP = 1000;

/** Longer than any session's TTL. */
const MAX_LEASE = 48 * 3_600_000;

/** The kind of a lease. */
export type Kind = "semaphore" | "lock";

/** A lease as the agent shows it. */
export interface LeaseInfo {
  /** Its id at its agent. */
  readonly id: string;
  /** The kind and name of the agent's configuration. */
  readonly kind: Kind;
  readonly name: string;
  /** A semaphore's prefix in Consul. */
  readonly prefix: string | null;
  /** A lock's key in Consul. */
  readonly key: string | null;
  /** The lease's own Consul session. */
  readonly session: string;
  /** Increases from grant to grant, so that a resource can reject a late write. */
  readonly fencingToken: number;
  /** Consul's LockIndex, of a lock. */
  readonly lockIndex: number | null;
  /** Indexes that no other holder has at the same time. */
  readonly slotIndexes: readonly number[];
  /** Milliseconds from the agent's answer until it expires unless it is renewed. */
  readonly expiresIn: number;
  /** Whether the agent ends. The lease lasts until it expires, and cannot be renewed once the agent has ended. */
  readonly draining: boolean;
}

/** The lease of an answer. */
export function toInfo(content: Content): LeaseInfo {
  const {
    lease,
    kind,
    name,
    prefix,
    key,
    session,
    fencing_token,
    lock_index,
    slot_indexes,
    expires_in_seconds,
    draining,
  } = content;
  const isOptional = (value: unknown, type: string) => value === null || typeof value === type;
  const isLease =
    typeof lease === "string" &&
    /^[A-Za-z0-9_-]{1,128}$/.test(lease) &&
    (kind === "semaphore" || kind === "lock") &&
    typeof name === "string" &&
    typeof session === "string" &&
    Number.isSafeInteger(fencing_token) &&
    isOptional(prefix, "string") &&
    isOptional(key, "string") &&
    isOptional(lock_index, "number") &&
    Array.isArray(slot_indexes) &&
    slot_indexes.every((index) => Number.isSafeInteger(index)) &&
    typeof expires_in_seconds === "number" &&
    Number.isFinite(expires_in_seconds) &&
    expires_in_seconds >= 0;
  if (!isLease) {
    throw new UnavailableError("the agent's answer is no lease");
  }
  return {
    id: lease,
    kind,
    name,
    prefix: prefix as string | null,
    key: key as string | null,
    session,
    fencingToken: fencing_token as number,
    lockIndex: lock_index as number | null,
    slotIndexes: slot_indexes as number[],
    expiresIn: Math.min(expires_in_seconds * 1000, MAX_LEASE),
    draining: draining === true,
  };
}

/** Releases a lease. If no answer comes in time, the agent releases it when it is not renewed. */
export async function release(endpoint: Endpoint, id: string): Promise<void> {
  try {
    await endpoint.exchange("DELETE", leasePath(id)).sendWithin(REQUEST_TIMEOUT);
  } catch (error) {
    if (!(error instanceof SlotkeeperError)) {
      throw error;
    }
  }
}

/** A slot or a lock that this program holds, and that is renewed in the background. `await using` releases it. */
export class Lease implements AsyncDisposable {
  /** What was granted. */
  readonly id: string;
  readonly kind: Kind;
  readonly name: string;
  readonly prefix: string | null;
  readonly key: string | null;
  readonly session: string;
  readonly fencingToken: number;
  readonly lockIndex: number | null;
  readonly slotIndexes: readonly number[];

  readonly #endpoint: Endpoint;
  readonly #loss = new AbortController();
  /** Aborted when the lease is lost or released. */
  readonly #end = new AbortController();
  #sent: Instant;
  #lasts: number;
  #failure: unknown;
  #draining = false;
  #releasing: Promise<void> | undefined;

  /** Use `Agent.acquire`. */
  constructor(endpoint: Endpoint, granted: LeaseInfo, sent: Instant) {
    this.#endpoint = endpoint;
    ({
      id: this.id,
      kind: this.kind,
      name: this.name,
      prefix: this.prefix,
      key: this.key,
      session: this.session,
      fencingToken: this.fencingToken,
      lockIndex: this.lockIndex,
      slotIndexes: this.slotIndexes,
    } = granted);
    this.#sent = sent;
    this.#lasts = granted.expiresIn;
  }

  /** Is aborted when the lease is lost; its reason is then a `LostError`. A release does not abort it. */
  get signal(): AbortSignal {
    return this.#loss.signal;
  }

  /** Whether the agent has told that it ends. The lease lasts until it expires, and cannot be renewed once the agent has ended. */
  get draining(): boolean {
    return this.#draining;
  }

  /** Milliseconds for which the slot is certainly held. */
  remaining(): number {
    return this.#end.signal.aborted ? 0 : Math.max(0, this.#lasts - EXPIRY_MARGIN - this.#sent.elapsed());
  }

  /**
   * Throws a `LostError` if the slot is no longer held. Unlike `signal` it is exact to the instant, also after this program was
   * paused or busy. Call it before each step that must not run without the slot.
   */
  check(): void {
    this.throwIfLost();
    if (this.#end.signal.aborted) {
      throw new SlotkeeperError(`the lease of ${this.kind} ${this.name} was released`);
    }
  }

  /** Like `check`, but a release is no error. */
  throwIfLost(): void {
    this.#expire();
    this.signal.throwIfAborted();
  }

  /** The lease as the agent knows it. This does not renew it. */
  async show(): Promise<LeaseInfo> {
    return this.#ask("GET", "", REQUEST_TIMEOUT);
  }

  /**
   * Releases the slot, once; also a lost one: the agent then hands it off earlier. Never rejects, and takes at most 5 s: if no
   * answer comes in that time, the agent releases the lease when it is not renewed.
   */
  release(): Promise<void> {
    this.#expire();
    this.#end.abort();
    this.#releasing ??= release(this.#endpoint, this.id);
    return this.#releasing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** Renews it in the background. If the answer to the request may be old, renews it first. */
  async start(mayBeOld: boolean): Promise<void> {
    if (mayBeOld) {
      try {
        await this.#renew(REQUEST_TIMEOUT);
      } catch (error) {
        if (this.remaining() <= 0) {
          await this.release();
          throw error;
        }
      }
    }
    this.#watch();
    void this.#keep();
  }

  /** Tells of the loss when the lease expires. */
  #watch(): void {
    this.#expire();
    if (this.#end.signal.aborted) {
      return;
    }
    const cancel = after(Math.min(this.remaining(), MAX_SLEEP), () => {
      this.#end.signal.removeEventListener("abort", cancel);
      this.#watch();
    });
    this.#end.signal.addEventListener("abort", cancel, { once: true });
  }

  /** Tells of the loss if the lease has expired. */
  #expire(): void {
    if (this.remaining() <= 0) {
      this.#lose("expired before it was renewed", this.#failure);
    }
  }

  async #keep(): Promise<void> {
    let interval = this.remaining() / RENEWALS;
    while (await this.#sleep(interval)) {
      let longest = Infinity;
      try {
        await this.#renew(Math.max(MIN_INTERVAL, Math.min(REQUEST_TIMEOUT, this.remaining() / RENEWALS)));
        this.#failure = undefined;
      } catch (error) {
        this.#failure = error;
        longest = RETRY_INTERVAL;
      }
      interval = Math.max(MIN_INTERVAL, Math.min(longest, this.remaining() / RENEWALS));
    }
  }

  /** Returns false if the lease has ended. */
  async #sleep(ms: number): Promise<boolean> {
    const began = new Instant();
    while (!this.#end.signal.aborted) {
      const rest = ms - began.elapsed();
      if (rest <= 0) {
        return true;
      }
      await new Promise<void>((resolve) => {
        const wake = () => {
          cancel();
          this.#end.signal.removeEventListener("abort", wake);
          resolve();
        };
        const cancel = after(Math.min(rest, MAX_SLEEP), wake);
        this.#end.signal.addEventListener("abort", wake);
      });
    }
    return false;
  }

  async #renew(timeout: number): Promise<void> {
    const sent = new Instant();
    try {
      const { expiresIn, draining } = await this.#ask("POST", "/renew", timeout, this.#end.signal);
      this.#sent = sent;
      this.#lasts = expiresIn;
      this.#draining = draining;
    } catch (error) {
      // Nothing renews the lease any more. A draining agent leaves the slot to this program until the lease expires.
      if (hasEnded(error) && !this.#draining) {
        this.#lose("is not held, since its agent has ended", error);
        this.signal.throwIfAborted();
      }
      throw error;
    }
  }

  async #ask(method: string, action: string, timeout: number, signal?: AbortSignal): Promise<LeaseInfo> {
    const exchange = this.#endpoint.exchange(method, leasePath(this.id) + action);
    try {
      const info = toInfo(await exchange.sendWithin(timeout, signal));
      if (info.id !== this.id) {
        throw new UnavailableError(`the agent's answer is lease ${info.id} instead of ${this.id}`);
      }
      return info;
    } catch (error) {
      // The successor of an agent that has drained does not know the lease.
      if (isGone(error) && !(this.#draining && isUnknown(error))) {
        this.#lose("is not held", error);
        this.signal.throwIfAborted();
      }
      throw error;
    }
  }

  #lose(what: string, cause: unknown): void {
    if (this.#end.signal.aborted) {
      return;
    }
    const why = cause instanceof Error ? `: ${cause.message}` : "";
    const lost = new LostError(`the lease of ${this.kind} ${this.name} ${what}${why}`, { cause });
    this.#end.abort();
    this.#loss.abort(lost);
  }
}

function leasePath(id: string): string {
  return `/v1/leases/${encodeURIComponent(id)}`;
}
