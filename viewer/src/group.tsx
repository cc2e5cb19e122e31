// A group of rollouts: its trajectories side by side, or its graph of states.
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { alignedSteps, repeats } from "./align";
import { useDocument } from "./data";
import { numbered } from "./documents";
import type { Estimate, Group, Overview, Trajectory } from "./documents";
import { type Chosen, largest, useEstimate } from "./estimators";
import { counted, number, percent, shade, signed } from "./format";
import { Graph } from "./graph";
import { moveFocus, onKey } from "./keys";
import { lanesOf } from "./lanes";
import { change, go, links, type Tab } from "./route";
import { Line, Marked, Outcome, plain, shortNames, Wide } from "./texts";
import { useGroupsOfTask, useWholeTask } from "./whole_task";

type Props = { path: string; run: string; version: number; number: number; tab: Tab; chosen: Chosen[]; colours: number };

export function GroupPage({ path, run, version, number: at, tab, chosen, colours: which }: Props) {
  const unit = useUnit(path, version);
  const group = useDocument<Group>(`${path}/groups/${at}`, {}, version);
  const estimate = useEstimate(path, at, chosen[which] as Chosen, version);
  const groups = useGroupsOfTask(path, group.value, version);
  const whole = useWholeTask(path, tab === "task-graph" ? groups : null, chosen[which] as Chosen, version);
  useLayoutEffect(() => {
    const first = group.value?.trajectories[0];
    return onKey({
      g: () => go(links.group(run, at)),
      s: () => go(links.graph(run, at)),
      j: () => first && go(links.step(run, first.trajectory, 0)),
    });
  });
  if (group.error) return <p class="error page" role="alert">{group.error}</p>;
  if (!group.value) return <p class="page" role="status">Loading …</p>;
  const found = group.value;
  const problem = estimate.error ?? whole.error;
  return (
    <article class="page">
      <GroupHead path={path} run={run} version={version} group={found} />
      <div class="row tools">
        <nav class="tabs" aria-label="Of this group">
          <a href={links.group(run, at)} aria-current={tab === "trajectories" ? "page" : undefined}>{found.trajectories.some((one) => one.parent !== null) ? "Tree of rollouts" : "Trajectories"}</a>
          <a href={links.graph(run, at)} aria-current={tab === "graph" ? "page" : undefined}>Graph of states</a>
          {groups.length > 1 && (
            <a href={links.taskGraph(run, at)} aria-current={tab === "task-graph" ? "page" : undefined}>Graph of all {groups.length} groups</a>
          )}
        </nav>
        <label>
          colours: advantages of{" "}
          <select value={String(which)} onChange={(event) => change({ colours: event.currentTarget.value === "1" ? "b" : null })}>
            {chosen.map((one, place) => <option value={String(place)}>{"AB"[place]}: {one.name}</option>)}
          </select>
        </label>
        <Legend most={largest(tab === "task-graph" ? (whole.value?.estimate ?? null) : estimate.value)} />
      </div>
      {problem && <p class="error" role="alert">{problem}</p>}
      {tab === "trajectories" && <Strips run={run} group={found} estimate={estimate.value} />}
      {tab === "graph" && <Graph run={run} group={found} estimate={estimate.value} />}
      {tab === "task-graph" && !whole.value && !problem && <p role="status">Loading {counted(groups.length, "group")} …</p>}
      {tab === "task-graph" && whole.value && (
        <>
          <p class="note">
            {whole.value.combined < whole.value.total ? `${whole.value.combined} of the ${whole.value.total}` : `All ${whole.value.total}`} groups of this
            task in the run, {counted(whole.value.group.trajectories.length, "rollout")}. Advantages are those in each group.
          </p>
          <Graph run={run} group={whole.value.group} estimate={whole.value.estimate} iterations={whole.value.iterations} unit={unit} />
        </>
      )}
    </article>
  );
}

/** What the column iteration counts in a run. */
const useUnit = (path: string, version: number): string => (useDocument<Overview>(`${path}/overview`, {}, version).value?.evaluation ? "seed" : "iteration");

type HeadProps = { path: string; run: string; version: number; group: Group; inner?: preact.ComponentChildren };

export function GroupHead({ path, run, version, group, inner }: HeadProps) {
  const unit = useUnit(path, version);
  const whole = group.rollouts;
  return (
    <div class="head">
      <p class="crumbs">
        <span class="back"><a href={links.rollouts(run)}>Rollouts</a> › </span>
        <a href={links.group(run, group.number)}>
          {unit} {group.iteration}{group.group > 0 && `, group ${group.group}`}
        </a>
        {inner}
      </p>
      <h1><Marked text={plain(group.task ?? group.task_id)} /></h1>
      <p class="note">
        <bdi><Marked text={group.task_id} /></bdi>
        {group.task_type && <> · <Line text={group.task_type} most={60} /></>} · {group.won === null ? "success unknown" : `${group.won} of ${whole} won`}
        {group.won !== null && whole > 0 && ` (${percent(group.won / whole)})`} · mean return {number(group.mean_return)} · {counted(group.rows, "step")}
        {group.invalid > 0 && ` · ${counted(group.invalid, "invalid action")}`}
        {group.aborted > 0 && ` · ${group.aborted} aborted`}
      </p>
    </div>
  );
}

export function Legend({ most }: { most: number }) {
  return (
    <span class="legend" aria-hidden="true">
      {[-1, -0.5, 0, 0.5, 1].map((part) => <span style={{ background: shade(part * most, most) ?? "" }}>{signed(part * most, 1)}</span>)}
    </span>
  );
}

type StripsProps = { run: string; group: Group; estimate: Estimate | null; current?: { trajectory: number; step: number } };

/**
 * The rollouts below each other, each step in the colour of its advantage: aligned where their states agree, or as lanes
 * that leave their parents if there are branches.
 */
export function Strips({ run, group, estimate, current }: StripsProps) {
  const names = shortNames(group.trajectories);
  const first = current?.trajectory ?? 0;
  const lanes = useMemo(() => lanesOf(group), [group]);
  const places = useMemo(() => lanes?.places ?? alignedSteps(group, first), [group, lanes, first]);
  const again = useMemo(() => repeats(group), [group]);
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = scroller.current;
    const cell = element?.querySelector<HTMLElement>("[aria-current]");
    if (!element || !cell) return;
    const [inner, outer] = [cell.getBoundingClientRect(), element.getBoundingClientRect()];
    element.scrollLeft += inner.left - outer.left - element.clientWidth / 2;
    element.scrollTop += inner.top - outer.top - element.clientHeight / 2;
  }, [current?.trajectory, current?.step, places]);
  const order = lanes?.order ?? [...new Set([first, ...group.trajectories.keys()])];
  const figures: [string, (one: Trajectory) => string][] = [
    ["return", (one) => number(one.episode_return)], ["steps", (one) => String(one.length)],
    lanes ? ["first A", (one) => signed(estimate?.columns.advantage?.[one.row - group.row])] : ["invalid", (one) => String(one.invalid || "")],
  ];
  return (
    <>
      <Wide label="Trajectories" element={scroller} tall={lanes !== null}>
        <table class={lanes ? "strips lanes" : "strips"}>
          <thead>
            <tr>
              <th scope="col">trajectory</th>{!current && figures.map(([name]) => <th scope="col" class="figure">{name}</th>)}
              <th scope="col">{lanes ? <Axis places={places} /> : "advantage of each step"}</th>
            </tr>
          </thead>
          <tbody onKeyDown={moveFocus}>
            {order.map((place) => {
              const one = group.trajectories[place] as Trajectory;
              const name = lanes && one.parent !== null ? `↳ ${one.trajectory.replace(one.parent, "").replace(/^\W+/, "")}` : names[place];
              return (
                <tr class={place === current?.trajectory ? "own" : ""}>
                  <th scope="row"><Outcome of={one} /> <a href={links.step(run, one.trajectory, one.branch_step ?? 0)} title={one.trajectory}><Line text={name} most={current ? 14 : 40} /></a>
                    {one.error !== null && !current && <p class="error" title={plain(one.error)}><Line text={one.error} /></p>}
                  </th>
                  {!current && figures.map(([, figure]) => <td class="figure">{figure(one)}</td>)}
                  <td>
                    <Strip
                      {...{ run, group, one, estimate, again }} steps={places[place] ?? []} lines={lanes?.lines[place]}
                      current={place === current?.trajectory ? current.step : undefined}
                    />
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Wide>
      <p class="note">
        {lanes ? "A branch leaves its parent after the steps that both share. + and − are the signs of advantages; first A is that of the first step that a rollout has alone. " : "Steps in one column are in the same state. "}
        Dashed: invalid action. Underlined: a state that the rollout was in before.
      </p>
    </>
  );
}

/** The numbers of steps above lanes. */
function Axis({ places }: { places: (number | null)[][] }) {
  const most = Math.max(...places.map((steps) => steps.length)) - 1;
  return <span class="strip"><span class="gap">step</span>{Array.from({ length: most }, (_, step) => <span class="gap" aria-hidden="true">{step}</span>)}</span>;
}

type StripProps = {
  run: string; group: Group; one: Trajectory; estimate: Estimate | null; again: (number | null)[]; steps: (number | null)[];
  lines: Set<number> | undefined; current: number | undefined;
};

function Strip({ run, group, one, estimate, again, steps, lines, current }: StripProps) {
  const most = largest(estimate);
  const first = one.row - group.row;
  return (
    <span class="strip">
      {steps.map((step, column) => {
        const leaves = one.parent !== null && steps[column + 1] === 0;
        if (step === null) return <span class={lines ? `gap ${lines.has(column) ? "line" : ""} ${leaves ? "leaves" : ""}` : "gap"} />;
        const row = first + step;
        const value = estimate?.columns.advantage?.[row] ?? null;
        const action = group.steps.action[row];
        const text = action === null || action === undefined ? "no action" : plain(group.actions[action]).slice(0, 80);
        const marks = [!group.steps.valid[row] && "invalid", again[row] !== null && "again"].filter(Boolean);
        const said = marks.map((mark) => `, ${mark === "again" ? `the state of step ${again[row]}` : mark}`).join("");
        return (
          <a
            href={links.step(run, one.trajectory, numbered(one, step))} tabIndex={-1} style={{ background: shade(value, most) ?? "" }}
            class={marks.join(" ")} aria-current={current === step ? "step" : undefined}
            title={`step ${numbered(one, step)}: ${text}${said}, advantage ${signed(value)}`}
            aria-label={`step ${numbered(one, step)}, advantage ${signed(value)}${said}`}
          >
            {lines ? signed(value).replace(/[\d.]+|–/, "") : numbered(one, step)}
          </a>
        );
      })}
      {lines && <span aria-hidden="true"><Outcome of={one} /></span>}
    </span>
  );
}
