// The run that is shown: as it comes from the server, or out of a file.
let running = null;
// Its events, as they came.
let kept = [];

const stop = () => { if (running) running.abort(); };

// One run at a time: what is there gives way to what `play` shows.
async function watch(play) {
  if (running) return;
  running = new AbortController();
  for (const id of ["ask", "open", "save"]) field(id).disabled = true;
  field("stop").disabled = false;
  kept = [];
  trace.replaceChildren();
  graphs.replaceChildren();
  field("evidence").hidden = true;
  const view = viewer();
  const show = (event) => {
    kept.push(event);
    field("save").disabled = false;
    view(event);
  };
  try {
    await play(show, running.signal);
  } catch (error) {
    if (error.name === "AbortError") step("", "stopped");
    else step("failed", "failed").append(element("p", "", error.message));
  } finally {
    running = null;
    for (const id of ["ask", "open"]) field(id).disabled = false;
    field("stop").disabled = true;
  }
}

// A line of JSON for each event, as `waymark ask --json` prints them.
function save() {
  const { id } = kept.find((event) => event.type === "started") || {};
  const link = element("a");
  link.download = "waymark-" + (id || "run") + ".jsonl";
  link.href = URL.createObjectURL(new Blob(kept.map((event) => JSON.stringify(event) + "\n")));
  link.click();
  // A browser that asks where to save it may take a while to read it.
  setTimeout(() => URL.revokeObjectURL(link.href), 600000);
}

// The events of such a file, or of an answer of `/v1/agent` that was not streamed.
function recorded(text) {
  const values = text.split("\n").flatMap((line, index) => {
    if (!line.trim()) return [];
    try {
      return [JSON.parse(line)];
    } catch (error) {
      throw new Error("line " + (index + 1) + ": " + error.message);
    }
  });
  return values.length === 1 && values[0] && values[0].trace ? values[0].trace : values;
}

function load(file) {
  return watch(async (show) => {
    for (const event of recorded(await file.text())) show(event);
    if (!trace.hasChildNodes()) throw new Error("the file holds no events of a run");
  });
}

field("save").addEventListener("click", save);
field("open").addEventListener("click", () => field("file").click());
field("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) load(file);
  // So that the same file can be chosen again.
  event.target.value = "";
});
