// Drives a browser as the tests say: a line of JSON for each step on standard input, and one back.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [tools, chromiumPath] = process.argv.slice(2);
const require = createRequire(`${tools}/driver.js`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const PATIENCE = 120_000;
const SIZES = { phone: { width: 320, height: 640 }, desktop: { width: 1200, height: 900 } };
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const FLAGS = ["--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", "--disable-dev-shm-usage",
  "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
  // An address (of TEST-NET-1) that leads here, although the browser takes it for another machine's.
  "--host-resolver-rules=MAP 192.0.2.1 127.0.0.1"];

// Started by hand: in a browser that playwright has started every tab believes to be the one in front.
const profile = mkdtempSync(join(tmpdir(), "slotkeeper-page-"));
const child = spawn(chromiumPath, [...FLAGS, `--user-data-dir=${profile}`, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
const ended = new Promise(resolve => child.once("exit", resolve));
process.once("exit", () => child.kill());
const endpoint = await new Promise((resolve, reject) => {
  let said = "";
  child.stderr.on("data", text => {
    if (said !== null) said += text;
    const found = said?.match(/listening on (ws:\S+)\s/);
    if (found) { said = null; resolve(found[1]); }
  });
  ended.then(() => reject(new Error(`chromium ended: ${said}`)));
});
const browser = await chromium.connectOverCDP(endpoint, { noDefaults: true, timeout: PATIENCE });
const [context] = browser.contexts();
const tabs = [];
let page, client, faults, requests, told;

const steps = {
  // Opens a further tab, in front of the others.
  async open({ url }) {
    page = await context.newPage();
    await page.setViewportSize(SIZES.desktop);
    await page.emulateMedia({ reducedMotion: "reduce" });
    page.setDefaultTimeout(PATIENCE);
    client = await context.newCDPSession(page);
    [faults, requests, told] = [[], [], { events: 0 }];
    const own = { page, client, faults, requests, told };
    tabs.push(own);
    page.on("console", message => ["error", "warning"].includes(message.type()) && own.faults.push(message.text()));
    page.on("pageerror", error => own.faults.push(error.message));
    page.on("dialog", dialog => { own.faults.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
    page.on("request", request => own.requests.push(request));
    await client.send("Network.enable");
    client.on("Network.eventSourceMessageReceived", () => own.told.events++);
    await page.addInitScript(() => {
      addEventListener("securitypolicyviolation", event => console.error(`policy: ${event.violatedDirective}`));
      globalThis.asked = [];
      globalThis.EventSource = class extends EventSource {
        constructor(url) {
          asked.push(performance.now());
          super(url);
        }
      };
    });
    await page.goto(url);
  },
  // Brings a tab to the front, by its number.
  async front({ tab }) {
    ({ page, client, faults, requests, told } = tabs[tab]);
    await page.bringToFront();
  },
  titles: () => Promise.all(tabs.map(({ page }) => page.title())),
  // How many events the page has been told.
  told: () => told.events,
  // Marks the elements that there are now.
  mark: ({ selector }) => page.locator(selector).evaluateAll(found => found.forEach(one => { one.dataset.marked = "yes"; })),
  // As if the machine had slept for an hour, with the page's clock standing still.
  sleep: () => page.evaluate(() => { const now = Date.now; Date.now = () => now() + 3_600_000; }),
  // In this time zone.
  zone: ({ zone }) => client.send("Emulation.setTimezoneOverride", { timezoneId: zone }),
  // As if it were a day later.
  tomorrow: () => page.evaluate(() => {
    const Today = Date, DAY = 86_400_000;
    globalThis.Date = class extends Today {
      constructor(...of) { of.length ? super(...of) : super(Today.now() + DAY); }
      static now() { return Today.now() + DAY; }
    };
  }),
  // Clicks a button of this accessible name, which there is once.
  click: ({ button }) => page.getByRole("button", { name: button, exact: true }).click(),
  press: ({ key }) => page.keyboard.press(key),
  // The accessible name of the element that the keyboard is on, and what is selected in it.
  async focus() {
    const tree = await page.locator(":focus").ariaSnapshot({ timeout: 1000 }).catch(() => "");
    const name = tree.match(/^- (\w+ "(?:[^"\\]|\\.)*")/)?.[1] ?? "";
    const selected = await page.evaluate(() => {
      const { value, selectionStart, selectionEnd } = document.activeElement;
      return value?.slice(selectionStart, selectionEnd) ?? "";
    });
    return { name, selected };
  },
  async clipboard() {
    // What is granted denies the page everything else, such as to write there.
    await page.context().grantPermissions(["clipboard-read"]);
    const text = await page.evaluate(() => navigator.clipboard.readText());
    await page.context().clearPermissions();
    return text;
  },
  // Waits until all of these are, or are not, among what a reader sees.
  wait: ({ texts, gone }) => page.waitForFunction(([texts, gone]) => {
    const shown = document.body.innerText;
    return texts.every(text => shown.includes(text)) && gone.every(text => !shown.includes(text));
  }, [texts, gone]).then(() => {}),
  text: () => page.evaluate(() => document.body.innerText),
  texts: ({ selector }) => page.locator(selector).allInnerTexts(),
  count: ({ selector }) => page.locator(selector).count(),
  attribute: ({ selector, name }) => page.locator(selector).first().getAttribute(name),
  // When the page wanted its events, by its own clock, in milliseconds. A request may go out later, on a busy machine.
  asked: () => page.evaluate(() => asked),
  seen: () => ({ faults, requests: requests.map(request => request.url()) }),
  // Sizes and colours one after the other: what an accessibility checker says of each, and a picture.
  async look({ name, folder }) {
    const found = [];
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
    // Of a page that hangs nothing comes.
    const text = page?.evaluate(() => document.body.innerText).catch(() => "");
    const shown = await Promise.race([text, new Promise(resolve => setTimeout(resolve, 5000, ""))]);
    answer = { error: `${error.message}; the page shows:\n${shown}` };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await (await browser.newBrowserCDPSession()).send("Browser.close").catch(() => {});
await ended;
rmSync(profile, { recursive: true, force: true });
