import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { getEventListeners, once } from "node:events";
import { mkdtemp, open, rm, writeFile } from "node:fs/promises";
import { createServer, type RequestListener, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { suite, test } from "node:test";
import { promisify } from "node:util";

import { Agent, LostError, RefusedError, UnavailableError, type Lease } from "../src/index.js";
import { asText, milliseconds } from "../src/time.js";
import { Endpoint } from "../src/transport.js";
import { waitFor } from "./world.js";

/** Calls `work` with a client of a server that answers each request so. */
async function withStub(
  answer: RequestListener,
  work: (client: Agent, server: Server) => Promise<void>,
): Promise<void> {
  const server = createServer(answer).listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    await work(new Agent(`http://127.0.0.1:${(server.address() as AddressInfo).port}`), server);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

function lease(expiresInSeconds: number, isDraining = false): string {
  return JSON.stringify({
    lease: "a",
    session: "b",
    fencing_token: 1,
    lock_index: null,
    slot_indexes: [0],
    expires_in_seconds: expiresInSeconds,
    kind: "semaphore",
    name: "any",
    prefix: "any",
    key: null,
    draining: isDraining,
    draining_ends_in_seconds: isDraining ? 1 : null,
  });
}

suite("the client", { concurrency: true }, () => {
  test("an address is a socket or a loopback address", () => {
    const sockets = ["unix:/run/control.sock", "unix:/a/b"];
    const loopback = ["http://127.0.0.1:1", "http://127.9.9.9:80", "http://[::1]:80", "http://[::1]:9378/"];
    for (const good of [...sockets, ...loopback, "http://127.0.0.1:9378", "http://localhost:80"]) {
      assert(new Agent(good));
    }
    const paths = ["", "unix:", "unix:relative.sock", "/run/control.sock"];
    const hosts = ["127.0.0.1:9378", "https://127.0.0.1:9378", "http://127.0.0.1", "http://:9378"];
    const urls = ["http://127.0.0.1:9378/v1", "http://127.0.0.1:9378?a=b", "http://user@127.0.0.1:9378"];
    const others = ["example.com", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com", "[::2]"];
    const ports = ["http://127.0.0.1:99999", "http://127.0.0.1:0"];
    const rest = [
      ...["https://127.0.0.1:80", "http://user@127.0.0.1:80", "http://127.0.0.1:80/path"],
      ...["http://127.0.0.1:80#f", "unix:rel.sock"],
    ];
    const distant = others.map((host) => `http://${host}:80`);
    for (const bad of [...paths, ...hosts, ...urls, ...distant, ...ports, ...rest]) {
      assert.throws(() => new Agent(bad), /write unix:/, bad);
    }
  });

  test("a wait is sent in whole seconds or milliseconds", async () => {
    for (const [wait, sent] of [
      [0, "0s"],
      [0.5, "1ms"],
      ["1500ms", "1500ms"],
      ["1m30s", "90s"],
      ["1h", "3600s"],
      [999_999, "999999ms"],
      [1_000_001, "1001s"],
    ] as const) {
      assert.equal(asText(milliseconds(wait)), sent);
    }
    for (const wait of [-1, NaN, Infinity, "", "30", "1.5s", "s", "30s "]) {
      await assert.rejects(new Agent("unix:/absent").acquire("any", { wait }), RangeError);
    }
  });

  test("a token file that hangs holds up no loss", async () => {
    const folder = await mkdtemp(join(tmpdir(), "slotkeeper-ts-"));
    const tokenFile = join(folder, "token");
    await withStub(
      (_, answer) => answer.end(lease(2)),
      async (_, server) => {
        await writeFile(tokenFile, "secret");
        const { port } = server.address() as AddressInfo;
        const client = new Agent(`http://127.0.0.1:${port}`, { tokenFile });
        const held = await client.acquire("any");
        const expires = performance.now() + held.remaining();
        // The opening of a FIFO waits for a writer.
        await rm(tokenFile);
        await promisify(execFile)("mkfifo", [tokenFile]);
        try {
          await once(held.signal, "abort");
          const late = performance.now() - expires;
          const reason: unknown = held.signal.reason;
          assert(reason instanceof LostError && reason.cause instanceof UnavailableError);
          assert(reason.message.includes(tokenFile));
          assert(late < 1000, `the loss was told ${late} ms after the lease expired`);
          const began = performance.now();
          const signal = AbortSignal.timeout(100);
          await assert.rejects(client.acquire("any", { wait: "1h", signal }), { name: "TimeoutError" });
          await held.release();
          const took = performance.now() - began;
          assert(took < 7000, `the release took ${took} ms`);
        } finally {
          await (await open(tokenFile, "r+")).close();
        }
      },
    );
    await rm(folder, { recursive: true });
  });

  test("an answer is bounded", async () => {
    const piece = Buffer.alloc(64 * 1024, " ");
    await withStub(
      (_, answer) => {
        const more = () => {
          while (answer.writable && answer.write(piece));
        };
        answer.on("drain", more);
        more();
      },
      async (client) => {
        await assert.rejects(client.acquire("any"), /more than \d+ bytes/);
      },
    );
  });

  test("an answer that is no lease is unavailable", async () => {
    const bodies = [
      "",
      "nonsense",
      "[]",
      "{}",
      lease(-1),
      lease(1).replace('"a"', '"../a"'),
      '{"lease":1}',
      lease(1).replace('seconds":1', 'seconds":1e999'),
    ];
    for (const body of bodies) {
      await withStub(
        (_, answer) => answer.end(body),
        async (client) => {
          await assert.rejects(client.acquire("any"), UnavailableError, body);
        },
      );
    }
  });

  test("a lease has a longest time", async () => {
    await withStub(
      (_, answer) => answer.end(lease(1e12)),
      async (client) => {
        await using held = await client.acquire("any");
        assert(held.remaining() <= 48 * 3_600_000);
      },
    );
  });

  test("the answer to a renewal is of the same lease", async () => {
    let isGranted = false;
    await withStub(
      (request, answer) => {
        const isOther = isGranted && request.url?.endsWith("/renew");
        answer.end(isOther ? lease(60).replace('"a"', '"other"') : lease(2));
      },
      async (client) => {
        const held = await client.acquire("any");
        isGranted = true;
        await once(held.signal, "abort");
        const reason: unknown = held.signal.reason;
        assert(reason instanceof LostError && reason.message.includes("lease other instead of a"));
        await held.release();
      },
    );
  });

  test("a request leaves nothing in a signal that outlives it", async () => {
    const { signal } = new AbortController();
    let during = 0;
    await withStub(
      (_, answer) => {
        during = getEventListeners(signal, "abort").length;
        answer.end("{}");
      },
      async (_, server) => {
        const { port } = server.address() as AddressInfo;
        await new Endpoint(`http://127.0.0.1:${port}`).exchange("GET", "/").sendWithin(5000, signal);
      },
    );
    assert.deepEqual([during, getEventListeners(signal, "abort").length], [1, 0]);
  });

  test("an answer of another server is a refusal, and no redirection is followed", async () => {
    await withStub(
      (_, answer) => answer.writeHead(307, { Location: "http://127.0.0.1:1/" }).end(),
      async (client) => {
        await assert.rejects(client.acquire("any"), (error: RefusedError) => error.status === 307);
      },
    );
  });

  test("a lease counts from the request and not from the answer", async () => {
    let renewals = 0;
    await withStub(
      (request, answer) => {
        if (request.url?.endsWith("/acquire")) {
          setTimeout(() => answer.end(lease(1)), 1100);
        } else {
          renewals += Number(request.method === "POST");
          answer.end(lease(60));
        }
      },
      async (client) => {
        // It expired while the answer was on its way: the renewal comes first.
        await using lease = await client.acquire("any", { wait: "1m" });
        assert.equal(renewals, 1);
        lease.check();
        assert(lease.remaining() <= 59_900);
      },
    );
  });

  const refuse = (status: number, code: string) => (answer: ServerResponse) =>
    answer.writeHead(status).end(JSON.stringify({ error: "refused", code }));

  for (const [status, code, lasts] of [
    [503, "draining", true],
    [404, "unknown_lease", true],
    [410, "lease_lost", false],
  ] as const) {
    test(`a lease ${lasts ? "outlasts" : "is lost at"} a draining agent's ${code}`, async () => {
      let renewals = 0;
      await withStub(
        (request, answer) => {
          if (request.url?.endsWith("/renew") && ++renewals > 1) {
            refuse(status, code)(answer);
          } else {
            answer.end(lease(3, true));
          }
        },
        async (client) => {
          await using held = await client.acquire("any");
          await waitFor("the end to be told", () => held.draining);
          const [began, remaining] = [performance.now(), held.remaining()];
          await once(held.signal, "abort");
          const took = performance.now() - began;
          assert.equal(took >= remaining - 200, lasts, `the loss was told after ${took} ms of ${remaining}`);
        },
      );
    });
  }

  for (const [name, renewal, isLost] of [
    ["a refused connection", undefined, true],
    ["draining", refuse(503, "draining"), true],
    ["busy", refuse(503, "busy"), false],
    ["another status", refuse(500, "draining"), false],
    ["a closed connection", (answer: ServerResponse) => answer.destroy(), false],
  ] as const) {
    test(`a lease is ${isLost ? "" : "not "}lost at a renewal by ${name}`, async () => {
      let renewals = 0;
      // An answer that is late on a busy machine is renewed before that.
      let isGranted = false;
      await withStub(
        (request, answer) => {
          if (isGranted && request.url?.endsWith("/renew") && renewal) {
            renewals += 1;
            renewal(answer);
          } else {
            answer.end(lease(6));
          }
        },
        async (client, server) => {
          await using held = await client.acquire("any");
          isGranted = true;
          const remaining = held.remaining();
          const began = performance.now();
          if (!renewal) {
            server.close();
          }
          if (!isLost) {
            await waitFor("two renewals", () => renewals >= 2);
            held.check();
            return;
          }
          await once(held.signal, "abort");
          const took = performance.now() - began;
          const reason: unknown = held.signal.reason;
          assert(reason instanceof LostError && reason.message.includes("its agent has ended"));
          assert(took < remaining - 1000, `the loss was told after ${took} ms`);
        },
      );
    });
  }

  test("a lease expires while its renewal hangs", async () => {
    let isGranted = false;
    await withStub(
      (request, answer) => {
        if (!isGranted || !request.url?.endsWith("/renew")) {
          answer.end(lease(2));
        }
      },
      async (client) => {
        const began = performance.now();
        const lease = await client.acquire("any");
        isGranted = true;
        const expires = performance.now() + lease.remaining();
        await once(lease.signal, "abort");
        const [took, late] = [performance.now() - began, performance.now() - expires];
        assert(took > 1500 && late < 1000, `it expired after ${took} ms, ${late} ms late`);
        const reason: unknown = lease.signal.reason;
        assert(reason instanceof LostError && reason.cause instanceof UnavailableError);
        await lease.release();
        assert.throws(() => {
          lease.check();
        }, LostError);
      },
    );
  });
});

// Not beside the others, which it would hold up.
test("a program that is busy learns of the loss by its check", async () => {
  await withStub(
    (_, answer) => answer.end(lease(2)),
    async (client) => {
      const lease = await client.acquire("any");
      while (lease.remaining() > 0);
      assert(!lease.signal.aborted);
      assert.throws(() => {
        lease.check();
      }, LostError);
      assert(lease.signal.aborted);
      await lease.release();
    },
  );
});

test("work that is busy until its lease expires is rejected", async () => {
  await withStub(
    (_, answer) => answer.end(lease(2)),
    async (client) => {
      const busy = (held: Lease) => {
        while (held.remaining() > 0);
        return Promise.resolve();
      };
      await assert.rejects(client.withLease("any", {}, busy), LostError);
      const releases = async (held: Lease) => {
        await busy(held);
        await held.release();
      };
      await assert.rejects(client.withLease("any", {}, releases), LostError);
      await client.withLease("any", {}, (held) => held.release());
    },
  );
});
