// Tasks → groups → trajectories, filtered, sorted and searched.
import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, isFile, type Query, useDocument } from "./data";
import type { Group, GroupRow, Hit, Overview, Rollout, Run, Search, Task, Tasks, Trajectory } from "./documents";
import { counted, integer, number, percent, share } from "./format";
import { change, type Changes, go, links, type Route } from "./route";
import { Line, Marked } from "./texts";

/** Which tasks, or which rollouts of any task, are listed: the settings of the address by these names. */
export type Filter = {
  list: string;
  text: string;
  search: string;
  outcome: string;
  task_type: string | null;
  iteration: string;
  shortest: string;
  longest: string;
  invalid: string;
  aborted: string;
  sort: string;
  descending: string;
};

export const NO_FILTER: Filter = {
  list: "", text: "", search: "", outcome: "", task_type: null, iteration: "", shortest: "", longest: "", invalid: "", aborted: "", sort: "",
  descending: "",
};

const NAMES = Object.keys(NO_FILTER) as (keyof Filter)[];

export const filterOf = (settings: URLSearchParams): Filter =>
  Object.fromEntries(NAMES.map((name) => [name, settings.get(name) ?? NO_FILTER[name]])) as Filter;

/** The changes of the address that set some of the filters. */
export const asSettings = (filter: Partial<Filter>): Changes =>
  Object.fromEntries(Object.entries(filter).map(([name, value]) => [name, name === "task_type" ? value : value || null]));

const PAGE = 100;
const WAIT_MS = 250;

function queryOf({ list, text, task_type, ...rest }: Filter): Query {
  return { ...rest, text: JSON_TEXT(text), task_type: task_type === null ? undefined : JSON_TEXT(task_type, true) };
}

/** A text as the server reads it: a text that looks like a number or a list is still a text. */
const JSON_TEXT = (text: string, empty = false): string | undefined =>
  isFile ? (text || empty ? text : undefined) : text || empty ? JSON.stringify(text) : undefined;

type Props = {
  path: string;
  run: string;
  version: number;
  route: Route;
  selection?: Run["selection"];
};

export function TaskTree({ path, run, version, route, selection }: Props) {
  const filter = filterOf(route.settings);
  const setFilter = (changes: Partial<Filter>) => change(asSettings(changes));
  const [pages, setPages] = useState<{ of: string; lists: Tasks[] }>({ of: "", lists: [] });
  const [problem, setProblem] = useState<string | null>(null);
  const [open, setOpen] = useState<Set<string>>(new Set());
  const overview = useDocument<Overview>(`${path}/overview`, {}, version).value;
  const query = queryOf(filter);
  const flat = filter.list === "rollouts";
  const key = `${path} ${flat} ${JSON.stringify(query)}`;
  const current = useRef(key);
  current.current = key;

  const load = async (offset: number, limit = PAGE): Promise<Tasks | null> => {
    try {
      return await get<Tasks>(`${path}/${flat ? "trajectories" : "tasks"}`, { ...query, offset: offset ? String(offset) : undefined, limit: String(limit) });
    } catch (error) {
      setProblem((error as Error).message);
      return null;
    }
  };
  useEffect(() => {
    setProblem(null);
    load(0).then((found) => found && current.current === key && setPages({ of: key, lists: [found] }));
  }, [key, version]);
  const more = async () => {
    const offset = count;
    const found = await load(offset);
    if (found && current.current === key) setPages((before) => ({ of: key, lists: [...before.lists, found] }));
  };

  const revealed = useRef<string | null>(null);
  useEffect(() => {
    const wanted = route.view === "step" ? route.trajectory : null;
    if (!wanted || revealed.current === wanted || !pages.lists.length) return;
    revealed.current = wanted;
    get<{ group: number }>(`${path}/find`, { trajectory: wanted }).then(({ group }) => {
      const task = pages.lists.flatMap((list) => list.tasks ?? []).find((one) => one.groups.some((row) => row.number === group));
      if (!task) return;
      toggle(taskId(task), true);
      toggle(`g ${group}`, true);
    }, () => undefined);
  }, [route.view, route.trajectory, pages]);

  const first = pages.lists[0];
  const tasks = pages.lists.flatMap((list) => list.tasks ?? []);
  const count = flat ? pages.lists.reduce((sum, list) => sum + (list.trajectories?.length ?? 0), 0) : tasks.length;
  const toggle = (id: string, wanted?: boolean) =>
    setOpen((before) => {
      const after = new Set(before);
      if (wanted ?? !after.has(id)) after.add(id);
      else after.delete(id);
      return after;
    });
  const filtered = NAMES.some((name) => !["list", "sort", "descending"].includes(name) && filter[name] !== NO_FILTER[name]);
  const Title = route.view === "tasks" ? "h1" : "h2";
  const clear = () => setFilter({ ...NO_FILTER, list: filter.list, sort: filter.sort, descending: filter.descending });

  return (
    <section class="tree" aria-label="Tasks">
      <Title>Tasks</Title>
      <Filters filter={filter} setFilter={setFilter} overview={overview} />
      {filter.search && <Hits path={path} run={run} text={filter.search} version={version} />}
      <p class="note" role="status">
        {problem ? "" : first ? `${counted(first.total, flat ? "rollout" : "task")}, ${counted(first.groups, "group")}` : "Loading …"}{" "}
        {first && selection && selection.tasks < selection.of && ` of the ${counted(selection.tasks, "task")} in this page, which leaves out ${integer(selection.of - selection.tasks)} `}
        {filtered && <button type="button" onClick={clear}>Clear filters</button>}
      </p>
      {problem && <p class="error" role="alert">{problem}</p>}
      {flat ? <Rollouts {...{ run, route }} rollouts={pages.lists.flatMap((list) => list.trajectories ?? [])} /> : <Grid {...{ path, run, route, version, tasks, open, toggle }} />}
      {first && count < first.total && (
        <button type="button" class="more" onClick={more}>
          Show {Math.min(PAGE, first.total - count)} more of {integer(first.total)}
        </button>
      )}
    </section>
  );
}

// ------------------------------------------------------------------------------------------------------------ filters

/** What the column iteration counts in a run. */
export function useUnit(path: string, version: number) {
  return unitOf(useDocument<Overview>(`${path}/overview`, {}, version).value);
}

const unitOf = (overview: Overview | null) => (overview?.evaluation ? "seed" : "iteration");

function Filters({ filter, setFilter, overview }: {
  filter: Filter; setFilter: (changes: Partial<Filter>) => void; overview: Overview | null;
}) {
  const [text, setText] = useState(filter.text);
  const [search, setSearch] = useState(filter.search);
  useEffect(() => { setText(filter.text); setSearch(filter.search); }, [filter.text, filter.search]);
  useEffect(() => {
    if (text === filter.text) return;
    const timer = setTimeout(() => setFilter({ text }), WAIT_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const set = setFilter;
  const flat = filter.list === "rollouts";
  const outcomes = flat ? { won: "won", lost: "not won", unknown: "unknown" } : { partly: "won in part", none: "never won", all: "always won" };
  return (
    <form class="filters" role="search" aria-label="Find tasks" onSubmit={(event) => event.preventDefault()}>
      <input
        id="filter-text" type="search" placeholder="Find tasks ( / )" aria-label="Task id or instruction contains"
        value={text} onInput={(event) => setText(event.currentTarget.value)}
      />
      {!isFile && (
        <input
          type="search" placeholder="Search in texts, Enter" value={search}
          aria-label="Search in states, actions, responses and errors; press Enter"
          onKeyDown={(event) => event.key === "Enter" && set({ text, search })}
          onInput={(event) => { setSearch(event.currentTarget.value); if (!event.currentTarget.value) set({ search: "" }); }}
        />
      )}
      <div class="row">
        {!isFile && (
          <select aria-label="List" value={filter.list} onChange={(event) => set({ list: event.currentTarget.value, outcome: "" })}>
            <option value="">by task</option>
            <option value="rollouts">rollouts</option>
          </select>
        )}
        <select aria-label="Outcome" value={filter.outcome} onChange={(event) => set({ outcome: event.currentTarget.value })}>
          <option value="">any outcome</option>
          {Object.entries(outcomes).map(([value, name]) => <option value={value}>{name}</option>)}
        </select>
        <select
          aria-label="Task type" value={filter.task_type ?? "*"}
          onChange={(event) => set({ task_type: event.currentTarget.value === "*" ? null : event.currentTarget.value })}
        >
          <option value="*">any type</option>
          {overview?.task_types.map((kind) => (
            <option value={kind.task_type ?? ""}>{(kind.task_type ?? "unknown type").slice(0, 60)}</option>
          ))}
        </select>
        {(overview?.iterations.length ?? 0) > 1 && (
          <select aria-label="Iteration" value={filter.iteration} onChange={(event) => set({ iteration: event.currentTarget.value })}>
            <option value="">any {unitOf(overview)}</option>
            {overview?.iterations.map((one) => <option value={String(one)}>{unitOf(overview)} {one}</option>)}
          </select>
        )}
        <select
          aria-label="Order" value={`${filter.sort || "order"} ${filter.descending ? "down" : "up"}`}
          onChange={(event) => {
            const [sort, way] = event.currentTarget.value.split(" ") as [string, string];
            set({ sort: sort === "order" ? "" : sort, descending: way === "down" ? "true" : "" });
          }}
        >
          <option value="order up">as collected</option>
          <option value="order down">newest first</option>
          <option value="task up">by task</option>
          <option value="success up">least success first</option>
          <option value="success down">most success first</option>
          <option value="return up">least return first</option>
          <option value="return down">highest return first</option>
          <option value="length down">longest first</option>
          <option value="length up">shortest first</option>
          <option value="invalid down">most invalid first</option>
          <option value="aborted down">most aborted first</option>
        </select>
      </div>
      <div class="row">
        {(["invalid", "aborted"] as const).map((name) => (
          <label>
            <input type="checkbox" checked={filter[name] !== ""} onChange={(event) => set({ [name]: event.currentTarget.checked ? "true" : "" })} />{" "}
            {name === "invalid" ? "invalid actions" : "aborted"}
          </label>
        ))}
        {!isFile && (
          <span>
            steps <Length label="Fewest steps" value={filter.shortest} set={(shortest) => set({ shortest })} /> to{" "}
            <Length label="Most steps" value={filter.longest} set={(longest) => set({ longest })} />
          </span>
        )}
      </div>
    </form>
  );
}

function Length({ label, value, set }: { label: string; value: string; set: (value: string) => void }) {
  return <input type="number" class="short" min={0} aria-label={label} value={value} onChange={(event) => set(event.currentTarget.value)} />;
}

function Hits({ path, run, text, version }: { path: string; run: string; text: string; version: number }) {
  const { value, error, loading } = useDocument<Search>(`${path}/search`, { text }, version);
  if (error) return <p class="error" role="alert">{error}</p>;
  if (loading || !value) return <p class="note" role="status">Searching …</p>;
  const shown = value.hits.slice(0, 200);
  return (
    <details class="hits" open>
      <summary>{counted(value.steps, "step")} in {counted(value.groups, "group")}</summary>
      <ul>
        {shown.map((hit: Hit) => (
          <li>
            <a href={links.step(run, hit.trajectory, hit.step)}><Line text={hit.trajectory} most={60} /> step {hit.step}, {hit.column}</a>
            {hit.snippet && <Snippet text={hit.snippet} searched={text} />}
          </li>
        ))}
      </ul>
      {value.steps > shown.length && <p class="note">The first {shown.length} are listed.</p>}
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

/** Rollouts of all tasks in one list. */
function Rollouts({ run, route, rollouts }: { run: string; route: Route; rollouts: Rollout[] }) {
  return (
    <table class="rollouts">
      <thead><tr><th scope="col">rollout</th><th scope="col" class="figure">return</th><th scope="col" class="figure">steps</th><th scope="col" class="figure">invalid</th></tr></thead>
      <tbody>
        {rollouts.map((one) => (
          <tr key={one.trajectory} aria-current={route.trajectory === one.trajectory ? "true" : undefined}>
            <th scope="row"><Outcome of={one} /> <a href={links.step(run, one.trajectory, 0)} title={one.trajectory}><Line text={one.task ?? one.task_id} most={80} /></a></th>
            <td class="figure">{number(one.episode_return)}</td><td class="figure">{one.length}</td><td class="figure">{one.invalid || ""}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// --------------------------------------------------------------------------------------------------------- the tree

type Row = { id: string; level: number; parent: string | null; opens: boolean; link: string };

function Grid({ path, run, route, version, tasks, open, toggle }: {
  path: string; run: string; route: Route; version: number; tasks: Task[]; open: Set<string>;
  toggle: (id: string, wanted?: boolean) => void;
}) {
  const [focused, setFocused] = useState<string | null>(null);
  const body = useRef<HTMLDivElement>(null);
  const [members, setMembers] = useState<Map<number, Trajectory[]>>(new Map());

  const unit = useUnit(path, version);
  useEffect(() => setMembers(new Map()), [path, version]);
  const wanted = tasks.flatMap((task) => task.groups.filter((group) =>
    task.groups.length === 1 ? open.has(taskId(task)) : open.has(taskId(task)) && open.has(groupId(group))));
  useEffect(() => {
    for (const group of wanted) {
      if (members.has(group.number)) continue;
      get<Group>(`${path}/groups/${group.number}`).then((found) =>
        setMembers((before) => new Map(before).set(group.number, found.trajectories)), () => undefined);
    }
  }, [wanted.map((group) => group.number).join(), members]);

  const rows: Row[] = [];
  for (const task of tasks) {
    const single = task.groups.length === 1 ? task.groups[0] : undefined;
    rows.push({ id: taskId(task), level: 1, parent: null, opens: true, link: links.group(run, (single ?? task.groups[0] as GroupRow).number) });
    if (!open.has(taskId(task))) continue;
    for (const group of task.groups) {
      if (!single) rows.push({ id: groupId(group), level: 2, parent: taskId(task), opens: true, link: links.group(run, group.number) });
      if (!single && !open.has(groupId(group))) continue;
      const parent = single ? taskId(task) : groupId(group);
      for (const one of members.get(group.number) ?? []) {
        rows.push({ id: `w ${one.trajectory}`, level: single ? 2 : 3, parent, opens: false, link: links.step(run, one.trajectory, 0) });
      }
    }
  }
  const selected = route.view === "step" ? `w ${route.trajectory}` : null;
  const current = rows.some((row) => row.id === focused) ? focused : (rows.find((row) => row.id === selected)?.id ?? rows[0]?.id);

  const focus = (id: string | undefined | null) => {
    if (!id) return;
    setFocused(id);
    requestAnimationFrame(() => body.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus());
  };
  const pressed = (event: KeyboardEvent) => {
    const at = rows.findIndex((row) => row.id === current);
    const row = rows[at];
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions: Record<string, () => void> = {
      ArrowDown: () => focus(rows[at + 1]?.id),
      ArrowUp: () => focus(rows[at - 1]?.id),
      Home: () => focus(rows[0]?.id),
      End: () => focus(rows[rows.length - 1]?.id),
      ArrowRight: () => (row.opens && !open.has(row.id) ? toggle(row.id, true) : rows[at + 1]?.parent === row.id && focus(rows[at + 1]?.id)),
      ArrowLeft: () => (row.opens && open.has(row.id) ? toggle(row.id, false) : focus(row.parent)),
      Enter: () => go(row.link),
      " ": () => (row.opens ? toggle(row.id) : go(row.link)),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };
  const common = (id: string, level: number, expanded: boolean | undefined, link: string, chosen: boolean) => ({
    role: "row" as const,
    "aria-level": level,
    "aria-expanded": expanded,
    "aria-selected": chosen,
    tabIndex: id === current ? 0 : -1,
    class: `tree-row level-${level}`,
    onFocus: () => setFocused(id),
    onClick: () => { if (expanded !== undefined) toggle(id); setFocused(id); go(link); },
  });

  return (
    <div role="treegrid" aria-label="Tasks, groups and trajectories" class="grid" ref={body} onKeyDown={pressed}>
      <div role="row" class="tree-row grid-head">
        {["task", "won", "return", "length", "invalid"].map((name) => <span role="columnheader">{name}</span>)}
      </div>
      {tasks.map((task) => {
        const id = taskId(task);
        const single = task.groups.length === 1 ? task.groups[0] : undefined;
        const list = open.has(id);
        return (
          <Fragment key={id}>
            <div {...common(id, 1, list, links.group(run, (single ?? (task.groups[0] as GroupRow)).number), route.group === single?.number && route.view === "group")}>
              <span role="gridcell" class="name">
                <Arrow open={list} />
                <span><Line text={task.task ?? task.task_id} most={110} /><small><Line text={task.task_type ?? ""} most={40} /> {task.groups.length > 1 && counted(task.groups.length, "group")}</small></span>
              </span>
              <Figures of={task} />
            </div>
            {list && task.groups.map((group) => (
              <Fragment key={group.number}>
                {!single && (
                  <div {...common(groupId(group), 2, open.has(groupId(group)), links.group(run, group.number), route.view === "group" && route.group === group.number)}>
                    <span role="gridcell" class="name"><Arrow open={open.has(groupId(group))} />{unit} {group.iteration}{group.group > 0 && `, group ${group.group}`}</span>
                    <Figures of={group} />
                  </div>
                )}
                {(single || open.has(groupId(group))) && (members.get(group.number) ?? []).map((one, place) => (
                  <div key={one.trajectory} {...common(`w ${one.trajectory}`, single ? 2 : 3, undefined, links.step(run, one.trajectory, 0), selected === `w ${one.trajectory}`)}>
                    <span role="gridcell" class="name" title={one.trajectory}><Outcome of={one} /><Line text={shortNames(members.get(group.number) ?? [])[place]} most={60} /></span>
                    <span role="gridcell">{one.aborted || one.won === null ? "–" : one.won ? "1" : "0"}</span>
                    <span role="gridcell">{number(one.episode_return)}</span>
                    <span role="gridcell">{one.length}</span>
                    <span role="gridcell">{one.invalid || ""}</span>
                  </div>
                ))}
              </Fragment>
            ))}
          </Fragment>
        );
      })}
    </div>
  );
}

const taskId = (task: Task) => `t ${task.env_id} ${task.task_id}`;
const groupId = (group: GroupRow) => `g ${group.number}`;

/** The names of trajectories without the part that all of them begin with. */
export function shortNames(all: Trajectory[]): string[] {
  const names = all.map((one) => one.trajectory);
  const first = names[0] ?? "";
  let same = names.length > 1 ? first.length : 0;
  for (const name of names) while (!name.startsWith(first.slice(0, same))) same--;
  const cut = first.slice(0, same).search(/[^-/_:. ]*$/);
  return names.map((name) => (cut > 0 && name.length > cut ? `…${name.slice(cut)}` : name));
}

const Arrow = ({ open }: { open: boolean }) => <span class={`arrow ${open ? "open" : ""}`} aria-hidden="true">▸</span>;

export function Outcome({ of }: { of: Pick<Trajectory, "aborted" | "won" | "truncated"> }) {
  if (of.aborted) return <span class="mark aborted" role="img" aria-label="aborted" title="aborted">!</span>;
  if (of.won) return <span class="mark won" role="img" aria-label="won" title="won">✓</span>;
  if (of.won === null) return <span class="mark" role="img" aria-label="success unknown" title="success unknown">?</span>;
  return <span class="mark lost" role="img" aria-label={of.truncated ? "step limit" : "not won"} title={of.truncated ? "step limit" : "not won"}>{of.truncated ? "…" : "✗"}</span>;
}

function Figures({ of }: { of: Task | GroupRow }) {
  const whole = of.size - of.aborted;
  return (
    <>
      <span role="gridcell" title={`${of.won ?? "unknown number"} of ${whole} won${of.aborted ? `, ${of.aborted} aborted` : ""}`}>
        {percent(share(of.won, whole))}{of.aborted > 0 && <span class="mark aborted" role="img" aria-label={`${of.aborted} aborted`}>!</span>}
      </span>
      <span role="gridcell">{number(of.mean_return)}</span>
      <span role="gridcell">{number(of.mean_length, 1)}</span>
      <span role="gridcell">{of.invalid || ""}</span>
    </>
  );
}
