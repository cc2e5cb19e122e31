// Where documents come from: the server, or the file itself (`hgpo view -o`).
import { useEffect, useState } from "preact/hooks";
import type { Group, Head, Task, Tasks } from "./documents";
import { share } from "./format";

export type Query = Record<string, string | string[] | undefined>;

type Embedded = Head & { answers: Record<string, unknown> };

const embedded = document.getElementById("data");
const page: Embedded | null = embedded ? JSON.parse(embedded.textContent ?? "") : null;

/** Whether this page is a file of its own, with a selection of tasks. */
export const isFile = page !== null;

const MOST = 400;
const cache = new Map<string, Promise<unknown>>();

function address(path: string, query: Query): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== "") pairs.append(name, one);
    }
  }
  const text = pairs.toString();
  return text ? `${path}?${text}` : path;
}

async function request(path: string, query: Query): Promise<unknown> {
  let answer: Response;
  try {
    answer = await fetch(`api/${address(path, query)}`, { cache: "no-store" });
  } catch {
    throw new Error("The server does not answer: was `hgpo view` ended?");
  }
  const kind = answer.headers.get("content-type") ?? "";
  const body = kind.includes("json") ? await answer.json() : await answer.text();
  if (!answer.ok) throw new Error(body.error ?? (kind.includes("json") ? answer.statusText : body));
  return body;
}

export function get<T>(path: string, query: Query = {}): Promise<T> {
  const key = address(path, query);
  let found = cache.get(key);
  if (!found) {
    found = page ? Promise.resolve().then(() => lookUp(page, path, query)) : request(path, query);
    found.catch(() => cache.delete(key));
    cache.set(key, found);
    if (cache.size > MOST) cache.delete(cache.keys().next().value as string);
  }
  return found as Promise<T>;
}

/** Forget all documents, because a run has new rows. */
export function forget(): void {
  cache.clear();
}

export type Loaded<T> = { value: T | null; error: string | null; loading: boolean };

/** The document at an address; while another one loads, the previous one of the same `scope` stays. */
export function useDocument<T>(path: string | null, query: Query = {}, version = 0, scope = path): Loaded<T> {
  const key = path === null ? null : `${version} ${address(path, query)}`;
  const [found, setFound] = useState<Loaded<T> & { key: string | null; scope: string | null }>({
    value: null, error: null, loading: path !== null, key: null, scope: null,
  });
  useEffect(() => {
    if (path === null) return;
    let current = true;
    get<T>(path, query).then(
      (value) => current && setFound({ value, error: null, loading: false, key, scope }),
      (error: Error) => current && setFound({ value: null, error: error.message, loading: false, key, scope }),
    );
    return () => {
      current = false;
    };
  }, [key]);
  if (path === null) return { value: null, error: null, loading: false };
  if (found.key === key) return found;
  return { value: found.scope === scope ? found.value : null, error: null, loading: true };
}

// ------------------------------------------------------------------------------------------------ documents in a file

function lookUp(from: Embedded, path: string, query: Query): unknown {
  if (path === "runs") return { runs: from.runs, estimators: from.estimators, opened: from.opened, definitions: from.definitions };
  const [run, kind, ...rest] = path.split("/").slice(1);
  if (kind === "find") return find(from, run as string, String(query.trajectory));
  if (kind === "tasks") return filtered(from.answers[path] as Tasks, query);
  const key = rest[1] === "estimates" ? `${path}/${String(query.estimator)}` : path;
  const found = from.answers[key];
  if (found === undefined) throw new Error("This page contains a selection of tasks, and not this part of the run.");
  return found;
}

function find(from: Embedded, run: string, name: string): { group: number; row: number } {
  const prefix = `runs/${run}/groups/`;
  for (const [key, value] of Object.entries(from.answers)) {
    if (!key.startsWith(prefix) || key.includes("/estimates/")) continue;
    const group = value as Group;
    const found = group.trajectories.find((one) => one.trajectory === name);
    if (found) return { group: group.number, row: found.row };
  }
  throw new Error("This page contains a selection of tasks, and not this trajectory.");
}

const SORTS: Record<string, (task: Task) => number | string> = {
  task: (task) => task.task_id,
  success: (task) => share(task.won, task.size) ?? Infinity,
  return: (task) => task.mean_return ?? Infinity,
  length: (task) => task.mean_length ?? Infinity,
  invalid: (task) => task.invalid,
  aborted: (task) => task.aborted,
};

function filtered(all: Tasks, query: Query): Tasks {
  const text = String(query.text ?? "").toLowerCase();
  const tasks = (all.tasks ?? []).filter((task) => {
    const outcome = task.won === null ? "unknown" : task.won === 0 ? "none" : task.won === task.size ? "all" : "partly";
    const words = `${task.task_id} ${typeof task.task === "string" ? task.task : (task.task?.cut ?? "")}`.toLowerCase();
    return (
      (!query.outcome || query.outcome === "any" || query.outcome === outcome) &&
      (!query.invalid || task.invalid > 0) &&
      (!query.aborted || task.aborted > 0) &&
      (query.task_type === undefined || (task.task_type ?? "") === query.task_type) &&
      (!query.iteration || task.groups.some((group) => String(group.iteration) === query.iteration)) &&
      words.includes(text)
    );
  });
  const by = SORTS[String(query.sort)];
  if (by) tasks.sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0));
  if (query.descending) tasks.reverse();
  return { ...all, tasks, total: tasks.length, groups: tasks.reduce((sum, task) => sum + task.groups.length, 0) };
}
