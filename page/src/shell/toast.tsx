// A short message at the edge of the page, told to screen readers too.
import { signal } from "@preact/signals";

const message = signal("");
let timer = 0;

export function say(text: string): void {
  message.value = text;
  clearTimeout(timer);
  timer = window.setTimeout(() => { message.value = ""; }, 4000);
}

export function Toast() {
  return <div class={"toast" + (message.value ? " shown" : "")} role="status">{message.value}</div>;
}
