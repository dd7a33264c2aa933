// Drives a browser as the tests say: a line of JSON for each step on standard input, and one back.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";

const [tools, chromiumPath] = process.argv.slice(2);
const require = createRequire(`${tools}/driver.js`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const PATIENCE = 60_000;
const SIZES = { phone: { width: 320, height: 640 }, desktop: { width: 1200, height: 900 } };
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

const browser = await chromium.launch({ executablePath: chromiumPath, args: ["--no-sandbox"], timeout: PATIENCE });
let page, faults, requests;

const steps = {
  async open({ url }) {
    const context = await browser.newContext({ viewport: SIZES.desktop, reducedMotion: "reduce" });
    page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    [faults, requests] = [[], []];
    page.on("console", message => ["error", "warning"].includes(message.type()) && faults.push(message.text()));
    page.on("pageerror", error => faults.push(error.message));
    page.on("dialog", dialog => { faults.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
    page.on("request", request => requests.push(request.url()));
    await page.addInitScript(() => addEventListener("securitypolicyviolation", event => console.error(`policy: ${event.violatedDirective}`)));
    await page.goto(url);
  },
  // Waits until all of these are, or are not, among what a reader sees.
  wait: ({ texts, gone }) => page.waitForFunction(([texts, gone]) => {
    const shown = document.body.innerText;
    return texts.every(text => shown.includes(text)) && gone.every(text => !shown.includes(text));
  }, [texts, gone]).then(() => {}),
  text: () => page.evaluate(() => document.body.innerText),
  count: ({ selector }) => page.locator(selector).count(),
  attribute: ({ selector, name }) => page.locator(selector).first().getAttribute(name),
  seen: () => ({ faults, requests }),
  // Sizes and colours one after the other: what an accessibility checker says of each, and a picture.
  async look({ name, folder }) {
    const found = [];
    const client = await page.context().newCDPSession(page);
    // The page's policy lets no script in, but for the debugger's.
    await client.send("Runtime.evaluate", { expression: axe });
    for (const [size, viewport] of Object.entries(SIZES)) {
      await page.setViewportSize(viewport);
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        const { violations } = await page.evaluate(rules => globalThis.axe.run(document, { runOnly: rules }), RULES);
        for (const { id, nodes } of violations) found.push(`${size} ${colorScheme}: ${id}: ${nodes.map(node => `${node.html} ${node.failureSummary}`).join("; ")}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        if (wide > 0) found.push(`${size} ${colorScheme}: ${wide} pixels wider than the window`);
        await page.screenshot({ path: `${folder}/${name}-${size}-${colorScheme}.png`, fullPage: true });
      }
    }
    await page.setViewportSize(SIZES.desktop);
    return found;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { step, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { ok: (await steps[step](rest)) ?? null };
  } catch (error) {
    const shown = await page?.evaluate(() => document.body.innerText).catch(() => "");
    answer = { error: `${error.message}; the page shows:\n${shown}` };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
