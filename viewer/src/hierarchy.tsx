// The hierarchy of groups of a step: level k contains the steps with the same state and the same k states before it.
import { useState } from "preact/hooks";
import type { Estimate, Group } from "./documents";
import { counted, number, shade, signed } from "./format";
import { largest } from "./estimators";
import { links } from "./route";
import { Diff, Line, Outcome, plain, shortNames, Wide } from "./texts";

const SHOWN = 12;

type Props = { run: string; group: Group; row: number; a: Estimate | null; b: Estimate | null };

export function Hierarchy({ run, group, row, a, b }: Props) {
  const levelled = [a, b].find((one) => one && "k0" in one.columns) ?? null;
  const context = levelled?.parameters.context === "states_actions" ? "states_actions" : "states";
  const asked = [a, b].map((one) => one?.parameters.history_length).find((value) => typeof value === "number");
  const contexts = group.contexts[context].slice(0, (typeof asked === "number" ? asked : 2) + 1);
  const members = membersOf(contexts, row);
  const levels = contexts.map((_, k) => members.filter((one) => one.deepest >= k));
  const steps = group.steps.step[row] as number;
  return (
    <div class="hierarchy">
      <h2>Hierarchy of groups</h2>
      <p class="note">
        Level k contains the steps of this group in the same state that came there through the same k states before
        {context === "states_actions" && " and the actions between them"}. Each level contains all those below it.
      </p>
      {contexts.map((_, k) => (
        <LevelPart
          key={k}
          {...{ run, group, row, k, a, b, levelled, context }}
          members={levels[k] ?? []}
          all={levels[0] ?? []}
          leaving={(levels[k] ?? []).filter((one) => one.deepest === k && one.row !== row)}
          exists={k <= steps}
          last={k === contexts.length - 1}
        />
      ))}
    </div>
  );
}

type Member = { row: number; deepest: number };

/** The steps that share the state, with the deepest level that they share. */
function membersOf(contexts: (number | null)[][], row: number): Member[] {
  const own = contexts.map((keys) => keys[row]);
  const found: Member[] = [];
  (contexts[0] ?? []).forEach((_, other) => {
    let deepest = -1;
    while (deepest + 1 < contexts.length) {
      const key = own[deepest + 1];
      if (key === null || key === undefined || contexts[deepest + 1]?.[other] !== key) break;
      deepest++;
    }
    if (deepest >= 0) found.push({ row: other, deepest });
  });
  return found;
}

type LevelProps = Props & {
  k: number; levelled: Estimate | null; context: string; members: Member[]; all: Member[]; leaving: Member[]; exists: boolean; last: boolean;
};

function LevelPart({ run, group, row, k, a, b, levelled, context, members, all, leaving, exists, last }: LevelProps) {
  const [whole, setWhole] = useState(false);
  const value = levelled?.columns[`k${k}`]?.[row];
  const weight = levelled?.columns[`weight_k${k}`]?.[row];
  const counting = members.filter((one) => !trajectoryOf(group, one.row)?.aborted);
  const returns = returnsOf(group, members, a);
  const mean = meanOf(returns);
  const chance = drawn(returnsOf(group, all, a), returns.length);
  const aborted = members.length - counting.length;
  const rollouts = new Set(counting.map((one) => group.steps.trajectory[one.row])).size;
  const title = k === 0 ? "same state" : k === 1 ? "and the same state before" : `and the same ${k} states before`;
  const shown = whole ? leaving : leaving.slice(0, SHOWN);
  return (
    <section class="level" aria-label={`Level ${k}`} style={{ "--level": k }}>
      <h3>
        <span class="k">k = {k}</span> {title}
      </h3>
      {!exists ? (
        <p class="note">The step has only {counted(k - 1, "state")} before it.</p>
      ) : (
        <p class="level-facts">
          {counting.length === 1 ? <strong>singleton</strong> : <strong>{counted(counting.length, "step")}</strong>} of {counted(rollouts, "rollout")}
          {aborted > 0 && ` (${aborted} of aborted ones, which do not count)`} · mean R {number(mean, 3)}
          {chance && (
            <span title={`${counted(returns.length, "step")} drawn at random from those in this state have this mean R, ± its standard deviation`}>
              {" "}(by chance {number(chance.mean, 3)} ± {number(chance.deviation, 3)})
            </span>
          )}
          {levelled && (
            <>
              {" "}· <span class="whole">A<sub>{k}</sub> <strong class="value" style={{ background: shade(value, largest(levelled, `k${k}`)) ?? "" }}>{signed(value, 3)}</strong></span>
              {" "}· <span class="whole">weight <meter min={0} max={1} value={weight ?? 0} aria-label={`Weight of level ${k}`} /> {number(weight, 2)}</span>
            </>
          )}
        </p>
      )}
      {exists && counting.length === 2 && levelled?.parameters.mode === "mean_std_norm" && (
        <p class="note">In a group of two, A<sub>{k}</sub> is +1 and −1 (or 0), whatever the returns are.</p>
      )}
      {leaving.length > 0 && (
        <Wide label={`Members, k = ${k}`}>
        <table class="members">
          <caption>{last ? "Also in this level" : `In this level, and not in k = ${k + 1}`}</caption>
          <thead>
            <tr><th scope="col">step</th><th scope="col">action</th><th scope="col" class="figure">R</th><th scope="col" class="figure">A</th><th scope="col" class="figure">B</th></tr>
          </thead>
          <tbody>
            {shown.map((one) => <MemberRows {...{ run, group, row, a, b, k, context, last }} other={one.row} />)}
          </tbody>
        </table>
        </Wide>
      )}
      {leaving.length > SHOWN && (
        <button type="button" onClick={() => setWhole(!whole)}>{whole ? "Show fewer" : `Show all ${leaving.length}`}</button>
      )}
    </section>
  );
}

const meanOf = (values: number[]): number | null =>
  values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;

/** The returns of the steps that are compared: those of rollouts that were not aborted. */
function returnsOf(group: Group, members: Member[], estimate: Estimate | null): number[] {
  return members
    .filter((one) => !trajectoryOf(group, one.row)?.aborted)
    .map((one) => estimate?.columns.return?.[one.row] ?? null)
    .filter((one): one is number => one !== null);
}

/** Mean and standard deviation of the mean of `count` values that are drawn at random, without replacement. */
function drawn(all: number[], count: number): { mean: number; deviation: number } | null {
  const mean = meanOf(all);
  if (mean === null || count < 1 || count >= all.length) return null;
  const variance = all.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (all.length - 1);
  return { mean, deviation: Math.sqrt((variance / count) * (1 - count / all.length)) };
}

const trajectoryOf = (group: Group, row: number) => group.trajectories[group.steps.trajectory[row] as number];

function MemberRows({ run, group, row, other, a, b, k, context, last }: Props & { other: number; k: number; context: string; last: boolean }) {
  const [open, setOpen] = useState(false);
  const one = trajectoryOf(group, other);
  if (!one) return null;
  const step = group.steps.step[other] as number;
  const action = group.steps.action[other];
  const values = [a, b].map((estimate) => ({ value: estimate?.columns.advantage?.[other], most: largest(estimate) }));
  return (
    <>
      <tr class={trajectoryOf(group, row) === one ? "own" : ""}>
        <th scope="row">
          <Outcome of={one} />{" "}
          <a href={links.step(run, one.trajectory, step)} title={one.trajectory}><Line text={shortNames(group.trajectories)[group.steps.trajectory[other] as number]} most={28} /> · {step}</a>
          {!last && (
            <button type="button" class="link" aria-expanded={open} onClick={() => setOpen(!open)}>
              {open ? "hide" : "what differs"}
            </button>
          )}
        </th>
        <td><Line text={action === null || action === undefined ? "" : group.actions[action]} most={60} /></td>
        <td class="figure">{number(a?.columns.return?.[other])}</td>
        {values.map(({ value, most }) => <td class="figure" style={{ background: shade(value, most) ?? "" }}>{signed(value)}</td>)}
      </tr>
      {open && (
        <tr class="difference"><td colSpan={5}><Difference {...{ group, row, other, k, context }} /></td></tr>
      )}
    </>
  );
}

/** What is different k + 1 states before, where the paths part. */
function Difference({ group, row, other, k, context }: { group: Group; row: number; other: number; k: number; context: string }) {
  const back = k + 1;
  const ours = before(group, row, back);
  const theirs = before(group, other, back);
  const ago = back === 1 ? "One step before" : `${back} steps before`;
  if (ours === null || theirs === null) {
    const whose = theirs === null ? "That rollout" : "This rollout";
    const parent = trajectoryOf(group, theirs === null ? other : row)?.parent ?? null;
    if (parent !== null) return <p>{ago}, {whose.toLowerCase()} had not left <Line text={parent} most={60} />, which has its steps before.</p>;
    return <p>{ago}, {whose.toLowerCase()} had not begun: {theirs === null ? "it" : "this one"} has only {counted(group.steps.step[theirs === null ? other : row] as number, "state")} before.</p>;
  }
  const same = group.steps.state[ours] === group.steps.state[theirs];
  const actions = [ours, theirs].map((at) => {
    const action = group.steps.action[at];
    return action === null || action === undefined ? null : (group.actions[action] ?? null);
  });
  return (
    <>
      {!same && (
        <>
          <p>{ago}, <del>this rollout</del> and <ins>that rollout</ins> were in different states:</p>
          <Diff ours={group.states[group.steps.state[ours] as number] ?? null} theirs={group.states[group.steps.state[theirs] as number] ?? null} />
        </>
      )}
      {(same || context === "states_actions" || plain(actions[0]) !== plain(actions[1])) && (
        <p>{same ? `${ago}, they were in the same state and did different things:` : "and did:"} <del><Line text={actions[0]} /></del> <ins><Line text={actions[1]} /></ins></p>
      )}
    </>
  );
}

/** The row a number of steps before a row, or null before the first row of its trajectory: a branch has no others. */
function before(group: Group, row: number, back: number): number | null {
  const first = trajectoryOf(group, row)?.branch_step ?? 0;
  return (group.steps.step[row] as number) - first >= back ? row - back : null;
}
