import { UnavailableError } from "./errors.js";
import { Lease, release, REQUEST_TIMEOUT, toInfo, type Kind, type LeaseInfo } from "./lease.js";
import { after, asText, Instant, milliseconds, type Duration } from "./time.js";
import { Endpoint, type Content, type Exchange } from "./transport.js";

/**
 * Milliseconds for the answer after the end of the wait. The agent ends the wait. Without one, it waits for Consul for 12 s.
 */
const ACQUIRE_MARGIN = 15_000;
/** Milliseconds for the answer to a reload, which takes up to 20 s. */
const RELOAD_TIMEOUT = 30_000;
/** Milliseconds for the end of a request that is withdrawn. */
const WITHDRAW_TIMEOUT = 1000;
/** The age of an answer up to which the rest of its lease is used. That of an older one is asked for. */
const MAX_TIME_AS_GRANTED = 1000;

export interface AgentOptions {
  /** The file with the agent's token, which an address that is not a unix socket needs. It is read for each request. */
  tokenFile?: string;
}

export interface AcquireOptions {
  /** The kind of what is acquired, by default `semaphore`. */
  kind?: Kind;
  /** How long to wait for a slot, at most an hour. By default the agent answers at once. */
  wait?: Duration;
  /** Ends the wait, and leaves nothing in the queue. It does not end the lease. */
  signal?: AbortSignal;
}

/** What a reload has changed. */
export interface Reload {
  /** Names of entries; `renamed` such as `a to b`. */
  readonly added: readonly string[];
  readonly removed: readonly string[];
  readonly renamed: readonly string[];
  /** Fields. */
  readonly changed: readonly string[];
  /** What needs a restart, cannot be applied yet, or is kept as it was; each says why. */
  readonly refused: readonly string[];
  readonly pending: readonly string[];
  readonly deferred: readonly string[];
}

/** The agent at `unix:/path/of/the.sock` or `http://127.0.0.1:port`. */
export class Agent {
  readonly #endpoint: Endpoint;

  constructor(address: string, options: AgentOptions = {}) {
    this.#endpoint = new Endpoint(address, options.tokenFile);
  }

  /**
   * Acquires the semaphore's slots, or the lock, of that name in the agent's configuration.
   *
   * The request is sent once. If its answer is lost, this rejects with an `UnavailableError`, and the agent releases a slot that
   * it has granted: at once if it could not send the answer, else when it was not renewed for the session's TTL and its margin.
   */
  async acquire(name: string, options: AcquireOptions = {}): Promise<Lease> {
    const { kind = "semaphore", wait = 0, signal } = options;
    const waitMs = milliseconds(wait);
    signal?.throwIfAborted();
    const path = `/v1/${kind}s/${encodeURIComponent(name)}/acquire`;
    const exchange = this.#endpoint.exchange("POST", path, { wait: asText(waitMs) });
    const sent = new Instant();
    const lease = new Lease(this.#endpoint, await this.#await(exchange, waitMs, signal), sent);
    // The lease counts from the request, which may have waited for longer than it lasts.
    await lease.start(sent.elapsed() > MAX_TIME_AS_GRANTED);
    return lease;
  }

  /** Acquires a lease, calls `work`, and releases the lease. Rejects with the `LostError` if `work` did not notice the loss. */
  async withLease<T>(name: string, options: AcquireOptions, work: (lease: Lease) => Promise<T>): Promise<T> {
    await using lease = await this.acquire(name, options);
    const result = await work(lease);
    lease.throwIfLost();
    return result;
  }

  /** Tells the agent that the workload is done: it releases everything, all leases too, and exits. */
  async drain(): Promise<void> {
    await this.#endpoint.exchange("POST", "/v1/drain").sendWithin(REQUEST_TIMEOUT);
  }

  /** Makes the agent read its configuration again. Resolves when it is applied. */
  async reload(): Promise<Reload> {
    const content = await this.#endpoint.exchange("POST", "/v1/reload").sendWithin(RELOAD_TIMEOUT);
    return {
      added: strings(content, "added"),
      removed: strings(content, "removed"),
      renamed: strings(content, "renamed"),
      changed: strings(content, "changed"),
      refused: strings(content, "refused"),
      pending: strings(content, "pending"),
      deferred: strings(content, "deferred"),
    };
  }

  /**
   * Sends a request for a lease, and withdraws it if `signal` is aborted or the agent does not answer. A lease that is granted in
   * that instant is released.
   */
  async #await(exchange: Exchange, waitMs: number, signal: AbortSignal | undefined): Promise<LeaseInfo> {
    const abort = new AbortController();
    const state = { withdrawn: false };
    let cancel: () => void;
    const withdraw = () => {
      state.withdrawn = true;
      cancel();
      if (exchange.withdraw()) {
        cancel = after(WITHDRAW_TIMEOUT, () => {
          abort.abort();
        });
      } else {
        abort.abort();
      }
    };
    cancel = after(waitMs + ACQUIRE_MARGIN, withdraw);
    signal?.addEventListener("abort", withdraw, { once: true });
    try {
      const granted = toInfo(await exchange.send(abort.signal));
      if (!state.withdrawn) {
        return granted;
      }
      await release(this.#endpoint, granted.id);
    } catch (error) {
      if (!state.withdrawn) {
        throw error;
      }
    } finally {
      cancel();
      signal?.removeEventListener("abort", withdraw);
    }
    signal?.throwIfAborted();
    throw exchange.unavailable(
      new Error(`nothing came within ${ACQUIRE_MARGIN} ms after the end of the wait`),
    );
  }
}

function strings(content: Content, key: string): string[] {
  const value = content[key];
  if (!Array.isArray(value) || !value.every((one) => typeof one === "string")) {
    throw new UnavailableError(`the agent's answer has no list ${key}`);
  }
  return value;
}
