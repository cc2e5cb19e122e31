// Runs side by side: results, curves, the tasks that two of them share, and what differs in their configurations.
import { useEffect, useState } from "preact/hooks";
import { Key } from "./chart";
import { CurvesPart, withTrainers } from "./curves";
import { get, useDocument } from "./data";
import type { Comparison, Group, Head, Measure, Overview, Run } from "./documents";
import { type Chosen, chosenOf, useEstimate } from "./estimators";
import { counted, flat, integer, number, percent, signed } from "./format";
import { GroupHead, Strips } from "./group";
import { Interval } from "./overview";
import { change, links } from "./route";
import { Line, Wide } from "./texts";

type Props = { runs: Run[]; place: number; settings: URLSearchParams; version: number; head: Head };

const SHARES: Measure[] = ["success", "valid", "admissible"];
const NAMES: Record<Measure, string> = {
  success: "success", score: "score", mean_return: "return", mean_length: "length", valid: "valid actions", admissible: "admissible actions",
};

const shown = (name: Measure, value: number | null) => (SHARES.includes(name) ? percent(value, 1) : number(value));

/** The documents of all runs at the same address below them; null where a run has none. */
function useEach<T>(runs: Run[], end: string, version: number): (T | null)[] {
  const [found, setFound] = useState<(T | null)[]>([]);
  useEffect(() => {
    let current = true;
    const asked = runs.map((_, place) => get<T>(`runs/${place}/${end}`).catch(() => null));
    Promise.all(asked).then((all) => current && setFound(all));
    return () => { current = false; };
  }, [runs.length, end, version]);
  return found;
}

export function ComparePage({ runs, place, settings, version, head }: Props) {
  const overviews = useEach<Overview>(runs, "overview", version);
  const named = runs.findIndex((run) => run.name === settings.get("with"));
  const other = named >= 0 && named !== place ? named : runs.findIndex((_, at) => at !== place);
  if (!overviews.length) return <p class="page" role="status">Loading …</p>;
  return (
    <article class="page overview">
      <h1>{counted(runs.length, "run")} side by side</h1>
      <Results runs={runs} overviews={overviews} />
      <CurvesPart runs={withTrainers(runs)} settings={settings} version={version} />
      {other >= 0 && (
        <section aria-label="Tasks of two runs">
          <h2>The same tasks in two runs</h2>
          <p>
            <Line text={runs[place]?.name ?? ""} /> and{" "}
            <select aria-label="The other run" value={runs[other]?.name} onChange={(event) => change({ with: event.currentTarget.value })}>
              {runs.map((run, at) => at !== place && <option value={run.name}>{run.name}</option>)}
            </select>
          </p>
          <SameTasks {...{ runs, place, other, settings, version, head }} />
        </section>
      )}
      <Configurations runs={runs} overviews={overviews} />
    </article>
  );
}

function Results({ runs, overviews }: { runs: Run[]; overviews: (Overview | null)[] }) {
  const measures = ["mean_return", "mean_length", "valid"] as const;
  return (
    <Wide label="Results of the runs">
      <table>
        <thead>
          <tr>
            <th scope="col">run</th><th scope="col" class="figure">success</th><th scope="col">with its 95% interval</th>
            {measures.map((name) => <th scope="col" class="figure">{NAMES[name]}</th>)}
            <th scope="col" class="figure">tasks</th><th scope="col" class="figure">rollouts</th><th scope="col" class="figure">iterations, seeds</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run, at) => {
            const of = overviews[at]?.total;
            return (
              <tr>
                <th scope="row" class="whole"><Key at={at} /> <a href={links.overview(run.name)}><Line text={run.name} most={40} /></a></th>
                {!of ? <td colSpan={8} class="none">cannot be read</td> : (
                  <>
                    <td class="figure">{percent(of.success, 1)}</td><td><Interval of={of} colour={`var(--curve-${at % 6})`} /></td>
                    {measures.map((name) => {
                      const interval = of.intervals[name];
                      return <td class="figure">{shown(name, of[name])}{interval && <small>({shown(name, interval[0])} to {shown(name, interval[1])})</small>}</td>;
                    })}
                    <td class="figure">{integer(of.tasks)}</td><td class="figure">{integer(of.episodes)}</td><td class="figure">{counted(overviews[at]?.iterations.length ?? 0, overviews[at]?.evaluation ? "seed" : "iteration")}</td>
                  </>
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
    </Wide>
  );
}

type TasksProps = Props & { other: number };

function SameTasks({ runs, place, other, settings, version, head }: TasksProps) {
  const { value, error } = useDocument<Comparison>(`runs/${place}/against/${other}`, {}, version);
  const [open, setOpen] = useState<string | null>(null);
  if (error) return <p class="error" role="alert">{error}</p>;
  if (!value) return <p role="status">Comparing …</p>;
  if (!value.total) return <p class="none">The runs have no task in common.</p>;
  const names = [place, other].map((at) => runs[at]?.name ?? "");
  return (
    <>
      <ul class="sentences">
        {(Object.keys(NAMES) as Measure[]).map((name) => {
          const of = value.differences[name];
          const change = (amount: number) => (SHARES.includes(name) ? `${signed(100 * amount, 1)} points` : signed(amount));
          return of && (
            <li>
              {NAMES[name]}: <strong>{change(of.difference)}</strong> in <Line text={names[1]} most={40} />
              {of.low !== null && of.high !== null && ` (95%: ${change(of.low)} to ${change(of.high)})`}; higher in {of.better} of {counted(of.tasks, "task")}, lower in {of.worse}
            </li>
          );
        })}
      </ul>
      <Wide label="Common tasks">
        <table>
          <caption>{counted(value.total, "common task")}{value.total > value.tasks.length && `, of which ${value.tasks.length}`}, those with the largest difference in success first</caption>
          <thead>
            <tr><th scope="col">task</th>{["success", "length"].flatMap((what) => names.map((name) => <th scope="col" class="figure">{what}, <Line text={name} most={16} /></th>))}</tr>
          </thead>
          <tbody>
            {value.tasks.map((task) => (
              <tr>
                <th scope="row"><button type="button" class="link" aria-expanded={open === task.task_id} onClick={() => setOpen(open === task.task_id ? null : task.task_id)}><Line text={task.task || task.task_id} most={90} /></button></th>
                {task.sides.map((side) => <td class="figure">{percent(side.success)}</td>)}
                {task.sides.map((side) => <td class="figure">{number(side.mean_length, 1)}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      {value.tasks.filter((task) => task.task_id === open).map((task) => [place, other].map((at, side) => (
        <OneGroup path={`runs/${at}`} run={names[side] ?? ""} at={task.sides[side]?.number ?? 0} version={version} chosen={chosenOf(settings, runs[at] as Run, head)[0] as Chosen} />
      )))}
    </>
  );
}

/** The first group of a task in a run. */
function OneGroup({ path, run, at, version, chosen }: { path: string; run: string; at: number; version: number; chosen: Chosen }) {
  const group = useDocument<Group>(`${path}/groups/${at}`, {}, version);
  const estimate = useEstimate(path, at, chosen, version);
  if (group.error) return <p class="error" role="alert">{group.error}</p>;
  if (!group.value) return <p role="status">Loading …</p>;
  return (
    <section aria-label={`The task in ${run}`} class="level">
      <p class="note">{run}</p>
      <GroupHead {...{ path, run, version }} group={group.value} />
      <Strips run={run} group={group.value} estimate={estimate.value} />
    </section>
  );
}

// ----------------------------------------------------------------------------------------------------- configurations

function Configurations({ runs, overviews }: { runs: Run[]; overviews: (Overview | null)[] }) {
  const values = overviews.map((of) => flat(of?.config ?? {}));
  const names = [...new Set(values.flatMap((of) => [...of.keys()]))].sort();
  const different = names.filter((name) => new Set(values.map((of) => of.get(name))).size > 1);
  return (
    <section aria-label="Configurations">
      <h2>What differs in the configurations</h2>
      {!different.length ? <p class="none">Nothing: the {counted(names.length, "setting")} are the same, or the runs name none.</p> : (
        <Wide label="Differences of configurations">
          <table>
            <thead><tr><th scope="col">setting</th>{runs.map((run) => <th scope="col"><Line text={run.name} most={30} /></th>)}</tr></thead>
            <tbody>
              {different.map((name) => (
                <tr><th scope="row"><Line text={name} /></th>{values.map((of) => <td><Line text={of.get(name) ?? "–"} most={200} /></td>)}</tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
      <p class="note">{counted(names.length - different.length, "setting")} {names.length - different.length === 1 ? "is" : "are"} the same.</p>
    </section>
  );
}
