// The place in the viewer and its settings, as the address's fragment: `#/run/view/…?a=hgpo:alpha=2&outcome=partly`.
import { useLayoutEffect, useState } from "preact/hooks";

export type Tab = "trajectories" | "graph" | "task-graph";

export type Route = {
  run: string | null;
  view: "overview" | "rollouts" | "group" | "step" | "compare";
  group: number | null;
  tab: Tab;
  trajectory: string | null;
  step: number;
  /** Estimators, filters and the run to compare with: links keep them. */
  settings: URLSearchParams;
};

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const split = (fragment: string): [string, string] => {
  const at = fragment.indexOf("?");
  return at < 0 ? [fragment, ""] : [fragment.slice(0, at), fragment.slice(at + 1)];
};

export function parse(fragment: string): Route {
  const [place, query] = split(fragment);
  const [run, view, ...rest] = place.replace(/^#\/?/, "").split("/").map(decoded);
  const settings = new URLSearchParams(query);
  const nowhere: Route = { run: null, view: "overview", group: null, tab: "trajectories", trajectory: null, step: 0, settings };
  if (!run) return nowhere;
  if (view === "rollouts" || view === "compare") return { ...nowhere, run, view };
  if (view === "group") {
    const tab = rest[1] === "graph" || rest[1] === "task-graph" ? rest[1] : "trajectories";
    return { ...nowhere, run, view, group: Number(rest[0]) || 0, tab };
  }
  if (view === "step") return { ...nowhere, run, view, trajectory: rest[0] ?? "", step: Number(rest[1]) || 0 };
  return { ...nowhere, run };
}

export type Changes = Record<string, string | null>;

function withSettings(place: string, changes: Changes): string {
  const settings = new URLSearchParams(split(location.hash)[1]);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) settings.delete(name);
    else settings.set(name, value);
  }
  const query = settings.toString();
  return query ? `${place}?${query}` : place;
}

const joined = (...parts: (string | number)[]) => withSettings(`#/${parts.map((part) => encodeURIComponent(part)).join("/")}`, {});

export const links = {
  overview: (run: string) => joined(run),
  rollouts: (run: string, changes: Changes = {}) => withSettings(`#/${encodeURIComponent(run)}/rollouts`, changes),
  compare: (run: string) => joined(run, "compare"),
  group: (run: string, group: number) => joined(run, "group", group),
  graph: (run: string, group: number) => joined(run, "group", group, "graph"),
  taskGraph: (run: string, group: number) => joined(run, "group", group, "task-graph"),
  step: (run: string, trajectory: string, step: number) => joined(run, "step", trajectory, step),
};

/** Go at once: after a change of `location.hash` the event comes later, and a second key would start from the old place. */
export function go(link: string): void {
  if (link === location.hash) return;
  history.pushState(null, "", link);
  dispatchEvent(new Event("hashchange"));
}

/** Go without a new entry in the browser's history. */
export function replace(link: string): void {
  history.replaceState(null, "", link);
  dispatchEvent(new Event("hashchange"));
}

/** Change settings of the address and stay at the same place. */
export const change = (changes: Changes): void => replace(withSettings(split(location.hash)[0] || "#/", changes));

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  useLayoutEffect(() => { // before the page takes its first key
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
