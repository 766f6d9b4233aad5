// Requests for details, which a page can do without. Each of them counts toward the limits of the API key, like a question.
import { wait } from "./agent";
import { Refused } from "./client";

// Milliseconds after which a request is repeated that ran beside too many others.
const PAUSE = 1000;

// True if the server refused a request for a limit of the key.
export const isLimit = (error: unknown) => error instanceof Refused && error.status === 429;

// Returns a function that makes requests and returns null for those that fail. After one that exceeds a limit of the key,
// it makes no more.
export function sparing(): <T>(request: () => Promise<T>) => Promise<T | null> {
  let limited = false;
  return async (request) => {
    if (limited) return null;
    try {
      return await patiently(request);
    } catch (error) {
      limited = isLimit(error);
      return null;
    }
  };
}

// Repeats a request once if too many others run: a stream counts for a moment after its last event.
async function patiently<T>(request: () => Promise<T>): Promise<T> {
  try {
    return await request();
  } catch (error) {
    if (!(error instanceof Refused) || error.code !== "concurrency_limit_exceeded") throw error;
    await wait(PAUSE);
    return await request();
  }
}
