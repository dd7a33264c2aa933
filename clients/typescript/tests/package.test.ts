import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { suite, test } from "node:test";
import { promisify } from "node:util";

import { scenario, slotkeeperBin, type World } from "./world.js";

const ROOT = join(import.meta.dirname, "../..");
const run = promisify(execFile);

suite("the package", () => {
  // It imports the package by its name, as its users do.
  scenario("the programs of the README run", async (world: World) => {
    const readme = await readFile(join(ROOT, "README.md"), "utf8");
    const [plain = "", program = "", ...others] = [...readme.matchAll(/^```[jt]s\n(.*?)^```$/gms)].map(
      (match) => match[1] ?? "",
    );
    assert.equal(others.length, 0);
    const agent = await world.startAgent();
    const address = "unix:/run/slotkeeper/control.sock";
    assert(program.includes(address));
    const folder = join(ROOT, "build/readme");
    await mkdir(folder, { recursive: true });
    const source = join(folder, "main.ts");
    await writeFile(source, program.replace(address, `unix:${agent.socket}`));
    const project = {
      extends: "../../tsconfig.json",
      compilerOptions: { rootDir: ".", outDir: "out" },
      include: ["main.ts"],
    };
    await writeFile(join(folder, "tsconfig.json"), JSON.stringify(project));
    const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
    await run(process.execPath, [tsc, "--project", folder]);
    const script = join(folder, "main.mjs");
    assert(plain.includes(address));
    await writeFile(script, plain.replace(address, `unix:${agent.socket}`));
    const ofPlain = await run(process.execPath, [script]);
    const { stdout } = await run(process.execPath, [join(folder, "out/main.js")]);
    assert.equal(ofPlain.stdout, stdout);
    assert.equal(stdout, [0, 1, 2].map((part) => `part ${part} with a token of number\n`).join(""));
  });

  test("it contains what it needs and nothing else", async () => {
    const { stdout } = await run("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: ROOT });
    const [pack] = JSON.parse(stdout) as [{ files: { path: string }[] }];
    const paths = pack.files.map((file) => file.path);
    for (const path of [
      "LICENSE",
      "README.md",
      "package.json",
      "dist/index.js",
      "dist/index.d.ts",
      "src/index.ts",
    ]) {
      assert(paths.includes(path), path);
    }
    const isExpected = /^(LICENSE|README\.md|package\.json|src\/\w+\.ts|dist\/\w+\.(js|d\.ts)(\.map)?)$/;
    assert.deepEqual(
      paths.filter((path) => !isExpected.test(path)),
      [],
    );
    const manifest = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8")) as { version: string };
    assert(!("dependencies" in manifest));
    const version = await run(slotkeeperBin(), ["--version"]);
    assert.equal(version.stdout.trim(), `slotkeeper ${manifest.version}`);
  });
});
