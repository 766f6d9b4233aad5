// A server for the tests of the page: it serves `page/built` as the real one does, and plays the rest by a script, so
// that a test can have any answer, any failure and any index. With `upstream`, everything but the page is the real
// server's.
import { readFileSync } from "node:fs";
import { createServer, request as ask } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(fileURLToPath(new URL(".", import.meta.url)), "..");
const policy = readFileSync(join(root, "src/policy.txt"), "utf8").trim();
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8", svg: "image/svg+xml", txt: "text/plain; charset=utf-8" };

export async function serve({ routes = {}, upstream = null, port = 0 } = {}) {
  const seen = [];
  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(request.url.split("?")[0]);
    if (request.method === "GET" && path === "/") return file(response, "index.html");
    if (path.startsWith("/page/")) return file(response, path.slice(6));
    const body = await read(request);
    seen.push({ method: request.method, path: request.url, body, headers: request.headers });
    if (upstream) return proxy(upstream, request, body, response);
    const route = routes[request.method + " " + path] ?? routes[request.method + " *"];
    if (!route) return error(response, 404, "not_found", "there is no route " + path);
    try {
      await route({ request, response, path, body: body ? JSON.parse(body) : null, query: new URL(request.url, "http://x").searchParams });
    } catch (failure) {
      if (!response.headersSent) error(response, 500, "internal", String(failure));
    }
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return {
    url: "http://127.0.0.1:" + server.address().port + "/",
    seen,
    close: () => { server.closeAllConnections(); return new Promise((resolve) => server.close(resolve)); },
  };
}

function file(response, name) {
  if (!/^[\w.-]+$/.test(name)) return error(response, 404, "not_found", "no such file");
  try {
    const content = readFileSync(join(root, "built", name));
    response.writeHead(200, { "content-type": TYPES[name.split(".").at(-1)], "content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-cache" });
    response.end(content);
  } catch {
    error(response, 404, "not_found", "no such file");
  }
}

async function read(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

function proxy(upstream, request, body, response) {
  const { hostname, port } = new URL(upstream);
  const onward = ask({ hostname, port, path: request.url, method: request.method, headers: { ...request.headers, host: hostname + ":" + port } }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on("error", () => response.destroy());
  response.on("close", () => onward.destroy());
  onward.end(body);
}

export function json(response, value, status = 200) {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(value));
}

export function error(response, status, code, message) {
  json(response, { error: { message, type: "invalid_request_error", code, param: null } }, status);
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// An event that never comes.
export const never = () => new Promise(() => {});

// Streams events as `/v1/agent` does. A number among them is a pause, a
// function is waited for, and "break" ends the connection.
export async function stream(response, events, { id = "ep-1", from = 0 } = {}) {
  response.writeHead(200, { "content-type": "text/event-stream", "content-location": "/v1/agent/" + id });
  let number = 0;
  for (const event of events) {
    if (typeof event === "number") await pause(event);
    else if (typeof event === "function") await event();
    else if (event === "break") {
      // What was written arrives; the end of the response never does.
      return void response.socket.end();
    }
    else {
      number += 1;
      if (number > from) response.write("id: " + number + "\nevent: " + (event.type ?? "error") + "\ndata: " + JSON.stringify(event) + "\n\n");
    }
  }
  response.end();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [upstream, port] = process.argv.slice(2);
  const { url } = await serve({ upstream, port: Number(port) || 0 });
  console.log(url);
}
