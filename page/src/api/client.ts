// Requests to the server the page came from, and to no other.
import { signal } from "@preact/signals";

// API key. It is kept only in the memory of this page.
export const key = signal("");
// True after the server refused a request with status 401.
export const keyWanted = signal(false);

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly request: string | null,
    // Field of the request at fault; empty if the server names none.
    readonly param = "",
    // Milliseconds after which the server wants to be asked again; 0 if it does not say.
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

// The server could not be reached, or went away.
export class Unreachable extends Error {}

export async function call(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  if (key.value) headers.set("authorization", "Bearer " + key.value);
  let response: Response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Unreachable(navigator.onLine
      ? "The server does not respond. It may be stopped or restarting."
      : "This device is offline.");
  }
  if (response.ok) return response;
  const refused = await refusal(response);
  if (refused.status === 401) keyWanted.value = true;
  throw refused;
}

async function refusal(response: Response): Promise<Refused> {
  let message = "The server answered with status " + response.status + ".";
  let code = "";
  let param = "";
  try {
    const { error } = await response.json();
    if (error?.message) message = String(error.message);
    code = String(error?.code ?? "");
    param = String(error?.param ?? "");
  } catch {
    // The body is not JSON, so the message names the status alone.
  }
  // A proxy may send a date, which is no number.
  const retryAfter = (Number(response.headers.get("retry-after")) || 0) * 1000;
  return new Refused(response.status, code, message, response.headers.get("x-request-id"), param, retryAfter);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return await (await call(path, { signal })).json();
}

export async function send<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return await (await post(path, body, signal)).json();
}

export function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "content-type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// An ID in a path keeps its slashes: the server accepts both forms, but many proxies reject encoded slashes.
export const inPath = (id: string) => id.split("/").map(encodeURIComponent).join("/");

// Error in words for a person.
export function explain(error: unknown): string {
  if (error instanceof Refused && error.status === 401) return "The server asks for an API key, or does not know this one.";
  if (error instanceof Refused && error.status === 403) return "This API key may not do that: " + error.message;
  if (error instanceof Error) return error.message;
  return String(error);
}
