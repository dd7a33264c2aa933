import { open } from "node:fs/promises";
import { request, type ClientRequest, type IncomingMessage, type RequestOptions } from "node:http";
import { BlockList, isIP, isIPv6 } from "node:net";
import { isAbsolute } from "node:path";

import { RefusedError, TimedOutError, UnavailableError } from "./errors.js";
import { after } from "./time.js";

/** The size of the largest answer. The usual one has 400 bytes. */
const MAX_ANSWER_BYTES = 1024 * 1024;
/** The size of the largest header of an answer. */
const MAX_HEADER_BYTES = 64 * 1024;
/** The size of the largest token file. */
const MAX_TOKEN_BYTES = 8 * 1024;

/** The addresses of this machine. */
const LOOPBACK = new BlockList();
LOOPBACK.addSubnet("127.0.0.0", 8);
LOOPBACK.addAddress("::1", "ipv6");

/** A JSON object of the agent. */
export type Content = Partial<Record<string, unknown>>;

/** Where the agent listens. */
export class Endpoint {
  readonly #options: RequestOptions;
  #reading: Promise<string> | undefined;

  constructor(
    readonly address: string,
    readonly tokenFile?: string,
  ) {
    this.#options = parse(address);
  }

  /**
   * The token, which is read for each request: the file may have changed. A read that hangs, as on a network's file system, does
   * not outlast `signal`. Requests at the same time share it, so that it occupies one thread of Node's pool at most.
   */
  async token(path: string, signal: AbortSignal): Promise<string> {
    this.#reading ??= readToken(path).finally(() => {
      this.#reading = undefined;
    });
    return unlessAborted(this.#reading, signal, `the token file ${path} was not read`);
  }

  exchange(method: string, path: string, body?: Content): Exchange {
    return new Exchange(this, this.#options, method, path, body);
  }
}

/** One request on a connection of its own: the agent serves one request per connection. */
export class Exchange {
  readonly #endpoint: Endpoint;
  readonly #options: RequestOptions;
  readonly #body: string | undefined;
  #request: ClientRequest | undefined;

  constructor(endpoint: Endpoint, options: RequestOptions, method: string, path: string, body?: Content) {
    this.#endpoint = endpoint;
    this.#options = { ...options, method, path };
    this.#body = body && JSON.stringify(body);
  }

  /** Sends it and returns the JSON of the answer; empty if it has none. An abort closes the connection. */
  async send(signal: AbortSignal): Promise<Content> {
    const { tokenFile } = this.#endpoint;
    const headers: Record<string, string> = {};
    if (this.#body !== undefined) {
      headers["Content-Type"] = "application/json";
    }
    try {
      if (tokenFile !== undefined) {
        headers.Authorization = `Bearer ${await this.#endpoint.token(tokenFile, signal)}`;
      }
      const answer = await this.#roundTrip(headers, signal);
      const body = await read(answer);
      const status = answer.statusCode ?? 0;
      if (status < 200 || status > 299) {
        throw refusal(status, body);
      }
      return body === "" ? {} : decode(body);
    } catch (error) {
      throw error instanceof RefusedError || error instanceof UnavailableError
        ? error
        : this.unavailable(error);
    }
  }

  /** Sends it and bounds the time of its answer. */
  async sendWithin(ms: number, signal?: AbortSignal): Promise<Content> {
    const end = new AbortController();
    const cancel = after(ms, () => {
      end.abort(new Error(`no answer within ${Math.round(ms)} ms`));
    });
    // Not AbortSignal.any, which would leave a reference to each exchange in a signal that outlives it.
    const abort = () => {
      end.abort(signal?.reason);
    };
    signal?.addEventListener("abort", abort);
    try {
      signal?.throwIfAborted();
      return await this.send(end.signal);
    } finally {
      cancel();
      signal?.removeEventListener("abort", abort);
    }
  }

  /**
   * Tells the agent that nobody waits for the answer. An answer that is on its way still arrives. Returns whether the request
   * has a connection.
   */
  withdraw(): boolean {
    const socket = this.#request?.socket;
    socket?.end();
    return socket?.connecting === false;
  }

  unavailable(cause: unknown): UnavailableError {
    const { method, path } = this.#options;
    const why = cause instanceof Error ? cause.message : String(cause);
    return new UnavailableError(`no answer to ${method} ${path} at ${this.#endpoint.address}: ${why}`, {
      cause,
    });
  }

  #roundTrip(headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted();
      const sent = request({ ...this.#options, headers }, resolve);
      const abort = () => {
        sent.destroy(signal.reason instanceof Error ? signal.reason : new Error(String(signal.reason)));
      };
      signal.addEventListener("abort", abort);
      sent.on("error", reject);
      sent.on("close", () => {
        signal.removeEventListener("abort", abort);
        reject(new Error("the connection was closed"));
      });
      sent.end(this.#body);
      this.#request = sent;
    });
  }
}

function parse(address: string): RequestOptions {
  // An agent of Node's own would keep connections.
  const common = { agent: false, maxHeaderSize: MAX_HEADER_BYTES } as const;
  if (address.startsWith("unix:") && isAbsolute(address.slice("unix:".length))) {
    return { ...common, socketPath: address.slice("unix:".length), host: "slotkeeper" };
  }
  const [, name = "", digits] = /^http:\/\/([a-z0-9.-]+|\[[0-9a-f:]+\]):(\d{1,5})\/?$/.exec(address) ?? [];
  const host = name.replace(/^\[|\]$/g, "");
  const port = Number(digits);
  if (!isLoopback(host) || !(port > 0 && port < 65_536)) {
    throw new TypeError(
      `${JSON.stringify(address)} is not the address of an agent on this machine: write unix:/path/of/the.sock or http://127.0.0.1:port`,
    );
  }
  return { ...common, host, port };
}

/** Whether a host is this machine. The token would reach another one in clear. */
function isLoopback(host: string): boolean {
  return host === "localhost" || (isIP(host) !== 0 && LOOPBACK.check(host, isIPv6(host) ? "ipv6" : "ipv4"));
}

async function read(answer: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  let size = 0;
  for await (const piece of answer as AsyncIterable<Buffer>) {
    size += piece.length;
    if (size > MAX_ANSWER_BYTES) {
      throw new Error(`its answer has more than ${MAX_ANSWER_BYTES} bytes`);
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString("utf8");
}

function decode(body: string): Content {
  const content: unknown = JSON.parse(body);
  if (typeof content !== "object" || content === null || Array.isArray(content)) {
    throw new Error("its answer is not a JSON object");
  }
  return content;
}

function refusal(status: number, body: string): RefusedError {
  let content: Content = {};
  try {
    content = decode(body);
  } catch {
    // Malformed HTTP, for instance, gets an empty answer.
  }
  const { code, error } = content;
  if (typeof code !== "string" || typeof error !== "string") {
    return new RefusedError(status, "", `the agent refused the request with status ${status}`);
  }
  return new (code === "timed_out" ? TimedOutError : RefusedError)(status, code, error);
}

/** The promise's result, unless the signal is aborted before it comes. */
function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal, failure: string): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      reject(new Error(`${failure}: ${String(signal.reason)}`, { cause: signal.reason }));
    };
    signal.addEventListener("abort", abort);
    if (signal.aborted) {
      abort();
    }
    void promise.then(resolve, reject).finally(() => {
      signal.removeEventListener("abort", abort);
    });
  });
}

async function readToken(path: string): Promise<string> {
  let content: string;
  try {
    await using file = await open(path);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(MAX_TOKEN_BYTES + 1));
    content = buffer.toString("latin1", 0, bytesRead);
  } catch (cause) {
    throw new UnavailableError(`the token file ${path} cannot be read`, { cause });
  }
  const token = content.trim();
  if (content.length > MAX_TOKEN_BYTES || !/^[!-~]+$/.test(token)) {
    throw new UnavailableError(`the token file ${path} must have one token of visible ASCII characters`);
  }
  return token;
}
