import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { get as httpGet, type RequestOptions } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Agent, type AgentOptions } from "../src/index.js";
import { Wire } from "./wire.js";

/** Milliseconds for anything that surely happens. */
const PATIENCE = 30_000;
/** A wait for a slot that surely becomes free. */
export const WAIT = "30s";
/** Consul's shortest TTL of a session, in milliseconds. */
export const TTL = 10_000;

const CONFIGURATION = `
session: {ttl: ${TTL}ms}
http: {listen: "127.0.0.1:0"}
semaphores:
  - {name: licences, prefix: service/licences, limit: 2, mode: on_demand}
  - {name: single, prefix: service/single, limit: 1, mode: on_demand}
  - {name: held, prefix: service/held, limit: 1}
locks:
  - {name: leader, key: service/leader, mode: on_demand}
`;

/** A test with agents of its own. */
export function scenario(name: string, body: (world: World) => Promise<void>): void {
  test(name, { timeout: 4 * PATIENCE }, async () => {
    await using world = new World();
    await body(world);
    assert.deepEqual(
      world.wires.flatMap((wire) => wire.problems),
      [],
    );
  });
}

export function slotkeeperBin(): string {
  const binary = process.env.SLOTKEEPER_BIN;
  assert(binary, "SLOTKEEPER_BIN is not set: name the slotkeeper binary to test with");
  return binary;
}

/** Fails if the condition does not become true. */
export async function waitFor(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = performance.now() + PATIENCE; !(await condition());) {
    assert(performance.now() < end, `waited for ${PATIENCE} ms for ${what}`);
    await sleep(20);
  }
}

/** Reads an endpoint without the client and without a check of the answer. */
async function get(target: RequestOptions, path: string): Promise<object> {
  const answered = once(httpGet({ ...target, path, agent: false, timeout: PATIENCE }), "response");
  const [answer] = (await answered) as [NodeJS.ReadableStream];
  return JSON.parse(await text(answer)) as object;
}

/** All that a test has started. */
export class World implements AsyncDisposable {
  readonly wires: Wire[] = [];
  readonly #processes: ChildProcess[] = [];
  readonly #folders: string[] = [];

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.wires.map((wire) => wire.close()));
    await Promise.all(this.#processes.map(kill));
    await Promise.all(this.#folders.map((folder) => rm(folder, { recursive: true })));
  }

  /** A new folder. The paths of unix sockets are short. */
  async folder(): Promise<string> {
    const folder = await mkdtemp(join(tmpdir(), "slotkeeper-ts-"));
    this.#folders.push(folder);
    return folder;
  }

  start(
    args: string[],
    environment: NodeJS.ProcessEnv,
    stdio: ["ignore", "pipe" | "inherit", "pipe" | "inherit"],
  ) {
    const { PATH, HOME } = process.env;
    const child = spawn(slotkeeperBin(), args, { env: { PATH, HOME, ...environment }, stdio });
    this.#processes.push(child);
    return child;
  }

  /** Starts a server for several agents, and returns its address. */
  async startConsul(): Promise<string> {
    const child = this.start(["dev", "--listen", "127.0.0.1:0"], {}, ["ignore", "pipe", "inherit"]);
    return firstMatch(child.stdout, /export CONSUL_HTTP_ADDR=(\S+)/);
  }

  async startAgent(consul?: string): Promise<RunningAgent> {
    const folder = await this.folder();
    const agent = new RunningAgent(this, consul ?? (await this.startConsul()), folder);
    await agent.configure(`control: {listen: "unix:${agent.socket}"}`);
    agent.start();
    await waitFor("the agent's socket", () => existsSync(agent.socket));
    return agent;
  }

  /** A client of the agent that checks each exchange. */
  async connect(agent: RunningAgent, options?: AgentOptions): Promise<{ client: Agent; wire: Wire }> {
    const { target } = agent;
    const wire = await Wire.open(target, await get(target, "/v1/openapi.json"), await this.folder());
    this.wires.push(wire);
    return { client: new Agent(wire.address, options), wire };
  }
}

/** An agent that listens at a socket in a folder of its own. */
export class RunningAgent {
  readonly socket: string;
  /** Where a client connects. */
  target: RequestOptions;
  readonly #file: string;
  #child: ChildProcess | undefined;

  constructor(
    readonly world: World,
    readonly consul: string,
    readonly folder: string,
  ) {
    this.socket = join(folder, "control.sock");
    this.target = { socketPath: this.socket };
    this.#file = join(folder, "slots.yaml");
  }

  async configure(rest: string): Promise<void> {
    await writeFile(this.#file, CONFIGURATION + rest);
  }

  start(): void {
    const args = ["agent", "--config", this.#file, "--log-level", "error"];
    this.#child = this.world.start(args, { CONSUL_HTTP_ADDR: this.consul }, ["ignore", "inherit", "inherit"]);
  }

  /** Restarts it at a loopback address with that token file. */
  async listenAtLoopback(tokenFile: string): Promise<void> {
    await this.kill();
    await this.configure(`control: {listen: "127.0.0.1:0", token_file: ${JSON.stringify(tokenFile)}}`);
    const args = ["agent", "--config", this.#file, "--log-format", "json"];
    const child = this.world.start(args, { CONSUL_HTTP_ADDR: this.consul }, ["ignore", "inherit", "pipe"]);
    this.#child = child;
    const port = await firstMatch(child.stderr, /control endpoints served.*http:\/\/127\.0\.0\.1:(\d+)/);
    this.target = { host: "127.0.0.1", port: Number(port) };
  }

  signal(signal: NodeJS.Signals): void {
    assert(this.#child?.kill(signal));
  }

  async kill(): Promise<void> {
    assert(this.#child);
    await kill(this.#child);
  }

  /** Its exit code. */
  async ended(): Promise<number | null> {
    assert(this.#child);
    await exited(this.#child);
    return this.#child.exitCode;
  }

  /** Waits until that many leases of the semaphore are in that state. The status follows an answer a little later. */
  async expectLeases(semaphore: string, state: string, count: number): Promise<void> {
    await waitFor(`${count} leases of ${semaphore} that are ${state}`, async () => {
      const status = await get(this.target, `/v1/semaphores/${semaphore}`);
      const { leases } = status as { leases: { state: string }[] };
      return leases.filter((lease) => lease.state === state).length === count;
    });
  }

  /** Evicts a holder, without a wait until it is out. */
  async evict(prefix: string, session: string): Promise<void> {
    const args = ["evict", "--yes", "--wait", "0s", prefix, session];
    const child = this.world.start(args, { CONSUL_HTTP_ADDR: this.consul }, ["ignore", "pipe", "pipe"]);
    child.stderr?.resume();
    child.stdout?.resume();
    await exited(child);
    assert([0, 75].includes(child.exitCode ?? -1), `evict exited with ${child.exitCode ?? "a signal"}`);
  }

  file(name: string): string {
    return join(dirname(this.socket), name);
  }
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill("SIGKILL");
  await exited(child);
}

async function exited(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    await once(child, "exit");
  }
}

async function firstMatch(output: NodeJS.ReadableStream | null, pattern: RegExp): Promise<string> {
  assert(output);
  for await (const line of createInterface({ input: output })) {
    const match = pattern.exec(line)?.[1];
    if (match !== undefined) {
      output.resume();
      return match;
    }
  }
  throw new Error(`the process ended without ${String(pattern)}`);
}
