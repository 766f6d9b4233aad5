// The page of a real server: `WAYMARK` is the program, whose demo is started, or `WAYMARK_URL` a server of the demo.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { QUESTION } from "./fixtures.mjs";
import { accessible, ask, begin, close, end, fits, look, open } from "./harness.mjs";

const { WAYMARK, WAYMARK_URL } = process.env;
const skip = WAYMARK || WAYMARK_URL ? false : "neither WAYMARK nor WAYMARK_URL is set";
// A demo that has to pull its weights first takes minutes.
const LIMIT = 600_000;

let url = WAYMARK_URL;
let demo = null;

before(async () => {
  if (skip) return;
  await begin();
  if (url) return;
  demo = spawn(WAYMARK, ["demo", "--port", "0"], { stdio: ["ignore", "pipe", "inherit"] });
  const listening = new Promise((resolve, reject) => {
    let said = "";
    demo.stdout.on("data", (data) => {
      said += data;
      const address = /http:\/\/127\.0\.0\.1:\d+/.exec(said);
      if (address) resolve(address[0] + "/");
    });
    demo.once("exit", (status) => reject(new Error("the demo ended with " + status)));
    setTimeout(() => reject(new Error("the demo does not start")), LIMIT).unref();
  });
  url = await listening;
});

after(async () => {
  if (skip) return;
  await end();
  demo?.kill();
});

test("the demo's policy answers, is followed, explored and watched", { skip }, async () => {
  const page = await open(url);
  page.setDefaultTimeout(300_000);
  await page.waitForSelector(".examples");
  assert.ok((await page.textContent(".indexed")).includes("demo"));
  await ask(page, QUESTION);
  assert.equal((await page.textContent(".answer p")).replace(/\d/g, ""), "Salzburg");
  assert.equal(await page.textContent(".hops"), "Don Giovanni→ composed by →Wolfgang Amadeus Mozart→ born in →Salzburg");
  await page.click(".citation");
  await page.click("text=Answer without this passage");
  await page.waitForSelector(".card ins");
  assert.notEqual(await page.textContent(".card ins"), "Salzburg");
  await page.keyboard.press("Escape");
  await accessible(page);
  await look(page, "live-ask");
  await page.selectOption("#mode", "graph");
  await ask(page, "Where did he settle?");
  const [first, second] = await page.locator(".question").allTextContents();
  assert.deepEqual([first, second], [QUESTION, "Where did he settle?"]);
  assert.ok(await page.locator(".answered:last-child .node.query").count() > 0);
  await look(page, "live-follow-up");
  await page.click("nav >> text=Explore");
  await page.waitForSelector(".neighbors");
  await page.fill("#find", "salzburg");
  await page.click(".matches button >> nth=0");
  await page.waitForFunction(() => /mozart/i.test(document.querySelector(".neighbors")?.textContent));
  await accessible(page);
  await fits(page);
  await look(page, "live-explore");
  await page.click("nav >> text=Operate");
  await page.waitForSelector(".chart .line", { state: "attached" });
  await accessible(page);
  await look(page, "live-operate");
  await close(page);
});
