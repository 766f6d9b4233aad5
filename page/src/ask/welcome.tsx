// The first screen: what this is, what is indexed, and questions to begin with.
import { bytesInWords, connection, discover, examples, index, indexName, indexState, offline, policies, searches, trouble } from "../api/server";
import { keyWanted } from "../api/client";
import { count } from "../run/query";
import { OpenFile } from "../shell/side";
import { ask } from "./conversation";
import { Composer } from "./composer";

export function Welcome() {
  if (offline) return <section class="welcome"><h1>A saved run</h1><p>This file shows a run of Waymark. Open another one:</p><OpenFile /></section>;
  return (
    <section class="welcome">
      <h1>Answers you can retrace.</h1>
      <p class="lead">
        Waymark runs a model that was trained to search. It thinks, searches your documents as often as it needs,
        and answers. You see every step, and the words that each answer stands on.
      </p>
      <Obstacle />
      <Composer />
      {examples.value.length > 0 && (
        <ul class="examples" aria-label="Example questions from the index">
          {examples.value.slice(0, 5).map(({ question, hops }) => (
            <li>
              <button onClick={() => void ask(question)} dir="auto">
                {question}{hops > 1 && <span class="hop-count" title={"Needs " + hops + " facts"}>{hops} steps</span>}
              </button>
            </li>
          ))}
        </ul>
      )}
      <Indexed />
    </section>
  );
}

function Indexed() {
  const known = index.value;
  if (!known) return null;
  const { graph } = known;
  return (
    <p class="indexed dim">
      {count(known.passages, "passage")} of <bdi>{indexName(known)}</bdi> indexed
      {graph && <> · a graph of {count(graph.facts, "fact")} about {count(graph.phrases, "name")}</>}
      {" "}· {bytesInWords(known.bytes)} · <a href="#/explore">look around</a>
    </p>
  );
}

// Explains why the server cannot answer, and what to do about it.
function Obstacle() {
  if (keyWanted.value) return null;
  if (connection.value === "down" || trouble.value) {
    return (
      <div class="notice bad" role="alert">
        <p><strong>{connection.value === "down" ? "No connection to the server." : "The server refuses to say what it serves."}</strong> {trouble.value}</p>
        <button onClick={() => void discover()}>Try again</button>
      </div>
    );
  }
  if (indexState.value !== "none") return null;
  const talker = policies.value.some((one) => !searches(one.protocol));
  return (
    <div class="notice">
      <p><strong>Nothing is indexed yet.</strong> Build an index of your documents, and start the server with it:</p>
      <pre tabIndex={0} role="group" aria-label="Commands">waymark index build --corpus my-documents/ --out my.index{"\n"}waymark serve --index my.index</pre>
      {talker && <p class="dim">Until then only the model itself can answer, without sources.</p>}
    </div>
  );
}
