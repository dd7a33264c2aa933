import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { suite } from "node:test";

import { RefusedError, SlotkeeperError, TimedOutError, UnavailableError } from "../src/index.js";
import { scenario, TTL, WAIT, waitFor } from "./world.js";

/** The operations for monitoring, which this client leaves to others. */
const READ_ONLY = [
  "document",
  "events",
  "healthy",
  "live",
  "lock",
  "metrics",
  "ready",
  "semaphore",
  "startup",
  "status",
];

suite("an agent", { concurrency: true }, () => {
  scenario("a lease is renewed until it is released", async (world) => {
    const agent = await world.startAgent();
    const { client, wire } = await world.connect(agent);
    const lease = await client.acquire("licences", { wait: WAIT });
    assert.deepEqual(
      [lease.kind, lease.name, lease.prefix, lease.key, lease.lockIndex],
      ["semaphore", "licences", "service/licences", null, null],
    );
    assert(lease.fencingToken > 0);
    const granted = performance.now() + lease.remaining();
    await waitFor("the end of the lease as it was granted", () => performance.now() > granted);
    lease.check();
    assert(lease.remaining() > 0 && lease.remaining() < TTL);
    assert(wire.answered("renew_lease") >= 2);
    await agent.expectLeases("licences", "held", 1);
    await Promise.all([lease.release(), lease.release()]);
    assert(!lease.signal.aborted);
    assert.throws(() => {
      lease.check();
    }, SlotkeeperError);
    assert.equal(lease.remaining(), 0);
    assert.deepEqual([wire.asked("release_lease"), wire.answered("release_lease")], [1, 1]);
    await agent.expectLeases("licences", "held", 0);
  });

  scenario("a block releases its lease", async (world) => {
    const { client } = await world.connect(await world.startAgent());
    {
      await using lease = await client.acquire("single", { wait: WAIT });
      lease.check();
      await assert.rejects(client.acquire("single"), TimedOutError);
    }
    const failure = new Error("work failed");
    const failing = client.withLease("single", {}, () => Promise.reject(failure));
    await assert.rejects(failing, (error) => error === failure);
    assert.equal(await client.withLease("single", {}, (lease) => Promise.resolve(lease.name)), "single");
  });

  scenario("a refusal has status and code", async (world) => {
    const { client } = await world.connect(await world.startAgent());
    await using lease = await client.acquire("single", { wait: WAIT });
    lease.check();
    for (const [name, type, status, code] of [
      ["single", TimedOutError, 409, "timed_out"],
      ["absent", RefusedError, 404, "unknown_semaphore"],
      ["held", RefusedError, 403, "not_on_demand"],
    ] as const) {
      await assert.rejects(client.acquire(name, { wait: 10 }), (error) => {
        assert(
          error instanceof RefusedError && error.constructor === (type as unknown) && error.message !== "",
        );
        assert.deepEqual([error.status, error.code], [status, code]);
        return true;
      });
    }
  });

  scenario("a token file is read for each request", async (world) => {
    const agent = await world.startAgent();
    const [theirs, mine] = [agent.file("agent.token"), agent.file("client.token")];
    const secret = "0123456789abcdef";
    await writeFile(theirs, secret, { mode: 0o600 });
    await agent.listenAtLoopback(theirs);
    const { client } = await world.connect(agent, { tokenFile: mine });
    const code = (expected: string) => (error: RefusedError) => error.code === expected;
    await assert.rejects(client.acquire("single"), UnavailableError);
    await writeFile(mine, "0123456789abcdeX\n");
    await assert.rejects(client.acquire("single"), code("unauthorized"));
    await writeFile(mine, "two tokens\n");
    await assert.rejects(client.acquire("single"), UnavailableError);
    await writeFile(mine, `${secret}\n`);
    await (await client.acquire("single", { wait: WAIT })).release();
  });

  scenario("a cancelled wait leaves nothing behind", async (world) => {
    const agent = await world.startAgent();
    const { client } = await world.connect(agent);
    const first = await client.acquire("single", { wait: WAIT });
    const cancel = new AbortController();
    const second = client.acquire("single", { wait: "1h", signal: cancel.signal });
    await agent.expectLeases("single", "waiting", 1);
    const enough = new Error("waited for long enough");
    cancel.abort(enough);
    await assert.rejects(second, (error) => error === enough);
    await agent.expectLeases("single", "waiting", 0);
    await first.release();
    await (await client.acquire("single", { wait: WAIT })).release();
    await assert.rejects(client.acquire("single", { signal: cancel.signal }), (error) => error === enough);
  });

  scenario("a slot that is granted as the wait is cancelled is released", async (world) => {
    const agent = await world.startAgent();
    const { client, wire } = await world.connect(agent);
    wire.faults.set("acquire_semaphore", "hold");
    const cancel = new AbortController();
    const granted = client.acquire("single", { wait: "1h", signal: cancel.signal });
    await agent.expectLeases("single", "held", 1);
    cancel.abort();
    await assert.rejects(granted, { name: "AbortError" });
    assert.equal(wire.answered("release_lease"), 1);
    await agent.expectLeases("single", "held", 0);
  });

  scenario("each operation of the control API is covered", async (world) => {
    const agent = await world.startAgent();
    const { client, wire } = await world.connect(agent);
    const lock = await client.acquire("leader", { kind: "lock", wait: WAIT });
    assert.deepEqual([lock.kind, lock.key, lock.slotIndexes], ["lock", "service/leader", [0]]);
    assert.equal(typeof lock.lockIndex, "number");
    const lease = await client.acquire("licences", { wait: WAIT });
    const shown = await lease.show();
    assert.deepEqual([shown.id, shown.fencingToken], [lease.id, lease.fencingToken]);
    assert(shown.expiresIn > 0);
    await waitFor("a renewal", () => wire.answered("renew_lease") > 0);
    await lease.release();
    await assert.rejects(lease.show(), RefusedError);
    await agent.configure(
      `  - {name: other, key: service/other, mode: on_demand}\ncontrol: {listen: "unix:${agent.socket}"}`,
    );
    assert.deepEqual((await client.reload()).added, ["other"]);
    await agent.configure("nonsense: 1");
    await assert.rejects(client.reload(), (error: RefusedError) => error.code === "reload_refused");
    await lock.release();
    await client.drain();
    assert.equal(await agent.ended(), 0);

    const operations = wire.document.operations();
    const uncovered = operations.filter((id) => wire.answered(id) === 0);
    assert.deepEqual(uncovered.sort(), READ_ONLY, "cover a new operation, or add it to the list");
  });
});
