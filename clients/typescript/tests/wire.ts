import { once } from "node:events";
import type { RequestOptions } from "node:http";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { join } from "node:path";

import { Document, type Message } from "./document.js";

/** What happens to an answer on its way to the client: it is lost, or held until the client has withdrawn its request. */
type Fault = "lose" | "hold";

/**
 * Is between a client and an agent, and checks each request and its answer against the agent's document. The agent serves one
 * request per connection and then closes it, so that a connection is an exchange.
 */
export class Wire {
  readonly problems: string[] = [];
  /** What happens to the answers of an operation. */
  readonly faults = new Map<string, Fault>();
  address = "";
  readonly #asked = new Map<string, number>();
  readonly #answered = new Map<string, number>();
  readonly #target: RequestOptions;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(
    target: RequestOptions,
    readonly document: Document,
  ) {
    this.#target = target;
    this.#server = createServer({ allowHalfOpen: true }, (client) => {
      this.#exchange(client);
    });
  }

  /** Listens at an address of the same kind as the target's. */
  static async open(target: RequestOptions, document: object, folder: string): Promise<Wire> {
    const wire = new Wire(target, new Document(document));
    const socket = join(folder, "wire.sock");
    wire.#server.listen(target.socketPath ? { path: socket } : { host: "127.0.0.1", port: 0 });
    await once(wire.#server, "listening");
    const { port } = wire.#server.address() as AddressInfo;
    wire.address = target.socketPath ? `unix:${socket}` : `http://127.0.0.1:${port}`;
    return wire;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    await closed;
  }

  /** How many requests of that operation were sent. */
  asked(operation: string): number {
    return this.#asked.get(operation) ?? 0;
  }

  /** How many of them the agent has answered. */
  answered(operation: string): number {
    return this.#answered.get(operation) ?? 0;
  }

  #exchange(client: Socket): void {
    const { socketPath, host, port } = this.#target;
    const agent = connect(
      socketPath
        ? { path: socketPath, allowHalfOpen: true }
        : { host: host ?? "", port: Number(port), allowHalfOpen: true },
    );
    for (const socket of [client, agent]) {
      this.#sockets.add(socket);
      // As for a client whose agent is not there, or is killed.
      socket.on("error", () => client.destroy());
      socket.on("close", () => {
        this.#sockets.delete(socket);
        agent.destroy();
      });
    }
    let sent = "";
    let operation: string | undefined;
    client.setEncoding("latin1");
    client.on("data", (piece: string) => {
      sent += piece;
      agent.write(piece, "latin1");
      if (operation === undefined && sent.includes("\r\n\r\n")) {
        operation = this.#find(parse(sent))?.operation.operationId ?? "";
        count(this.#asked, operation);
      }
    });
    client.on("end", () => agent.end());
    let received = "";
    agent.setEncoding("latin1");
    agent.on("data", (piece: string) => (received += piece));
    agent.on("end", () => {
      if (received === "") {
        client.destroy();
        return;
      }
      const id = operation ?? "";
      this.#check(sent, received);
      count(this.#answered, id);
      const fault = this.faults.get(id);
      if (fault === "lose") {
        client.destroy();
      } else if (fault === "hold" && !client.readableEnded) {
        client.on("end", () => client.end(received, "latin1"));
      } else {
        client.end(received, "latin1");
      }
    });
  }

  #find({ start }: Message) {
    return this.document.find(start[0] ?? "", start[1] ?? "");
  }

  #check(sent: string, received: string): void {
    const [request, answer] = [parse(sent), parse(received)];
    const place = this.#find(request);
    const problems = place
      ? [...this.document.checkRequest(place, request), ...this.document.checkAnswer(place, answer)]
      : ["no such operation"];
    this.problems.push(...problems.map((problem) => `${problem}: ${sent} answered by ${received}`));
  }
}

function count(counts: Map<string, number>, key: string): void {
  counts.set(key, (counts.get(key) ?? 0) + 1);
}

function parse(message: string): Message {
  const end = message.indexOf("\r\n\r\n");
  const [start = "", ...lines] = message.slice(0, end).split("\r\n");
  const headers = lines.map((line): [string, string] => {
    const [name = "", ...value] = line.split(":");
    return [name.toLowerCase(), value.join(":").trim()];
  });
  const body = Buffer.from(message.slice(end + 4), "latin1").toString("utf8");
  return { start: start.split(" "), headers: new Map(headers), body };
}
