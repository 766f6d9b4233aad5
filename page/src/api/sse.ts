// Server-sent events: messages of lines, ended by an empty one; comments begin with a colon.

export interface Message { id: string; data: string }

export async function* messages(body: ReadableStream<Uint8Array>): AsyncGenerator<Message> {
  // Read directly: a stream in between would drop what it holds when the connection breaks.
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  let id = "";
  let data: string[] = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + decoder.decode(value, { stream: true })).split("\n");
    held = lines.pop() ?? "";
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (data.length) yield { id, data: data.join("\n") };
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(content(line, 5));
      } else if (line.startsWith("id:")) {
        id = content(line, 3);
      }
    }
  }
}

const content = (line: string, at: number) => line.slice(line[at] === " " ? at + 1 : at);
