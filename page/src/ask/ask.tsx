// The view Ask: a conversation, answer first.
import { useEffect, useRef } from "preact/hooks";
import { offline } from "../api/server";
import { Composer } from "./composer";
import { PassageCard } from "./card";
import { conversation } from "./conversation";
import { Answered } from "./answered";
import { Welcome } from "./welcome";

export function Ask() {
  const { lives, id } = conversation.value;
  const end = useRef<HTMLDivElement>(null);
  const count = lives.length;
  // A new question comes into sight at the top, so that its answer has room below it.
  useEffect(() => {
    if (count > 1) end.current?.lastElementChild?.scrollIntoView({ block: "start", behavior: calm() ? "auto" : "smooth" });
  }, [count, id]);
  if (!count) return <Welcome />;
  return (
    <div class="ask">
      <h1 class="hidden">Conversation</h1>
      <div class="conversation" ref={end}>
        {lives.map((live, index) => <Answered key={live.run.id} live={live} last={index === count - 1} />)}
      </div>
      {!offline && <div class="dock"><Composer follow /></div>}
      <PassageCard />
    </div>
  );
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
