// The view that is shown, as the address behind the `#` says.
import { signal } from "@preact/signals";

export type Name = "ask" | "compare" | "explore" | "operate";
export interface Route { name: Name; rest: string }

const NAMES: Name[] = ["ask", "compare", "explore", "operate"];

function parse(hash: string): Route {
  const [name, ...rest] = hash.replace(/^#\/?/, "").split("/");
  const known = NAMES.find((one) => one === name);
  return { name: known ?? "ask", rest: known ? rest.map(decoded).join("/") : "" };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal<Route>(parse(location.hash));

export const address = (name: Name, rest = "") => "#/" + name + (rest ? "/" + encodeURIComponent(rest) : "");

export function go(name: Name, rest = "", replace = false): void {
  const hash = address(name, rest);
  if (replace) history.replaceState(null, "", hash);
  else if (location.hash !== hash) history.pushState(null, "", hash);
  route.value = parse(hash);
}

addEventListener("hashchange", () => { route.value = parse(location.hash); });
addEventListener("popstate", () => { route.value = parse(location.hash); });
