// A browser for the tests, and what they have in common.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { pause } from "./server.mjs";

export const IMAGES = fileURLToPath(new URL("../../docs/images/", import.meta.url));
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const DESKTOP = { width: 1440, height: 900 };
export const WIDE = { width: 1920, height: 1080 };
export const PHONE = { width: 390, height: 844 };

export const program = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((path) => path && existsSync(path));

// Milliseconds in which something must come about, on a slow and busy machine too.
const PATIENCE = 60_000;

let browser = null;

export async function begin() {
  browser = await chromium.launch({ executablePath: program, timeout: 2 * PATIENCE, args: ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage", "--lang=en-US"] });
}

export const end = () => browser.close();

// A page with what may not happen in it: `faults` are its errors, requests to elsewhere, and violations of its policy.
export async function open(url, { size = DESKTOP, scheme = "light", motion = "reduce", hash = "", context = null } = {}) {
  const held = context ?? await browser.newContext({
    viewport: size, colorScheme: scheme, reducedMotion: motion, hasTouch: size === PHONE, isMobile: size === PHONE, locale: "en-US",
    timezoneId: "UTC", permissions: url.startsWith("http") ? ["clipboard-read", "clipboard-write"] : [], acceptDownloads: true,
  });
  const page = await held.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push("error: " + error.message));
  page.on("console", (message) => { if (message.type() === "error" && !/Failed to load resource|net::ERR/.test(message.text())) page.faults.push("console: " + message.text()); });
  page.on("request", (request) => { if (!request.url().startsWith(url.split("#")[0].replace(/[^/]*$/, "")) && !/^(data|blob):/.test(request.url())) page.faults.push("request: " + request.url()); });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective + " " + event.blockedURI));
  });
  await page.goto(url + hash);
  return page;
}

export async function close(page) {
  const violations = await page.evaluate(() => window.violations);
  const { faults } = page;
  await page.context().close();
  assert.deepEqual(violations, []);
  assert.deepEqual(faults, []);
}

export async function ask(page, question) {
  await page.fill("#question", question);
  await page.press("#question", "Enter");
  await settled(page);
}

export async function settled(page) {
  await page.waitForSelector(".answered:last-child :is(.actions, .notice)");
  await page.waitForSelector("#stop", { state: "detached" });
  // Facts are fetched when an answer is complete.
  await page.waitForLoadState("networkidle");
}

// Waits until `holds` returns something that counts as true, and returns it.
export async function eventually(holds) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await holds();
    if (found) return found;
    assert.ok(Date.now() < end, "this did not come about: " + holds);
    await pause(50);
  }
}

// Waits until the first conversation in the browser's database is one of which `holds` is true, and returns it.
export async function kept(page, holds) {
  const first = () => page.evaluate(async () => {
    const asked = (request) => new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const base = await asked(indexedDB.open("waymark"));
    const [conversation] = await asked(base.transaction("conversations").objectStore("conversations").getAll());
    base.close();
    return conversation;
  });
  return eventually(async () => {
    const conversation = await first();
    return conversation && holds(conversation) ? conversation : null;
  });
}

export async function accessible(page) {
  // The policy forbids scripts from elsewhere: the checks run in a world of their own.
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send("Page.getFrameTree");
  const { executionContextId: contextId } = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id, worldName: "axe" });
  const run = async (expression) => {
    const { result, exceptionDetails } = await session.send("Runtime.evaluate", { expression, contextId, awaitPromise: true, returnByValue: true });
    assert.equal(exceptionDetails, undefined, JSON.stringify(exceptionDetails)?.slice(0, 300));
    return result.value;
  };
  await run(AXE + ";0");
  const found = await run("axe.run(document, {resultTypes: ['violations']}).then(({violations}) => JSON.stringify(violations.map(({id, nodes}) => [id, ...nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + ' ' + (node.any[0]?.message ?? ''))])))");
  await session.detach();
  assert.deepEqual(JSON.parse(found), []);
}

// No text may stick out at the side of a screen.
export async function fits(page) {
  const over = await page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > width + 1).slice(0, 5).map((one) => one.tagName + "." + one.className);
  });
  assert.deepEqual(over, []);
}

export const foreign = (page, selector) => page.evaluate((selector) => document.querySelectorAll(selector).length, selector);

const BLANK = "data:text/html,<canvas></canvas>";

// Mean difference of two pictures in gray, each reduced to 48 × 48: 0 to 255. Fonts differ between machines, so that
// only the arrangement can be compared.
async function difference(one, other) {
  const page = await browser.newPage();
  await page.goto(BLANK);
  const value = await page.evaluate(async ([one, other]) => {
    const side = 48;
    const gray = async (data) => {
      const image = new Image();
      image.src = "data:image/png;base64," + data;
      await image.decode();
      const canvas = new OffscreenCanvas(side, side);
      const context = canvas.getContext("2d");
      context.imageSmoothingQuality = "high";
      context.drawImage(image, 0, 0, side, side);
      const { data: pixels } = context.getImageData(0, 0, side, side);
      return { ratio: image.width / image.height, gray: Array.from({ length: side * side }, (_, at) => (pixels[4 * at] + pixels[4 * at + 1] + pixels[4 * at + 2]) / 3) };
    };
    const [a, b] = [await gray(one), await gray(other)];
    if (Math.abs(a.ratio - b.ratio) > 0.01) return 255;
    return a.gray.reduce((sum, value, at) => sum + Math.abs(value - b.gray[at]), 0) / a.gray.length;
  }, [one.toString("base64"), other.toString("base64")]);
  await page.close();
  return value;
}

const LARGEST = 200_000;

// Compares the screen with the picture that is kept in `docs/images`; `UPDATE_IMAGES=1` keeps a new one.
export async function picture(page, name) {
  await page.waitForTimeout(250);
  let taken = await page.screenshot();
  const path = join(IMAGES, name + ".png");
  if (process.env.UPDATE_IMAGES) writeFileSync(path, taken);
  if (process.env.ALL_IMAGES) writeFileSync(join(process.env.ALL_IMAGES, name + ".png"), taken);
  assert.ok(existsSync(path), "there is no " + path + ": keep it by UPDATE_IMAGES=1");
  assert.ok(statSync(path).size < LARGEST, name + " is too large");
  let far = await difference(taken, readFileSync(path));
  // A slow machine is still drawing.
  for (const end = Date.now() + PATIENCE; far >= 6 && Date.now() < end;) {
    await page.waitForTimeout(1000);
    taken = await page.screenshot();
    far = await difference(taken, readFileSync(path));
  }
  assert.ok(far < 6, name + " looks different: " + far.toFixed(1));
}

// A picture to look at, which is kept nowhere unless a folder is named.
export async function look(page, name, full = false) {
  if (!process.env.ALL_IMAGES) return;
  await page.waitForTimeout(200);
  await page.screenshot({ path: join(process.env.ALL_IMAGES, name + ".png"), fullPage: full });
}
