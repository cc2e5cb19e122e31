// All rollouts of a run in one table: filtered by an expression and by histograms, sorted, and by group or task.
import { useEffect, useMemo, useState } from "preact/hooks";
import { isFile, useDocument } from "./data";
import type { Hit, Note, Results, RolloutEstimates, Rollouts, Run, Search } from "./documents";
import { downloadCsv, downloadJson } from "./download";
import { asQuery, type Chosen } from "./estimators";
import { compile, type Kind, quoted, type Value } from "./filter";
import { counted, integer, number, percent } from "./format";
import { moveFocus } from "./keys";
import { type Bins, binsOf, Histogram, isWithin, type Range, type Values } from "./histogram";
import { type Changes, change, links } from "./route";
import { Line, Marked, Outcome, plain, Wide } from "./texts";

export type Row = Record<string, Value> & { trajectory: string; number: number; place: number; row: number; of: number; member: number };

type Column = { name: string; kind: Kind; about: string; digits?: number; histogram?: boolean; share?: boolean };

/** The columns that filters and files have; those with digits are shown where they have values. */
const COLUMNS: Column[] = [
  { name: "task", kind: "text", about: "instruction" },
  { name: "task_id", kind: "text", about: "id of the task" },
  { name: "type", kind: "text", about: "type of the task" },
  { name: "trajectory", kind: "text", about: "name of the rollout" },
  { name: "parent", kind: "text", about: "of a branch, the rollout that it leaves" },
  { name: "iteration", kind: "number", about: "number of updates before, as in the step table; or seed of an evaluation", digits: 0 },
  { name: "group", kind: "number", about: "number of its group among those of the task" },
  { name: "outcome", kind: "text", about: "'won', 'lost', 'unknown' or 'aborted'" },
  { name: "won", kind: "number", about: "1 or 0", digits: 0, histogram: true },
  { name: "group_won", kind: "number", about: "share of its group that won" },
  { name: "return", kind: "number", about: "sum of rewards", digits: 2, histogram: true },
  { name: "score", kind: "number", about: "score of the benchmark", digits: 2, histogram: true },
  { name: "length", kind: "number", about: "steps", digits: 0, histogram: true },
  { name: "tokens", kind: "number", about: "tokens of its responses", digits: 0, histogram: true },
  { name: "invalid", kind: "number", about: "invalid actions", digits: 0, histogram: true },
  { name: "spread", kind: "number", about: "largest advantage of its steps minus the smallest, by estimator A", digits: 2, histogram: true },
  { name: "truncated", kind: "flag", about: "ended by the step limit" },
  { name: "my_score", kind: "number", about: "score that you gave it", digits: 2, histogram: true },
  { name: "note", kind: "text", about: "your note" },
];
const KINDS = Object.fromEntries(COLUMNS.map((column) => [column.name, column.kind]));
const PAGE = 200;
const WAIT_MS = 200;

export function useRollouts(path: string, chosen: Chosen, version: number) {
  const found = useDocument<Rollouts>(`${path}/rollouts`, {}, version);
  const estimates = useDocument<RolloutEstimates>(found.value && `${path}/estimates`, asQuery(chosen), version, `${path}/estimates`);
  const notes = useDocument<Note[]>(`${path}/notes`, {}, version);
  const rows = useMemo(() => found.value && rowsOf(found.value, estimates.value, notes.value ?? []), [found.value, estimates.value, notes.value]);
  return { rows, total: found.value?.total ?? 0, error: found.error, problem: notes.error ?? estimates.error, loading: estimates.loading };
}

function rowsOf({ tasks, columns }: Rollouts, estimates: RolloutEstimates | null, notes: Note[]): Row[] {
  const noted = new Map(notes.map((note) => [note.trajectory, note]));
  const groups = new Map<number, { size: number; won: number; known: number }>();
  const rows = columns.trajectory.map((trajectory, place): Row => {
    const task = tasks[columns.task[place] as number];
    const isAborted = columns.aborted[place] as boolean;
    const won = isAborted ? null : (columns.won[place] ?? null);
    const at = columns.number[place] as number;
    const group = groups.get(at) ?? { size: 0, won: 0, known: 0 };
    const parent = columns.parent[place] ?? null;
    const counts = won !== null && parent === null; // a branch is no independent rollout
    groups.set(at, { size: group.size + 1, won: group.won + Number(counts && won), known: group.known + Number(counts) });
    const note = noted.get(trajectory);
    return {
      place, trajectory, parent, number: at, of: columns.task[place] as number, member: group.size, row: columns.row[place] as number,
      task: plain(task?.task) || (task?.task_id ?? ""), task_id: task?.task_id ?? "", type: task?.task_type ?? null,
      iteration: columns.iteration[place] ?? null, group: columns.group[place] ?? null,
      outcome: isAborted ? "aborted" : won === null ? "unknown" : won ? "won" : "lost", won: won === null ? null : Number(won), group_won: null,
      return: columns.episode_return[place] ?? null, score: columns.score[place] ?? null, length: columns.length[place] ?? null,
      tokens: estimates?.tokens[place] ?? null, invalid: columns.invalid[place] ?? null, spread: estimates?.spread[place] ?? null,
      truncated: columns.truncated[place] ?? false, my_score: note?.score ?? null, note: note?.note ?? "",
    };
  });
  for (const row of rows) {
    const group = groups.get(row.number);
    if (group?.known) row.group_won = group.won / group.known;
  }
  return rows;
}

const valuesOf = (rows: Row[], name: string): Values => rows.map((row) => row[name] as number | null);

// -------------------------------------------------------------------------------------------------- what is chosen

/** The chosen bars in the address: `length:5:9,invalid:0:0`. */
const barsOf = (text: string): Map<string, Range> =>
  new Map(text.split(",").filter(Boolean).map((part) => {
    const [name, low, high] = part.split(":");
    return [name ?? "", [Number(low), Number(high)]];
  }));

const asText = (bars: Map<string, Range>): string => [...bars].map(([name, range]) => [name, ...range].join(":")).join(",");

type Props = { path: string; run: Run; version: number; settings: URLSearchParams; chosen: Chosen };

export function RolloutsPage({ path, run, version, settings, chosen }: Props) {
  const { rows, total, error, problem, loading } = useRollouts(path, chosen, version);
  const text = settings.get("filter") ?? "";
  const search = settings.get("search") ?? "";
  const by = settings.get("by") ?? "";
  const sort = settings.get("sort") ?? "";
  const bars = useMemo(() => barsOf(settings.get("bars") ?? ""), [settings]);
  const found = useDocument<Search>(search && !isFile ? `${path}/search` : null, { text: search }, version);

  const filter = useMemo(() => {
    try {
      return { test: compile(text, KINDS), error: null };
    } catch (refused) {
      return { test: () => true, error: (refused as Error).message };
    }
  }, [text]);
  const bins = useMemo(() => {
    const isScored = rows?.some((row) => row.score !== row.return);
    const several = COLUMNS.filter(({ name, histogram }) => histogram && (name !== "score" || isScored)).map(({ name }) => [name, binsOf(valuesOf(rows ?? [], name))] as const);
    return new Map(several.filter((one): one is readonly [string, Bins] => one[1] !== null));
  }, [rows]);
  const matching = useMemo(() => {
    const hits = found.value && new Set(found.value.rollouts);
    return (rows ?? []).filter((row) => filter.test(row) && (!hits || hits.has(row.row)));
  }, [rows, filter, found.value]);
  /** The rollouts within all chosen bars, or within those of the other histograms. */
  const within = (except?: string) => matching.filter((row) => [...bars].every(([name, range]) => {
    const of = bins.get(name);
    return name === except || !of || isWithin(of, range, row[name] as number | null);
  }));
  const kept = useMemo(() => within(), [matching, bars, bins]);
  const sorted = useMemo(() => sortedBy(by ? grouped(kept, by) : kept, sort), [kept, by, sort]);

  if (error) return <p class="error page" role="alert">{error}</p>;
  if (!rows) return <p class="page" role="status">Loading …</p>;
  const setBars = (name: string, range: Range | null) => {
    const changed = new Map(bars);
    if (range) changed.set(name, range);
    else changed.delete(name);
    change({ bars: asText(changed) || null });
  };
  const files = sorted.map((row) => Object.fromEntries([...(by ? [["rollouts", row.rollouts ?? null] as const] : []), ...COLUMNS.map(({ name }) => [name, row[name] ?? null] as const)]));
  const isFiltered = Boolean(text || search || bars.size);
  return (
    <article class="page rollouts">
      <h1 class="skip">Rollouts</h1>
      <Bar text={text} search={search} by={by} />
      {(filter.error ?? found.error ?? problem) && <p class="error" role="alert">{filter.error ?? found.error ?? problem}</p>}
      {found.value && <Hits run={run.name} found={found.value} text={search} kept={kept} />}
      <div class="histograms">
        {COLUMNS.map(({ name }) => {
          const of = bins.get(name);
          return of && (
            <Histogram
              key={name} label={name} bins={of} all={valuesOf(rows, name)} kept={valuesOf(within(name), name)} range={bars.get(name) ?? null}
              set={(range) => setBars(name, range)} {...(name === "won" ? { names: ["lost", "won"] } : {})}
            />
          );
        })}
      </div>
      <p class="row note" role="status">
        <Summary path={path} rows={rows} kept={kept} version={version} />
        {loading && " · computing advantages …"}
        {total > rows.length && ` · the first ${integer(rows.length)} of ${counted(total, "rollout")} of the run`}
        {isFiltered && <button type="button" onClick={() => change({ filter: null, search: null, bars: null })}>Clear filters</button>}
        <span class="spacer" />
        <button type="button" onClick={() => downloadCsv(`${run.name}-rollouts`, files)}>CSV</button>
        <button type="button" onClick={() => downloadJson(`${run.name}-rollouts`, files)}>JSON</button>
      </p>
      <Table run={run.name} rows={sorted} by={by} sort={sort} />
    </article>
  );
}

/** Means of the matching rollouts of each group or task; return and length without aborted ones. */
function grouped(rows: Row[], by: string): Row[] {
  const parts = new Map<number, Row[]>();
  for (const row of rows) {
    const key = by === "task" ? row.of : row.number;
    const members = parts.get(key);
    if (members) members.push(row);
    else parts.set(key, [row]);
  }
  return [...parts.values()].map((members) => {
    const whole = members.filter((row) => row.outcome !== "aborted");
    const means = COLUMNS.filter(({ kind }) => kind === "number").map(({ name }) => [name, meanOf(valuesOf(name === "return" || name === "length" ? whole : members, name))]);
    return { ...(members[0] as Row), ...Object.fromEntries(means), rollouts: members.length, note: "" };
  });
}

function meanOf(values: Values): number | null {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** By a column, `-length` from the largest on; what has no value comes last. */
function sortedBy(rows: Row[], sort: string): Row[] {
  const name = sort.replace("-", "");
  if (!name) return rows;
  const way = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [one[name] ?? null, other[name] ?? null];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return a === b ? 0 : a < b ? -way : way;
  });
}

// -------------------------------------------------------------------------------------------------------- the parts

function Bar({ text, search, by }: { text: string; search: string; by: string }) {
  // What is being typed and not in the address yet; null is the address's own text. No effect copies the
  // address into it: on a slow machine that would come after a key and take its letter away.
  const [draft, setDraft] = useState<string | null>(null);
  const [searched, setSearched] = useState<string | null>(null);
  const apply = (changes: Changes) => {
    change(changes);
    if ("filter" in changes) setDraft(null);
    if ("search" in changes) setSearched(null);
  };
  useEffect(() => {
    if (draft === null) return;
    const timer = setTimeout(() => apply({ filter: draft || null }), WAIT_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  const submit = (event: Event) => {
    event.preventDefault();
    apply({ filter: (draft ?? text) || null, search: (searched ?? search) || null });
  };
  const typedSearch = (typed: string) => {
    if (typed) setSearched(typed);
    else apply({ search: null });
  };
  return (
    <form class="filters" role="search" aria-label="Find rollouts" onSubmit={submit}>
      <div class="row">
        <input
          id="filter-text" type="search" class="wide" placeholder="Filter ( / ): outcome = 'lost' and length > 10, or 'a text of the task'" aria-label="Filter" aria-describedby="filter-help"
          value={draft ?? text} spellcheck={false} onInput={(event) => setDraft(event.currentTarget.value)}
        />
        {!isFile && (
          <input
            type="search" placeholder="Search in texts of steps, Enter" aria-label="Search in states, actions, responses and errors; press Enter"
            value={searched ?? search} onInput={(event) => typedSearch(event.currentTarget.value)}
          />
        )}
        <button class="skip" tabIndex={-1}>Search</button>
        <select aria-label="Rows" value={by} onChange={(event) => change({ by: event.currentTarget.value || null })}>
          <option value="">a row per rollout</option><option value="group">a row per group</option><option value="task">a row per task</option>
        </select>
      </div>
      <details id="filter-help">
        <summary>Columns and operators</summary>
        <p class="note">
          <code>= != &lt; &lt;= &gt; &gt;=</code>, <code>contains</code> (case does not matter), <code>and</code>, <code>or</code>, <code>not</code>, parentheses; texts in
          quotes; <code>= null</code> for unknown. A text alone is looked for in the task. <code>group_won &gt; 0 and group_won &lt; 1</code>: groups won in part.
        </p>
        <dl class="names">{COLUMNS.map(({ name, about }) => <div><dt><code>{name}</code></dt><dd>{about}</dd></div>)}</dl>
      </details>
    </form>
  );
}

/** How many rollouts are shown, and their results as the commands compute them. */
function Summary({ path, rows, kept, version }: { path: string; rows: Row[]; kept: Row[]; version: number }) {
  const [bits, setBits] = useState<string | null>(null);
  useEffect(() => {
    const timer = setTimeout(() => setBits(kept.length && !isFile ? bitsOf(kept, rows.length) : null), WAIT_MS);
    return () => clearTimeout(timer);
  }, [kept]);
  const found = useDocument<Results>(bits === null ? null : `${path}/results`, { rows: bits ?? "" }, version).value;
  const roots = kept.filter((row) => row.parent === null);
  const of = found?.episodes === roots.length ? found : null; // and not those of an earlier selection
  const success = of?.success ?? meanOf(valuesOf(roots, "won"));
  const interval = of?.intervals.success;
  const tasks = new Set(kept.map((row) => row.task_id)).size;
  return (
    <span>
      <b>{kept.length === rows.length ? counted(rows.length, "rollout") : `${integer(kept.length)} of ${counted(rows.length, "rollout")}`}</b>, {counted(tasks, "task")}
      {roots.length < kept.length && `, ${counted(kept.length - roots.length, "branch", "branches")} of them in no mean`}
      {success !== null && ` · success ${percent(success, 1)}`}{interval && ` (95%: ${percent(interval[0], 1)} to ${percent(interval[1], 1)})`}
      {of && ` · return ${number(of.mean_return)} · length ${number(of.mean_length, 1)}`}
    </span>
  );
}

/** A bit for each rollout, in base64, the lowest bit of a byte first. */
function bitsOf(kept: Row[], count: number): string {
  const bytes = new Uint8Array(Math.ceil(count / 8));
  for (const { place } of kept) bytes[place >> 3]! |= 1 << (place & 7);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_");
}

function Table({ run, rows, by, sort }: { run: string; rows: Row[]; by: string; sort: string }) {
  const [count, setCount] = useState(PAGE);
  useEffect(() => setCount(PAGE), [rows]);
  // A column that says nothing is left out: no values, one iteration, no invalid action, a score that is the return.
  const nothing: Record<string, (row: Row) => boolean> = {
    iteration: (row) => row.iteration === rows[0]?.iteration, invalid: (row) => !row.invalid, score: (row) => row.score === row.return,
  };
  const shown = COLUMNS.filter(({ name, digits }) => digits !== undefined && rows.some((row) => row[name] !== null && !nothing[name]?.(row)));
  const hasNotes = rows.some((row) => row.note);
  const names = ["task", ...(by ? ["rollouts"] : []), ...shown.map(({ name }) => name), ...(hasNotes ? ["note"] : [])];
  const link = (row: Row) => {
    if (!by) return links.step(run, row.trajectory, 0);
    return by === "task" ? links.rollouts(run, { by: "group", filter: `task_id = ${quoted(String(row.task_id))}`, bars: null }) : links.group(run, row.number);
  };
  const figure = ({ name, digits, histogram }: Column, row: Row) => {
    const value = row[name] as number | null;
    if (name === "won") {
      const outcome = { won: value === null ? null : Boolean(value), aborted: row.outcome === "aborted", truncated: Boolean(row.truncated) };
      return by ? percent(value) : <Outcome of={outcome} />;
    }
    return name === "invalid" && !value ? "" : number(value, by && histogram ? Math.max(1, digits ?? 0) : digits);
  };
  return (
    <>
      <Wide label={by ? `Table by ${by}` : "Table of rollouts"}>
        <table class="every-rollout">
          <thead>
            <tr>
              {names.map((name) => (
                <th scope="col" class={name === "task" || name === "note" ? "" : "figure"} aria-sort={sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined}>
                  <button
                    type="button" class="link" title={COLUMNS.find((column) => column.name === name)?.about}
                    onClick={() => change({ sort: sort === `-${name}` ? name : sort === name ? null : `-${name}` })}
                  >
                    {name.replace("_", " ")}{sort === name ? " ▴" : sort === `-${name}` ? " ▾" : ""}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody onKeyDown={moveFocus}>
            {rows.slice(0, count).map((row) => (
              <tr key={row.trajectory}>
                <th scope="row">
                  <a href={link(row)} title={by ? undefined : row.trajectory}><Line text={String(row.task)} most={200} /></a>{" "}
                  <small>{!by && `${row.parent === null ? "rollout" : "branch"} ${row.member}`}{!by && row.type && " · "}<Line text={String(row.type ?? "")} most={40} /></small>
                </th>
                {by && <td class="figure">{integer(Number(row.rollouts))}</td>}
                {shown.map((column) => <td class="figure">{figure(column, row)}</td>)}
                {hasNotes && <td><Line text={String(row.note)} most={80} /></td>}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      {rows.length > count && <button type="button" class="more" onClick={() => setCount(count + 5 * PAGE)}>Show {Math.min(5 * PAGE, rows.length - count)} more of {integer(rows.length)}</button>}
    </>
  );
}

function Hits({ run, found, text, kept }: { run: string; found: Search; text: string; kept: Row[] }) {
  const rollouts = new Set(kept.map((row) => row.trajectory));
  const within = found.hits.filter((hit) => rollouts.has(hit.trajectory));
  const shown = within.slice(0, 200);
  return (
    <details class="hits" open={found.rollouts.length < 20}>
      <summary>{counted(found.steps, "step")} in {counted(found.rollouts.length, "rollout")}{within.length < found.hits.length && `, ${counted(within.length, "step")} within the filter`}</summary>
      <ul>
        {shown.map((hit: Hit) => (
          <li>
            <a href={links.step(run, hit.trajectory, hit.step)}><Line text={hit.trajectory} most={60} /> step {hit.step}, {hit.column}</a>
            {hit.snippet && <Snippet text={hit.snippet} searched={text} />}
          </li>
        ))}
      </ul>
      {(within.length > shown.length || found.steps > found.hits.length) && <p class="note">The first {shown.length} are listed.</p>}
    </details>
  );
}

/** The text around a match, and the match marked. */
function Snippet({ text, searched }: { text: string; searched: string }) {
  const at = text.toLowerCase().indexOf(searched.toLowerCase());
  if (at < 0) return <small><Line text={text} /></small>;
  return (
    <small dir="auto">
      <Marked text={text.slice(0, at)} /><mark><Marked text={text.slice(at, at + searched.length)} /></mark><Marked text={text.slice(at + searched.length)} />
    </small>
  );
}
