// Path of facts from the question to the answer.
import { Fragment } from "preact";
import type { Run, View } from "../run/run";
import { hopsOf } from "../run/hops";

export function Hops({ run, view }: { run: Run; view: View }) {
  const hops = hopsOf(run, view);
  if (!hops.length) return null;
  return (
    <p class="hops" aria-label={"In facts: " + hops.map((hop) => hop.from + (hop.reversed ? " ← " : " → ") + hop.relation + (hop.reversed ? " ← " : " → ")).join("") + hops.at(-1)!.to}>
      {hops.map((hop) => (
        <Fragment key={hop.from}>
          <bdi class="hop-name">{hop.from}</bdi>
          <span class="hop-relation"><span aria-hidden="true">{hop.reversed ? "←" : "→"}</span> <bdi>{hop.relation}</bdi> <span aria-hidden="true">{hop.reversed ? "←" : "→"}</span></span>
        </Fragment>
      ))}
      <bdi class="hop-name goal">{hops.at(-1)!.to}</bdi>
    </p>
  );
}
