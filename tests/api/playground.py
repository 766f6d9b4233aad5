"""Asks a question in the playground at URL with a headless Chromium, and prints what the page then holds, as JSON.

    playground.py CHROMIUM URL

The run is saved, and shown again by a copy of the page that lies on a disk.

Speaks the DevTools protocol over the browser's pipe; needs nothing but Python. Ends with 77 where the browser does not
start, as it may not in a sandbox.
"""

import json
import os
import pathlib
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
  graphs: [...document.querySelectorAll("#graphs figure")].map((figure) => ({
    title: figure.querySelector("figcaption").textContent,
    nodes: [...figure.querySelectorAll(".node")].map((node) => [node.classList[1], node.querySelector("title").textContent]),
    edges: figure.querySelectorAll(".edge").length,
    cited: figure.querySelectorAll(".node.passage.cited").length,
    drawn: [...figure.querySelectorAll("circle")].every((circle) => circle.getBoundingClientRect().width > 0),
  })),
  foreign: document.querySelectorAll("#run :is(img, script, u, em, b, i, iframe, a)").length,
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

# The first passage of the graph, by the keyboard.
REACH = """(() => {
  const node = document.querySelector("#graphs .node.passage");
  node.focus();
  const focused = document.activeElement === node;
  node.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}));
  const { open } = document.querySelector("#trace details");
  return JSON.stringify({focused, open, then: document.activeElement.textContent});
})()"""


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

    def open(self, path):
        """Shows a saved run; what is shown goes first."""
        self.evaluate("document.getElementById('trace').replaceChildren()")
        chooser = self.call("Runtime.evaluate", expression="document.getElementById('file')")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=chooser)
        return self.until(lambda state: state["over"] and state["text"])


def wait(look, failure):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise RuntimeError(f"{failure}, not in {LIMIT} s")


def saved(browser, folder):
    """The run that is shown as the page saves it, and the page itself beside it."""
    browser.evaluate("document.getElementById('save').click()")
    run = wait(lambda: next(iter(folder.glob("*.jsonl")), None), "nothing is saved")
    page = folder / "page.html"
    source = "fetch(location.href, {headers: {accept: 'text/html'}}).then((response) => response.text())"
    page.write_text(browser.evaluate(source), encoding="utf-8")
    return run, page


def main():
    program, url = sys.argv[1:]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        folder = pathlib.Path(profile, "saved")
        folder.mkdir()
        browser = Browser(program, profile)
        try:
            browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            browser.go(url, "document.getElementById('model')?.options.length > 0")
            browser.evaluate(ASK % 2)
            seen = browser.until(lambda state: state["over"] and "ended by" in state["text"])
            seen["reached"] = json.loads(browser.evaluate(REACH))
            run, page = saved(browser, folder)
            seen["violations"] = browser.until(lambda state: True)["violations"]
            browser.evaluate(ASK % 999)
            refused = browser.until(lambda state: state["over"] and "rag.k" in state["text"])
            seen["refused"] = "failed" in refused["text"] and not refused["graphs"]
            browser.go(page.as_uri(), "location.protocol === 'file:'")
            events = run.read_text(encoding="utf-8").splitlines()
            whole, damaged = folder / "whole.json", folder / "damaged.json"
            whole.write_text('{"trace": [' + ",".join(events) + "]}", encoding="utf-8")
            damaged.write_text(events[0] + "\n<b>no event</b>\n", encoding="utf-8")
            seen["again"] = [browser.open(run), browser.open(whole)]
            seen["damaged"] = browser.open(damaged)
            print(json.dumps(seen))
        finally:
            browser.process.kill()
            browser.process.wait()


if __name__ == "__main__":
    main()
