"""Asks a question on the page at URL with a headless Chromium, and prints what the page then holds, as JSON.

    playground.py CHROMIUM URL

Speaks the DevTools protocol over the browser's pipe; needs nothing but Python. Ends with 77 where the browser does not
start, as it may not in a sandbox. `page/tests` has the tests of the page itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT = 180

STATE = """JSON.stringify({
  title: document.title,
  text: document.getElementById("main").textContent,
  answer: (document.querySelector(".answer .prose p") || {}).firstChild?.textContent,
  policies: [...document.getElementById("model").options].map((option) => option.value),
  nodes: [...document.querySelectorAll(".node")].map((node) => [node.classList[1], node.querySelector("bdi").textContent]),
  edges: document.querySelectorAll(".edge").length,
  foreign: document.querySelectorAll("main :is(img, script, u, b, i, iframe, object)").length,
  violations: window.violations || [],
  over: !document.getElementById("stop") && !!document.querySelector(".answered .actions"),
})"""

SET = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
for (const [id, value, kind] of [["model", "routerag", "change"], ["question", "Who wrote Faust?", "input"]]) {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event(kind, {bubbles: true}));
}
"""

ASK = """
for (const [id, value, kind] of [["mode", "graph", "change"], ["k", 2, "input"]]) {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event(kind, {bubbles: true}));
}
document.getElementById("question").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}));
"""

OPEN = "document.querySelector('.steps > summary').click()"


class Browser:
    def __init__(self, program, profile):
        from_us, self.write = os.pipe()
        self.read, from_it = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
                   f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        script = f'exec "$@" 3<&{from_us} 4>&{from_it}'
        self.process = subprocess.Popen(["sh", "-c", script, "sh", *command], pass_fds=[from_us, from_it],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(from_it)
        self.held, self.number, self.session = b"", 0, None

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                data = os.read(self.read, 1 << 16)
                if not data:
                    sys.stderr.write("the browser does not start here")
                    sys.exit(77)
                self.held += data
            first, self.held = self.held.split(b"\0", 1)
            answer = json.loads(first)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, condition):
        def state():
            value = self.evaluate(STATE)
            held = json.loads(value) if value else {}
            return held if held and condition(held) else None

        return wait(state, "the page does not come to what is waited for")

    def go(self, url, ready):
        self.call("Page.navigate", url=url)
        wait(lambda: self.evaluate("document.readyState === 'complete' && " + ready), f"{url} is not ready")


def wait(look, failure):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise RuntimeError(f"{failure}, not in {LIMIT} s")


def main():
    program, url = sys.argv[1:]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            browser.go(url, "document.getElementById('model')?.options.length > 1")
            browser.evaluate(SET)
            wait(lambda: browser.evaluate("!!document.getElementById('mode')"), "the options of searches do not appear")
            browser.evaluate(ASK)
            browser.until(lambda state: state["over"])
            browser.evaluate(OPEN)
            print(json.dumps(browser.until(lambda state: state["edges"] > 0)))
        finally:
            browser.process.kill()
            browser.process.wait()


if __name__ == "__main__":
    main()
