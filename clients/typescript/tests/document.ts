import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const METHODS = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

interface Operation {
  operationId: string;
  parameters?: { name: string; in: string }[];
  requestBody?: { required?: boolean; content: Record<string, unknown> };
  responses: Record<string, Response>;
  security?: unknown[];
}

interface Response {
  $ref?: string;
  content?: Record<string, unknown>;
}

interface Content {
  components: { responses?: Record<string, Response> };
  security?: unknown[];
  paths: Record<string, Record<string, Operation>>;
}

/** What was sent or came back. */
export interface Message {
  /** The first line, in its words. */
  start: string[];
  headers: Map<string, string>;
  body: string;
}

/** An operation of the document, and where it is in there. */
export interface Place {
  operation: Operation;
  pointer: string[];
  values: Record<string, string>;
}

/** An agent's OpenAPI 3.1 document, whose schemas are JSON Schema 2020-12. */
export class Document {
  readonly #ajv = new Ajv2020({ strict: false, allErrors: true });
  readonly #content: Content;

  constructor(content: object) {
    this.#content = content as Content;
    addFormats.default(this.#ajv);
    this.#ajv.addSchema(content, "document");
  }

  operations(): string[] {
    return Object.values(this.#content.paths)
      .flatMap((item) => METHODS.map((method) => item[method]?.operationId))
      .filter((id) => id !== undefined);
  }

  find(method: string, path: string): Place | undefined {
    const name = method.toLowerCase();
    for (const [template, item] of Object.entries(this.#content.paths)) {
      const pattern = template.replaceAll(".", "\\.").replaceAll(/\{(\w+)\}/g, "(?<$1>[^/]+)");
      const match = new RegExp(`^${pattern}$`).exec(path);
      const operation = item[name];
      if (match && operation) {
        return { operation, pointer: ["paths", template, name], values: { ...match.groups } };
      }
    }
    return undefined;
  }

  /** What is wrong with a request. */
  checkRequest({ operation, pointer, values }: Place, request: Message): string[] {
    const problems = (operation.parameters ?? []).flatMap((parameter, index) =>
      parameter.in === "path"
        ? this.#check(
            [...pointer, "parameters", String(index), "schema"],
            decodeURIComponent(values[parameter.name] ?? ""),
          )
        : [`the parameter ${parameter.name} is in ${parameter.in}`],
    );
    const { requestBody } = operation;
    if (request.body !== "") {
      problems.push(
        ...(requestBody
          ? this.#checkBody([...pointer, "requestBody"], requestBody.content, request)
          : ["it has a body"]),
      );
    } else if (requestBody?.required) {
      problems.push("it has no body");
    }
    const security = operation.security ?? this.#content.security ?? [];
    if (security.length > 0 && !request.headers.get("authorization")?.startsWith("Bearer ")) {
      problems.push("it has no token");
    }
    return problems;
  }

  /** What is wrong with an answer. */
  checkAnswer({ operation, pointer }: Place, answer: Message): string[] {
    const status = answer.start[1] ?? "";
    const described = operation.responses[status];
    if (!described) {
      return [`the status ${status} is not described`];
    }
    // A reference such as #/components/responses/Unauthorized.
    const common = described.$ref?.replace(/^.*\//, "");
    const response = common === undefined ? described : this.#content.components.responses?.[common];
    if (!response?.content) {
      return answer.body === "" ? [] : ["it has a body"];
    }
    const place =
      common === undefined ? [...pointer, "responses", status] : ["components", "responses", common];
    return this.#checkBody(place, response.content, answer);
  }

  #checkBody(pointer: string[], content: Record<string, unknown>, { headers, body }: Message): string[] {
    const type = headers.get("content-type")?.split(";")[0] ?? "";
    if (!(type in content)) {
      return [`the content type ${JSON.stringify(type)} is not described`];
    }
    return this.#check([...pointer, "content", type, "schema"], JSON.parse(body));
  }

  #check(pointer: string[], value: unknown): string[] {
    const fragment = pointer.map((part) =>
      encodeURIComponent(part.replaceAll("~", "~0").replaceAll("/", "~1")),
    );
    const validate = this.#ajv.getSchema(`document#/${fragment.join("/")}`);
    if (!validate) {
      return [`there is no schema at ${fragment.join("/")}`];
    }
    return validate(value) ? [] : [this.#ajv.errorsText(validate.errors)];
  }
}
