// A message in place of a view that cannot be drawn, for example of a damaged run.
import type { ComponentChildren } from "preact";
import { useErrorBoundary } from "preact/hooks";
import { explain } from "../api/client";

export function Guard({ children }: { children: ComponentChildren }) {
  const [error] = useErrorBoundary();
  if (error) return <p class="notice bad" role="alert">This cannot be shown: {explain(error)}</p>;
  return <>{children}</>;
}
