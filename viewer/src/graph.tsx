// A group's rollouts as a graph of states: columns by the fewest steps from the start, edges are actions.
import { useMemo, useState } from "preact/hooks";
import type { Estimate, Group, Trajectory } from "./documents";
import { largest } from "./estimators";
import { counted, number, shade, signed } from "./format";
import { moveFocus } from "./keys";
import { links } from "./route";
import { Line, Outcome, plain, shortNames, Wide } from "./texts";

type Node = { state: number; layer: number; place: number; visits: number; rows: number[]; value: number | null; end: "won" | "dead" | null; label: string };
type Edge = { from: number; to: number; rows: number[]; advantage: number | null; loop: boolean };
type States = { nodes: Map<number, Node>; edges: Edge[]; layers: number[][]; ends: number };

const COLUMN = 140;
const LINE = 56;
const MARGIN = 52;
const LABEL = 17;
const LEAST = 0.6; // of the size at which labels can be read: larger graphs scroll
const MOST = 600;
const LARGEST = 17; // so that neighbours in a column do not overlap

const mean = (values: (number | null | undefined)[]): number | null => {
  const known = values.filter((value): value is number => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

/** An action in a few words: its verb and object, or the tool that is called. */
export function shortAction(text: string): string {
  const call = /"name"\s*:\s*"([^"]*)"/.exec(text);
  const words = call ? `${call[1]}()` : text.replace(/\s+/g, " ").trim().replace(/^(\w+) to /, "$1 ").split(/ (?:from|with|in|into|in\/on|on|onto|to|at|using) /)[0] ?? "";
  return words.length > LABEL ? `${words.slice(0, LABEL - 1)}…` : words;
}

/** The most frequent of some values. */
function commonest(values: number[]): number | undefined {
  const counts = new Map<number, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
}

function statesOf(group: Group, estimate: Estimate | null): States {
  const { state, next, step, trajectory } = group.steps;
  const rows = new Map<number, number[]>();
  const layer = new Map<number, number>();
  const edges = new Map<string, Edge>();
  const ends = new Map<number, "won" | "dead">();
  let known = 0; // rollouts whose end and success the table contains
  state.forEach((at, row) => {
    rows.set(at, [...(rows.get(at) ?? []), row]);
    if (step[row] === 0) layer.set(at, 0);
    const to = next[row];
    if (to === null || to === undefined) return;
    const key = `${at} ${to}`;
    const edge = edges.get(key) ?? { from: at, to, rows: [], advantage: null, loop: false };
    edge.rows.push(row);
    edges.set(key, edge);
    if (trajectory[row + 1] !== trajectory[row]) {
      const one = group.trajectories[trajectory[row] as number];
      if (!one || one.aborted || one.won === null) return;
      known++;
      ends.set(to, one.won || ends.get(to) === "won" ? "won" : "dead");
    }
  });
  const waiting = [...layer.keys()];
  for (const at of waiting) {
    for (const edge of edges.values()) {
      if (edge.from !== at || layer.has(edge.to)) continue;
      layer.set(edge.to, (layer.get(at) as number) + 1);
      waiting.push(edge.to);
    }
  }
  const nodes = new Map<number, Node>();
  for (const [at, where] of layer) {
    const visits = rows.get(at) ?? [];
    const value = mean(visits.map((row) => estimate?.columns.return?.[row]));
    nodes.set(at, { state: at, layer: where, place: 0, visits: visits.length, rows: visits, value, end: ends.get(at) ?? null, label: where ? "" : "start" });
  }
  for (const edge of edges.values()) {
    edge.advantage = mean(edge.rows.map((row) => estimate?.columns.advantage?.[row]));
    edge.loop = edge.to === edge.from || (layer.get(edge.to) as number) < (layer.get(edge.from) as number);
  }
  const list = [...edges.values()];
  for (const node of nodes.values()) {
    const arriving = list.filter((edge) => edge.to === node.state && !edge.loop).flatMap((edge) => edge.rows);
    const action = commonest(arriving.map((row) => group.steps.action[row]).filter((one): one is number => typeof one === "number"));
    if (node.layer && action !== undefined) node.label = shortAction(plain(group.actions[action]));
  }
  return { nodes, edges: list, layers: placed(nodes, list), ends: known };
}

/** Order each column by the mean place of its neighbours in the columns before and after, some times. */
function placed(nodes: Map<number, Node>, edges: Edge[]): number[][] {
  const layers: number[][] = [];
  for (const node of nodes.values()) (layers[node.layer] ??= []).push(node.state);
  const settle = (layer: number[]) =>
    layer.forEach((state, at) => {
      (nodes.get(state) as Node).place = at - (layer.length - 1) / 2;
    });
  for (const layer of layers) {
    layer.sort((a, b) => (nodes.get(b) as Node).visits - (nodes.get(a) as Node).visits);
    settle(layer);
  }
  const neighbours = new Map<number, number[]>();
  for (const edge of edges) {
    for (const [one, other] of [[edge.from, edge.to], [edge.to, edge.from]] as const) neighbours.set(one, [...(neighbours.get(one) ?? []), other]);
  }
  for (let turn = 0; turn < 12; turn++) {
    const order = turn % 2 ? [...layers].reverse() : layers;
    for (const layer of order) {
      const wish = new Map(layer.map((state) => {
        const at = (nodes.get(state) as Node).layer;
        const sided = (neighbours.get(state) ?? []).filter((other) => (turn % 2 ? (nodes.get(other) as Node).layer > at : (nodes.get(other) as Node).layer < at));
        return [state, mean(sided.map((other) => (nodes.get(other) as Node).place)) ?? (nodes.get(state) as Node).place];
      }));
      layer.sort((a, b) => (wish.get(a) as number) - (wish.get(b) as number));
      settle(layer);
    }
  }
  return layers;
}

type Props = {
  run: string;
  group: Group;
  estimate: Estimate | null;
  iterations?: number[]; // of each trajectory, if the group is several groups of one task
  unit?: string; // what iterations count
};

export function Graph({ run, group, estimate, iterations, unit = "iteration" }: Props) {
  const states = useMemo(() => statesOf(group, estimate), [group, estimate]);
  const [selected, setSelected] = useState<number | null>(null);
  const [whole, setWhole] = useState(true);
  const [overlay, setOverlay] = useState("");
  if (states.nodes.size > MOST) return <p class="note">{iterations ? "These groups have" : "This group has"} {counted(states.nodes.size, "state")}, more than the {MOST} that are drawn.</p>;
  const chosenOnes = (iterations ?? group.trajectories.map((_, place) => place)).map((one) => overlay !== "" && one === Number(overlay));
  const lit = (row: number) => chosenOnes[group.steps.trajectory[row] as number] ?? false;
  const height = Math.max(...states.layers.map((layer) => layer.length)) * LINE + 2 * MARGIN;
  const width = (states.layers.length - 1) * COLUMN + 2 * MARGIN + 40;
  const at = (state: number): [number, number] => {
    const node = states.nodes.get(state) as Node;
    return [MARGIN + node.layer * COLUMN, height / 2 + node.place * LINE];
  };
  const most = Math.max(0, ...states.edges.map((edge) => Math.abs(edge.advantage ?? 0)));
  const values = [...states.nodes.values()].map((node) => node.value).filter((value): value is number => value !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const on = (edge: Edge) => edge.rows.some(lit);
  const through = (node: Node) => overlay === "" || node.rows.some(lit);
  const deadEnds = [...states.nodes.values()].filter((node) => node.end === "dead").length;
  const loops = states.edges.filter((edge) => edge.loop).length;
  const chosen = selected === null ? undefined : states.nodes.get(selected);
  return (
    <div class="graph">
      <p class="note">
        {counted(states.nodes.size, "state")}, {counted(states.edges.length, "transition")}, {counted(loops, "transition")} to an earlier or the same state (dashed),{" "}
        {states.ends ? `${counted(deadEnds, "state")} where a rollout ended without success (square)` : "where rollouts ended is unknown, because the table has no next states of their last steps or no success"}.
        A state is named by the action that most often led to it. It is larger the more often it was visited, and fuller the higher
        its mean R, the discounted and scaled return that advantages are made of. A transition has the colour of the mean advantage of its steps.
      </p>
      <label>
        Highlight {iterations ? (unit === "seed" ? "a seed" : "an iteration") : "a trajectory"}{" "}
        <select value={overlay} onChange={(event) => setOverlay(event.currentTarget.value)}>
          <option value="">all</option>
          {iterations ? iterationOptions(group, iterations, unit) : group.trajectories.map((one, place) => <option value={String(place)}>{one.won ? "✓" : one.aborted ? "!" : one.won === null ? "?" : "✗"} {one.trajectory.slice(0, 60)}</option>)}
        </select>
      </label>
      {" "}<label><input type="checkbox" checked={whole} onChange={(event) => setWhole(event.currentTarget.checked)} /> fit the window</label>
      <div class="graph-scroll" role="region" aria-label="Graph of states; its states are listed below" tabIndex={0}>
        <svg width={whole ? "100%" : width} height={whole ? undefined : height} style={whole ? { maxWidth: `${1.4 * width}px`, minWidth: `${LEAST * width}px`, maxHeight: `max(40rem, ${LEAST * height}px)` } : {}} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
          <g class="edges">
            {states.edges.map((edge) => {
              const faded = overlay !== "" && !on(edge);
              const colour = edge.advantage === null || !most ? "var(--soft)" : edge.advantage >= 0 ? "var(--plus)" : "var(--minus)";
              const strength = most ? 0.35 + 0.65 * Math.min(1, Math.abs(edge.advantage ?? 0) / most) : 0.5;
              return (
                <path
                  d={curve(at(edge.from), at(edge.to), edge)} class={edge.loop ? "loop" : ""}
                  style={{ stroke: colour, strokeWidth: 1 + 1.2 * Math.sqrt(edge.rows.length), opacity: faded ? 0.08 : strength }}
                >
                  <title>{`${counted(edge.rows.length, "step")}, mean advantage ${signed(edge.advantage)}`}</title>
                </path>
              );
            })}
          </g>
          {[...states.nodes.values()].map((node) => {
            const [x, y] = at(node.state);
            const size = Math.min(LARGEST, (node.end ? 8 : 5) + 2.2 * Math.sqrt(node.visits));
            const full = node.value === null || high === low ? 0 : (node.value - low) / (high - low);
            const style = { fill: `color-mix(in srgb, var(--plus) ${Math.round(100 * full)}%, var(--panel))`, opacity: through(node) ? 1 : 0.15 };
            return (
              <g class={`node ${selected === node.state ? "selected" : ""}`} onClick={() => setSelected(node.state)}>
                {node.end === "dead" ? <rect x={x - size} y={y - size} width={2 * size} height={2 * size} style={style} /> : <circle cx={x} cy={y} r={size} style={style} />}
                <text x={x} y={y + size + 13} class="label">{node.label}</text>
                {node.end === "won" && <text x={x} y={y + 5} class="won">✓</text>}
                <title>{`${plain(group.states[node.state] ?? null).slice(0, 300)}\n${counted(node.visits, "visit")}, mean R ${number(node.value)}`}</title>
              </g>
            );
          })}
        </svg>
      </div>
      {chosen && <StateFacts run={run} group={group} node={chosen} estimate={estimate} />}
      <details>
        <summary>States as a table</summary>
        <Wide label="States">
          <table>
            <thead><tr><th scope="col">state</th><th scope="col" class="figure">first at step</th><th scope="col" class="figure">visits</th><th scope="col" class="figure">mean R</th><th scope="col">end</th></tr></thead>
            <tbody>
              {[...states.nodes.values()].sort((a, b) => a.layer - b.layer || b.visits - a.visits).map((node) => (
                <tr>
                  <th scope="row"><button type="button" class="link" onClick={() => setSelected(node.state)}><Line text={group.states[node.state]} most={90} /></button></th>
                  <td class="figure">{node.layer}</td><td class="figure">{node.visits}</td><td class="figure">{number(node.value)}</td>
                  <td>{node.end === "won" ? "won" : node.end === "dead" ? "ended without success" : ""}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      </details>
    </div>
  );
}

function iterationOptions(group: Group, iterations: number[], unit: string) {
  return [...new Set(iterations)].map((iteration) => {
    const own = group.trajectories.filter((_, place) => iterations[place] === iteration);
    return <option value={String(iteration)}>{unit} {iteration}: {own.filter((one) => one.won).length} of {own.length} won</option>;
  });
}

function curve([x1, y1]: [number, number], [x2, y2]: [number, number], edge: Edge): string {
  if (edge.from === edge.to) return `M ${x1 - 6} ${y1 - 8} C ${x1 - 28} ${y1 - 46}, ${x1 + 28} ${y1 - 46}, ${x1 + 6} ${y1 - 8}`;
  if (x1 === x2) {
    const bow = 24 + Math.abs(y1 - y2) / 5;
    return `M ${x1} ${y1} C ${x1 + bow} ${y1}, ${x2 + bow} ${y2}, ${x2} ${y2}`;
  }
  if (x2 < x1) {
    const bow = 26 + Math.abs(x1 - x2) / 6 + Math.abs(y1 - y2) / 8;
    return `M ${x1} ${y1} C ${x1 + 20} ${y1 + bow}, ${x2 + 20} ${y2 + bow}, ${x2} ${y2}`;
  }
  const middle = (x2 - x1) / 2;
  return `M ${x1} ${y1} C ${x1 + middle} ${y1}, ${x2 - middle} ${y2}, ${x2} ${y2}`;
}

function StateFacts({ run, group, node, estimate }: { run: string; group: Group; node: Node; estimate: Estimate | null }) {
  return (
    <section class="state-facts" aria-label="Selected state" aria-live="polite">
      <div class="text" dir="auto"><Line text={group.states[node.state]} most={1200} /></div>
      <p class="note">{counted(node.visits, "visit")}, mean R {number(node.value)}</p>
      {node.rows.length > 0 && <StepTable {...{ run, group, estimate }} rows={node.rows.slice(0, 30)} />}
    </section>
  );
}

/** Some steps of a group with their actions, returns and advantages. */
export function StepTable({ run, group, rows, estimate, current }: { run: string; group: Group; rows: number[]; estimate: Estimate | null; current?: number }) {
  const most = largest(estimate);
  const names = shortNames(group.trajectories);
  return (
    <table class="members">
      <thead><tr><th scope="col">step</th><th scope="col">action</th><th scope="col" class="figure">R</th><th scope="col" class="figure">A</th></tr></thead>
      <tbody onKeyDown={moveFocus}>
        {rows.map((row) => {
          const place = group.steps.trajectory[row] as number;
          const one = group.trajectories[place] as Trajectory;
          const action = group.steps.action[row];
          const value = estimate?.columns.advantage?.[row];
          return (
            <tr class={row === current ? "own" : ""}>
              <th scope="row"><Outcome of={one} /> <a href={links.step(run, one.trajectory, group.steps.step[row] as number)} title={one.trajectory}><Line text={names[place]} most={28} /> · {group.steps.step[row]}</a></th>
              <td><Line text={action === null || action === undefined ? "" : group.actions[action]} most={80} /></td>
              <td class="figure">{number(estimate?.columns.return?.[row])}</td>
              <td class="figure" style={{ background: shade(value, most) ?? "" }}>{signed(value)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
