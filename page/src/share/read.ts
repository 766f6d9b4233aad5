// Run as text, to a file or a link and from one. What is read is a run of this page, of `waymark ask --json`, or an
// answer of `/v1/agent`. All of it is text from outside. The outer form is checked here; `viewOf` checks some fields of
// events.
import { FORMAT, newRun, type Run, type Timed } from "../run/run";
import type { AgentEvent } from "../api/types";

export class NoRun extends Error {}

// Text of a run for others, without the conversation before it, the user's feedback and the name of the index.
export const writeRun = (run: Run): string => JSON.stringify({ ...run, before: [], forgotten: undefined, feedback: undefined, index: undefined });

export function readRun(text: string): Run {
  const data = /<script type="application\/json" id="run">([^]*?)<\/script>/.exec(text);
  const values = parsed(data ? data[1] : text);
  const whole = values.length === 1 && isObject(values[0]) ? values[0] : null;
  if (whole?.format === FORMAT) return checked(whole);
  const events = whole && Array.isArray(whole.trace) ? whole.trace : values;
  return ofEvents(events as unknown[]);
}

// Parses one JSON value, or one value per line.
function parsed(text: string): unknown[] {
  try {
    return [JSON.parse(text)];
  } catch {
    return text.split("\n").flatMap((line, index) => {
      if (!line.trim()) return [];
      try {
        return [JSON.parse(line)];
      } catch (error) {
        throw new NoRun("This is not a saved run: line " + (index + 1) + " is no JSON (" + (error as Error).message + ").");
      }
    });
  }
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
const isEvent = (value: unknown): value is AgentEvent => isObject(value) && (typeof value.type === "string" || isObject(value.error));

function ofEvents(values: unknown[]): Run {
  const events = values.filter(isEvent);
  if (!events.length) throw new NoRun("This file holds no events of a run.");
  const started = events.find((event) => event.type === "started");
  const run = newRun(started?.type === "started" ? String(started.question) : "", { model: "", mode: "", k: null }, []);
  return { ...run, events: events.map((event): Timed => ({ at: 0, event })), took: 0, foreign: true };
}

function checked(value: Record<string, unknown>): Run {
  const settings = isObject(value.settings) ? value.settings : {};
  const run = newRun(String(value.question ?? ""), {
    model: String(settings.model ?? ""), mode: String(settings.mode ?? ""), k: typeof settings.k === "number" ? settings.k : null,
  }, []);
  const timed = Array.isArray(value.events) ? value.events : [];
  const before = Array.isArray(value.before) ? value.before.filter(isObject) : [];
  const facts = isObject(value.facts) ? value.facts : {};
  return {
    ...run,
    started: Number(value.started) || 0,
    took: Number(value.took) || 0,
    events: timed.filter(isObject).flatMap((one) => (isEvent(one.event) ? [{ at: Number(one.at) || 0, event: one.event }] : [])),
    stopped: value.stopped === true,
    failure: typeof value.failure === "string" ? value.failure : undefined,
    before: before.map(({ question, answer }) => ({ question: String(question), answer: String(answer) })),
    facts: Object.fromEntries(Object.entries(facts).map(([id, list]) => [id, Array.isArray(list) ? list.filter(isObject) : []])) as unknown as Run["facts"],
    walks: (isObject(value.walks) ? value.walks : {}) as unknown as Run["walks"],
    foreign: true,
  };
}
