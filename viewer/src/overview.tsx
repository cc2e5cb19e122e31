// What a run contains, and how it went.
import { useState } from "preact/hooks";
import { Chart } from "./chart";
import { isFile, useDocument } from "./data";
import { CurvesPart, withTrainers } from "./curves";
import type { Bounds, Curves, Head, Level, Levels, Overview, Results, Run } from "./documents";
import { counted, flat, integer, number, percent } from "./format";
import { quoted } from "./filter";
import { links } from "./route";
import { Line, Marked, Wide } from "./texts";

type Props = { path: string; run: Run; runs: Run[]; settings: URLSearchParams; version: number; pick: (iteration: string) => void };

export function OverviewPage({ path, run: { name: run, path: folder, trainer }, runs, settings, version, pick }: Props) {
  const overview = useDocument<Overview>(`${path}/overview`, {}, version, path);
  const curves = useDocument<Curves>(`${path}/curves`, {}, version, path);
  if (overview.error) return <p class="error page" role="alert">{overview.error}</p>;
  if (!overview.value) return <p class="page" role="status">Loading …</p>;
  const seen = overview.value;
  const played = runs.filter((one) => one.trainer === run);
  const several = seen.iterations.length > 1;
  return (
    <article class="page overview">
      <div class="head">
        <h1><Line text={run} /></h1>
        <p class="note"><bdi><Marked text={folder} /></bdi></p>
      </div>
      <dl class="tiles">
        <Tile name="success" value={percent(seen.total.success, 1)} note={interval(seen.total)} />
        {seen.total.score !== null && seen.total.score !== seen.total.success && <Tile name="score" value={number(seen.total.score, 3)} />}
        <Tile name="mean return" value={number(seen.total.mean_return, 3)} />
        <Tile name="mean length" value={number(seen.total.mean_length, 1)} note="steps" />
        <Tile name="invalid actions" value={percent(invalid(seen.total), 1)} note="by their form" />
        {seen.total.admissible !== null && <Tile name="admissible actions" of="admissible" value={percent(seen.total.admissible, 1)} />}
        <Tile name="rollouts" of="trajectories" value={integer(seen.total.episodes)} note={`${counted(seen.total.tasks, "task")}, ${counted(seen.groups, "group")}`} />
        <Tile name="steps" value={integer(seen.total.steps)} note={several ? counted(seen.iterations.length, seen.evaluation ? "seed" : "iteration") : counted(seen.files, "file")} />
        {seen.total.aborted > 0 && <Tile name="aborted" value={integer(seen.total.aborted)} note="rollouts" />}
      </dl>
      {seen.total.bounds && (
        <p class="note">
          Success is {percent(seen.total.bounds[0], 1)} if the aborted rollouts are lost, {percent(seen.total.bounds[1], 1)} if they are won. Aborted by number of
          steps: {seen.lengths.map((one) => `${one.steps}: ${percent(one.aborted / one.episodes)} of ${one.episodes}`).join(" · ")}.
        </p>
      )}
      <p class="row">
        <a class="button" href={links.rollouts(run)}>Look at the rollouts</a>
        {trainer && <span>policy trained in <a href={links.overview(trainer)}><Line text={trainer} most={60} /></a></span>}
        {played.length > 0 && <span>evaluations of this training: {played.map((one) => <><a href={links.overview(one.name)}><Line text={one.name} most={60} /></a> </>)}</span>}
      </p>
      <Outcomes of={seen} />
      {several && seen.evaluation && curves.value && <Seeds curves={curves.value} pick={pick} />}
      <CurvesPart runs={withTrainers(runs).filter((one) => one.path === path)} {...{ settings, version, pick }} />
      <TaskTypes of={seen} run={run} />
      <LevelsPart path={path} version={version} pick={pick} steps={seen.total.steps} curves={!seen.evaluation} />
      <Configuration of={seen} />
    </article>
  );
}

const invalid = (of: Results): number | null => (of.valid === null ? null : 1 - of.valid);

const interval = ({ intervals: { success }, tasks }: Results): string =>
  success ? `95%: ${percent(success[0], 1)} to ${percent(success[1], 1)} (${counted(tasks, "task")})` : "";

function Tile({ name, value, note, of }: { name: string; value: string; note?: string; of?: string }) {
  const definition = useDocument<Head>("runs").value?.definitions.summary[of ?? name.replace(" ", "_")];
  return <div title={definition?.text}><dt>{name}</dt><dd>{value}</dd>{note && <dd class="note">{note}</dd>}</div>;
}

function Outcomes({ of }: { of: Overview }) {
  const { none, partly, all } = of.outcomes;
  const whole = none + partly + all;
  if (!whole) return null;
  const parts = [["never won", none, "lost"], ["won in part", partly, "partly"], ["always won", all, "won"]] as const;
  return (
    <section aria-label="Outcomes of groups">
      <h2>Groups by outcome</h2>
      <div class="stack" aria-hidden="true">
        {parts.map(([, count, kind]) => count > 0 && <span class={kind} style={{ flexGrow: count }} />)}
      </div>
      <p class="note">
        {parts.map(([name, count, kind]) => (
          <span class="keyed"><span class={`key ${kind}`} aria-hidden="true" /> {name}: {counted(count, "group")} ({percent(count / whole)})</span>
        ))}
      </p>
      <p class="note">
        Where rewards are 0 or 1, the rollouts of a group have different undiscounted returns only if it is won in part.
      </p>
    </section>
  );
}

function TaskTypes({ of, run }: { of: Overview; run: string }) {
  if (of.task_types.length < 2) return null;
  const aborted = of.total.aborted > 0;
  return (
    <section aria-label="Task types">
      <h2>By task type</h2>
      <Wide label="Results by task type">
        <table>
          <thead>
            <tr>
              <th scope="col">type</th><th scope="col" class="figure">tasks</th><th scope="col" class="figure">rollouts</th>
              <th scope="col" class="figure">success</th><th scope="col">with its 95% interval</th><th scope="col" class="figure">return</th>
              <th scope="col" class="figure">length</th><th scope="col" class="figure">invalid</th><th scope="col" class="figure">admissible</th>{aborted && <th scope="col" class="figure">aborted</th>}
            </tr>
          </thead>
          <tbody>
            {of.task_types.map((kind) => (
              <tr>
                <th scope="row"><a href={links.rollouts(run, { filter: kind.task_type === null ? "type = null" : `type = ${quoted(kind.task_type)}` })}><Line text={kind.task_type ?? "unknown"} most={50} /></a></th>
                <td class="figure">{integer(kind.tasks)}</td>
                <td class="figure">{integer(kind.episodes)}</td>
                <td class="figure">{percent(kind.success, 1)}</td>
                <td><Interval of={kind} /></td>
                <td class="figure">{number(kind.mean_return)}</td>
                <td class="figure">{number(kind.mean_length, 1)}</td>
                <td class="figure">{percent(invalid(kind), 1)}</td>
                <td class="figure">{percent(kind.admissible, 1)}</td>
                {aborted && <td class="figure">{kind.aborted || ""}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      <p class="note">The intervals take tasks, not rollouts, as independent.</p>
    </section>
  );
}

export function Interval({ of, colour }: { of: Results; colour?: string }) {
  if (!of.intervals.success || of.success === null) return <>–</>;
  const [low, high] = of.intervals.success;
  return (
    <><svg class="interval" viewBox="0 0 120 14" aria-hidden="true" style={{ color: colour ?? "var(--plus)" }}>
      <line x1="1" x2="119" y1="7" y2="7" class="axis" />
      <line x1={1 + 118 * low} x2={1 + 118 * high} y1="7" y2="7" class="range" />
      <circle cx={1 + 118 * of.success} cy="7" r="4" />
    </svg> <small>{percent(low, 1)} to {percent(high, 1)}</small></>
  );
}

/** The seeds of an evaluation, which have no order: a row each, and no curve. */
function Seeds({ curves, pick }: { curves: Curves; pick: (iteration: string) => void }) {
  return (
    <section aria-label="Seeds">
      <h2>By seed</h2>
      <Wide label="Results by seed">
        <table>
          <thead>
            <tr><th scope="col">seed</th><th scope="col" class="figure">success</th><th scope="col">with its 95% interval</th><th scope="col" class="figure">return</th><th scope="col" class="figure">length</th></tr>
          </thead>
          <tbody>
            {curves.results.map((one) => (
              <tr>
                <th scope="row"><button type="button" class="link" onClick={() => pick(String(one.iteration))}>{one.iteration}</button></th>
                <td class="figure">{percent(one.success, 1)}</td><td><Interval of={one} /></td>
                <td class="figure">{number(one.mean_return)}</td><td class="figure">{number(one.mean_length, 1)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

const share1 = (value: number | null) => percent(value, 1);

const LEVEL_ROWS: [string, (value: number | null) => string][] = [
  ["shared", share1], ["cross", share1], ["mean_size", number], ["step_size", number], ["differing", share1], ["flat", share1],
  ["weight", (value) => number(value, 3)], ["explained", share1], ["sign_disagreement", share1],
];

/** Steps of a run for which chance is computed without being asked for: more take longer than seconds. */
const MOST_STEPS = 200_000;

type LevelsProps = { path: string; version: number; pick: (iteration: string) => void; steps: number; curves: boolean };

function LevelsPart({ path, version, pick, steps, curves }: LevelsProps) {
  const definitions = useDocument<Head>("runs").value?.definitions;
  const [asked, setAsked] = useState(false);
  const [changed, setChanged] = useState(false);
  const wanted = asked || isFile || steps <= MOST_STEPS;
  const first = useDocument<Levels>(`${path}/levels`, {}, version, path);
  const full = useDocument<Levels>(wanted && first.value && !first.value.problem ? `${path}/levels` : null, { chance: "1" }, version, `${path} chance`);
  const value = full.value ?? first.value;
  const problem = first.error ?? full.error ?? value?.problem;
  const levels = (changed ? value?.levels_changed : value?.levels) ?? [];
  const intervals = changed ? value?.intervals_changed : value?.intervals;
  return (
    <section aria-label="Shared contexts" aria-busy={first.loading}>
      <h2>Shared contexts by level</h2>
      {problem && <p class="error" role="alert">{problem}</p>}
      {!value && !problem && <p role="status">Computing …</p>}
      {value && value.levels.length > 0 && (
        <>
          {value.levels_changed.length > 0 && (
            <label><input type="checkbox" checked={changed} onChange={(event) => setChanged(event.currentTarget.checked)} /> without replies to actions that changed nothing</label>
          )}
          <Wide label="Levels">
            <table class="levels">
              <thead><tr><th scope="col">k</th>{levels.map((level) => <th scope="col" class="figure">{String(level.level)}</th>)}</tr></thead>
              <tbody>
                {LEVEL_ROWS.map(([name, format]) => (
                  <tr>
                    <th scope="row" title={definitions?.levels[name]?.text}>{definitions?.levels[name]?.label ?? name}</th>
                    {levels.map((level: Level) => (
                      <LevelCell value={level[name] as number | null} format={format} bounds={intervals?.[name]?.[String(level.level)]} />
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
          <p class="note" aria-live="polite">
            “oracle” is the whole history.{" "}
            In parentheses 95% intervals over tasks{value.tasks < 6 && ", which need six tasks"}.{" "}
            {!wanted && <button type="button" onClick={() => setAsked(true)}>Compute what chance alone would give</button>}
            {full.loading && "Computing what chance alone would give …"}
            {value.permutations > 0 && (
              <>
                “chance”: the same figure if returns are permuted among the rollouts that visit a state, so that histories have no influence ({counted(value.permutations, "permutation")}).
                Only a figure whose interval does not contain chance is a finding; it is marked with ◆.
              </>
            )}
          </p>
          <table>
            <caption>States with most pairs of steps at the same state</caption>
            <thead><tr><th scope="col">state</th><th scope="col" class="figure">of pairs</th><th scope="col" class="figure">of steps</th></tr></thead>
            <tbody>
              {value.states.map((one) => (
                <tr><th scope="row"><Line text={one.state} most={60} /></th><td class="figure">{percent(one.pairs, 1)}</td><td class="figure">{percent(one.steps, 1)}</td></tr>
              ))}
            </tbody>
          </table>
          <ul class="sentences">{value.sentences.map((sentence) => <li>{sentence}</li>)}</ul>
        </>
      )}
      {curves && value?.by_iteration.shared && value.by_iteration.iterations && (
        <Chart
          title="Steps that share a context, by level" share pick={pick} xs={value.by_iteration.iterations}
          curves={Object.entries(value.by_iteration.shared).map(([level, values]) => ({ name: level === "oracle" ? "whole history" : `k = ${level}`, values }))}
        />
      )}
    </section>
  );
}

/** A figure with its interval and with what chance gives. */
function LevelCell({ value, format, bounds }: { value: number | null; format: (value: number | null) => string; bounds?: Bounds | undefined }) {
  const { low, high, chance } = bounds ?? { low: null, high: null, chance: null };
  const known = value !== null && low !== null && high !== null && format(low) !== format(high);
  const beyond = known && chance !== null && (chance < low || chance > high);
  return (
    <td class="figure">
      {format(value)}{beyond && <span role="img" aria-label="beyond chance" title="the interval does not contain chance"> ◆</span>}
      {known && <small>({format(low)} to {format(high)})</small>}
      {value !== null && chance !== null && <small>chance {format(chance)}</small>}
    </td>
  );
}

function Configuration({ of }: { of: Overview }) {
  return (
    <details>
      <summary>Configuration</summary>
      <dl class="facts">
        <div><dt>environment</dt><dd>{of.environments.join(", ") || "unknown"} ({of.splits.join(", ") || "split unknown"})</dd></div>
        <div><dt>stored contexts</dt><dd>to depth {of.depth}</dd></div>
        <div><dt>files</dt><dd>{of.files}</dd></div>
        {[...flat(of.config)].map(([name, value]) => <div><dt><Line text={name} /></dt><dd><Line text={value} most={2000} /></dd></div>)}
      </dl>
    </details>
  );
}
