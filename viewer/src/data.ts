// Where documents come from: the server, or the file itself (`hgpo view -o`).
import { useEffect, useState } from "preact/hooks";
import { TOGETHER } from "./documents";
import type { Estimate, Group, Head, RolloutEstimates, Rollouts, Step } from "./documents";

export type Query = Record<string, string | string[] | undefined>;

type Embedded = Head & { answers: Record<string, unknown> };

const embedded = document.getElementById("data");
const page = embedded && unpacked(embedded.textContent ?? "");

/** Whether this page is a file of its own, with a selection of tasks. */
export const isFile = embedded !== null;

/** The documents in a file: JSON, compressed by gzip, in base64. */
async function unpacked(text: string): Promise<Embedded> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

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

async function request(path: string, query: Query, options: RequestInit = {}): Promise<unknown> {
  let answer: Response;
  try {
    answer = await fetch(`api/${address(path, query)}`, { cache: "no-store", ...options });
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
    found = page ? page.then((documents) => lookUp(documents, path, query)) : request(path, query);
    found.catch(() => cache.delete(key));
    cache.set(key, found);
    if (cache.size > MOST) cache.delete(cache.keys().next().value as string);
  }
  return found as Promise<T>;
}

export const post = (path: string, value: unknown): Promise<unknown> => request(path, {}, { method: "POST", body: JSON.stringify(value) });

const CHANGED = "hgpo-changed";
/** Look at once whether a run has changed. */
export const changed = (): boolean => dispatchEvent(new Event(CHANGED));
export const onChanged = (look: () => void): void => addEventListener(CHANGED, look);

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
  const name = String(query.estimator);
  if (kind === "estimates") return estimatesOf(from, `runs/${run}`, name);
  const key = rest[1] === "estimates" ? `${path}/${name}` : path;
  const found = from.answers[key];
  if (found === undefined) throw new Error("This page contains a selection of tasks, and not this part of the run.");
  return found;
}

/** The figures of each rollout that its steps give, as `rollout_estimates` computes them. */
function estimatesOf({ answers }: Embedded, run: string, name: string): RolloutEstimates {
  const { columns } = answers[`${run}/rollouts`] as Rollouts;
  const spread = columns.row.map((row, at) => {
    const group = `${run}/groups/${columns.number[at]}`;
    const first = row - (answers[group] as Group).row;
    const advantages = (answers[`${group}/estimates/${name}`] as Estimate | undefined)?.columns.advantage;
    const known = (advantages ?? []).slice(first, first + (columns.length[at] as number)).filter((value) => value !== null);
    return known.length ? Math.max(...known) - Math.min(...known) : null;
  });
  const tokens = columns.row.map((row, at) => {
    let sum: number | null = null;
    const end = row + (columns.length[at] as number);
    for (let start = row; start < end; start += TOGETHER) {
      const steps = answers[`${run}/steps/${start}/${Math.min(TOGETHER, end - start)}`] as Step[];
      for (const step of steps) if (step.response_tokens !== null) sum = (sum ?? 0) + step.response_tokens;
    }
    return sum;
  });
  return { spread, tokens };
}
