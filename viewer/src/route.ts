// The place in the viewer, as the address's fragment: a deep link to a run, a group or one step.
import { useEffect, useState } from "preact/hooks";

export type Tab = "trajectories" | "graph" | "task-graph";

export type Route = {
  run: string | null;
  view: "overview" | "tasks" | "group" | "step";
  group: number | null;
  tab: Tab;
  trajectory: string | null;
  step: number;
};

const NOWHERE: Route = { run: null, view: "overview", group: null, tab: "trajectories", trajectory: null, step: 0 };

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function parse(fragment: string): Route {
  const [run, view, ...rest] = fragment.replace(/^#\/?/, "").split("/").map(decoded);
  if (!run) return NOWHERE;
  if (view === "tasks") return { ...NOWHERE, run, view };
  if (view === "group") {
    const tab = rest[1] === "graph" || rest[1] === "task-graph" ? rest[1] : "trajectories";
    return { ...NOWHERE, run, view, group: Number(rest[0]) || 0, tab };
  }
  if (view === "step") return { ...NOWHERE, run, view, trajectory: rest[0] ?? "", step: Number(rest[1]) || 0 };
  return { ...NOWHERE, run };
}

const joined = (...parts: (string | number)[]) => `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;

export const links = {
  overview: (run: string) => joined(run),
  tasks: (run: string) => joined(run, "tasks"),
  group: (run: string, group: number) => joined(run, "group", group),
  graph: (run: string, group: number) => joined(run, "group", group, "graph"),
  taskGraph: (run: string, group: number) => joined(run, "group", group, "task-graph"),
  step: (run: string, trajectory: string, step: number) => joined(run, "step", trajectory, step),
};

export function go(link: string): void {
  location.hash = link;
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
