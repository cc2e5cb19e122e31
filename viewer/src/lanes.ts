// The tree of a group with branches: a lane for each rollout, in which a step has the column of its number.
import type { Group } from "./documents";

/** The rollouts from the top, the steps in their columns, and the columns in which lines go on to lanes further below. */
export type Lanes = { order: number[]; places: (number | null)[][]; lines: Set<number>[] };

/** The lanes of a group; null without branches. The first column is empty: a branch can leave before step 0. */
export function lanesOf({ trajectories, tree: { order, parent } }: Group): Lanes | null {
  if (parent.every((one) => one === null)) return null;
  const first = trajectories.map((one, place) => (parent[place] === null ? 0 : (one.branch_step ?? 0)));
  const places = trajectories.map((one, place) => [...new Array<null>((first[place] as number) + 1).fill(null), ...Array(one.length).keys()]);
  const lines = trajectories.map(() => new Set<number>());
  order.forEach((place, row) => {
    const from = parent[place];
    if (from === null) return;
    // Children are sorted so that a line crosses no lane: those that leave later are nearer to their parent.
    for (let above = row - 1; order[above] !== from; above--) lines[order[above] as number]?.add(first[place] as number);
  });
  return { order, places, lines };
}

/** For each row, the rows that go on from the same node of the tree: itself, and the first steps of branches there. */
export function forksOf({ trajectories, tree: { parent }, steps }: Group): number[][] {
  const nodes = new Map<string, number[]>();
  return steps.step.map((step, row) => {
    let owner = steps.trajectory[row] as number; // of the step before
    for (let up = parent[owner]; typeof up === "number" && (trajectories[owner]?.branch_step ?? 0) >= step; up = parent[owner]) owner = up;
    const node = `${owner} ${step}`;
    const rows = nodes.get(node) ?? [];
    nodes.set(node, rows);
    rows.push(row);
    return rows;
  });
}
