import assert from "node:assert/strict";
import { once } from "node:events";
import { rm } from "node:fs/promises";
import { suite } from "node:test";

import { Agent, LostError, RefusedError, TimedOutError, UnavailableError, type Lease } from "../src/index.js";
import { scenario, TTL, WAIT, waitFor, type RunningAgent } from "./world.js";

/** How long after the end of its lease a holder's session surely lives. */
const LOSS_MARGIN = TTL / 10;

/** Milliseconds that it takes. */
async function time(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

async function lost(lease: Lease): Promise<unknown> {
  if (!lease.signal.aborted) {
    await once(lease.signal, "abort");
  }
  return lease.signal.reason;
}

/**
 * Waits for the loss of a lease that no request renews any more. It must come when the lease expires, and before another client
 * has the slot at another agent.
 */
async function expectLoss(lease: Lease, other: RunningAgent): Promise<void> {
  const expires = performance.now() + lease.remaining();
  const granted = new Agent(`unix:${other.socket}`).acquire("single", { wait: "60s" }).then(async (next) => {
    assert(lease.signal.aborted, "another client has the slot before the loss");
    await next.release();
  });
  assert((await lost(lease)) instanceof LostError);
  const late = performance.now() - expires;
  assert(late > -1000 && late < LOSS_MARGIN, `the loss was told ${late} ms after the lease expired`);
  assert.throws(() => {
    lease.check();
  }, LostError);
  assert.equal(lease.remaining(), 0);
  await granted;
}

/** Waits for the loss of a lease whose agent has just ended. It must come at the next renewal. */
async function expectEnd(lease: Lease): Promise<void> {
  const remaining = lease.remaining();
  let reason: unknown;
  const took = await time(async () => (reason = await lost(lease)));
  assert(reason instanceof LostError && reason.message.includes("its agent has ended"), String(reason));
  assert(took < remaining / 2, `the loss was told after ${took} ms, with ${remaining} ms remaining`);
}

suite("the loss of a lease", { concurrency: true }, () => {
  scenario("is told in time when each connection is closed", async (world) => {
    // The wire accepts the connections for an agent that was killed.
    const consul = await world.startConsul();
    const [agent, other] = [await world.startAgent(consul), await world.startAgent(consul)];
    const { client } = await world.connect(agent);
    const lease = await client.acquire("single", { wait: WAIT });
    await agent.kill();
    await expectLoss(lease, other);
  });

  scenario("is told at the next renewal when the agent is killed", async (world) => {
    const agent = await world.startAgent();
    const lease = await new Agent(`unix:${agent.socket}`).acquire("single", { wait: WAIT });
    await agent.kill();
    await expectEnd(lease);
  });

  scenario("does not come when the agent ends by SIGTERM", async (world) => {
    const consul = await world.startConsul();
    const [agent, other] = [await world.startAgent(consul), await world.startAgent(consul)];
    const lease = await new Agent(`unix:${agent.socket}`).acquire("single", { wait: WAIT });
    agent.signal("SIGTERM");
    await waitFor("the end to be told", () => lease.draining);
    lease.check();
    // The slot is free when the program releases it, and not before.
    const client = new Agent(`unix:${other.socket}`);
    await assert.rejects(client.acquire("single"), TimedOutError);
    await lease.release();
    const took = await time(async () => (await client.acquire("single", { wait: WAIT })).release());
    assert(took < TTL / 2, `the slot was free after ${took} ms`);
  });

  scenario("is told at the next renewal when the socket is missing", async (world) => {
    const agent = await world.startAgent();
    const lease = await new Agent(`unix:${agent.socket}`).acquire("single", { wait: WAIT });
    await rm(agent.socket);
    await expectEnd(lease);
  });

  scenario("is told in time when the agent is stopped", async (world) => {
    const consul = await world.startConsul();
    const [agent, other] = [await world.startAgent(consul), await world.startAgent(consul)];
    const { client, wire } = await world.connect(agent);
    const lease = await client.acquire("single", { wait: WAIT });
    agent.signal("SIGSTOP");
    await expectLoss(lease, other);
    // The agent may have answered others before it was stopped.
    assert(wire.asked("renew_lease") - wire.answered("renew_lease") >= 2);
    agent.signal("SIGCONT");
    await lease.release();
  });

  scenario("does not come by a short stop of the agent", async (world) => {
    const agent = await world.startAgent();
    const { client, wire } = await world.connect(agent);
    await using lease = await client.acquire("single", { wait: WAIT });
    agent.signal("SIGSTOP");
    await waitFor("a renewal without an answer", () => wire.asked("renew_lease") > 0);
    agent.signal("SIGCONT");
    await waitFor("two renewals", () => wire.answered("renew_lease") >= 2);
    lease.check();
  });

  scenario("is told when its agent is restarted", async (world) => {
    const agent = await world.startAgent();
    const { client } = await world.connect(agent);
    const lease = await client.acquire("single", { wait: WAIT });
    await agent.kill();
    agent.start();
    // The new agent does not know the lease.
    const reason = await lost(lease);
    assert(reason instanceof LostError && reason.cause instanceof RefusedError);
    assert.equal(reason.cause.code, "unknown_lease");
    await lease.release();
    await (await client.acquire("single", { wait: WAIT })).release();
  });

  scenario("is told when it is evicted, and its release hands the slot off", async (world) => {
    const agent = await world.startAgent();
    const { client } = await world.connect(agent);
    const work = client.withLease("single", { wait: WAIT }, async (lease) => {
      await agent.evict(lease.prefix ?? "", lease.session);
      await lost(lease);
    });
    await assert.rejects(work, LostError);
    const took = await time(async () => (await client.acquire("single", { wait: WAIT })).release());
    assert(took < TTL / 2, `the slot was free after ${took} ms`);
  });
});

suite("a lost answer", { concurrency: true }, () => {
  scenario("does not repeat an acquisition", async (world) => {
    const { client, wire } = await world.connect(await world.startAgent());
    wire.faults.set("acquire_semaphore", "lose");
    await assert.rejects(client.acquire("single", { wait: WAIT }), UnavailableError);
    assert.equal(wire.asked("acquire_semaphore"), 1);
    // The agent releases what it has granted, since nobody renews it.
    wire.faults.clear();
    const took = await time(async () => (await client.acquire("single", { wait: WAIT })).release());
    assert(took < TTL + TTL / 10 + 3000, `the slot was free after ${took} ms`);
  });

  scenario("is no error of a release", async (world) => {
    const { client, wire } = await world.connect(await world.startAgent());
    wire.faults.set("release_lease", "lose");
    await (await client.acquire("single", { wait: WAIT })).release();
    assert.equal(wire.asked("release_lease"), 1);
    await (await client.acquire("single", { wait: WAIT })).release();
  });

  scenario("does not hang a request to a stopped agent", async (world) => {
    const agent = await world.startAgent();
    const { client } = await world.connect(agent);
    const lease = await client.acquire("licences", { wait: WAIT });
    agent.signal("SIGSTOP");
    const signal = AbortSignal.timeout(100);
    const cancelled = await time(() =>
      assert.rejects(client.acquire("licences", { wait: "1h", signal }), { name: "TimeoutError" }),
    );
    assert(cancelled < 3000, `the cancelled wait took ${cancelled} ms`);
    const released = await time(() => lease.release());
    assert(released < 6000, `the release took ${released} ms`);
    agent.signal("SIGCONT");
    await agent.expectLeases("licences", "held", 0);
  });

  scenario("is that of an agent that is not there", async (world) => {
    for (const address of [`unix:${await world.folder()}/absent.sock`, "http://127.0.0.1:1"]) {
      await assert.rejects(new Agent(address).acquire("single", { wait: WAIT }), (error) => {
        assert(error instanceof UnavailableError && error.message.includes(address));
        assert(error.cause instanceof Error && "code" in error.cause);
        return true;
      });
    }
  });
});
