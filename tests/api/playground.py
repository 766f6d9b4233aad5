"""Asks a question in the playground at URL with a headless Chromium, and prints what the page then holds, as JSON.

    playground.py CHROMIUM URL

Speaks the DevTools protocol over the browser's pipe; needs nothing but Python. Ends with 77 where the browser does not
start, as it may not in a sandbox.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT = 60

STATE = """JSON.stringify({
  title: document.title,
  text: document.getElementById("trace").textContent,
  answer: (document.querySelector(".answer > p") || {}).textContent,
  policies: [...document.getElementById("model").options].map((option) => option.value),
  foreign: document.querySelectorAll("#trace :is(img, script, u, em, b, i, iframe, a)").length,
  violations: window.violations || [],
  over: !document.getElementById("ask").disabled,
})"""

ASK = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
document.getElementById("model").value = "routerag";
document.getElementById("mode").value = "graph";
document.getElementById("k").value = %s;
document.getElementById("question").value = "Who wrote Faust?";
document.getElementById("question").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}));
"""


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
        result = self.call("Runtime.evaluate", expression=script)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, condition):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            value = self.evaluate(STATE)
            state = json.loads(value) if value else {}
            if state and condition(state):
                return state
            time.sleep(0.1)
        raise RuntimeError(f"not in {LIMIT} s: {state}")


def main():
    program, url = sys.argv[1:]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            browser.call("Page.navigate", url=url)
            ready = "document.readyState === 'complete' && document.getElementById('model')?.options.length > 0"
            end = time.monotonic() + LIMIT
            while not browser.evaluate(ready):
                if time.monotonic() > end:
                    raise RuntimeError("the page does not list its policies")
                time.sleep(0.1)
            browser.evaluate(ASK % 2)
            seen = browser.until(lambda state: state["over"] and "ended by" in state["text"])
            browser.evaluate(ASK % 999)
            refused = browser.until(lambda state: state["over"] and "rag.k" in state["text"])
            seen["refused"] = "failed" in refused["text"]
            print(json.dumps(seen))
        finally:
            browser.process.kill()
            browser.process.wait()


if __name__ == "__main__":
    main()
