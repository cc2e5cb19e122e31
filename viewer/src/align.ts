// The rollouts of a group, aligned where their states agree.
import type { Group } from "./documents";

/** Comparisons of states above which rollouts are aligned by step alone. */
const MOST = 2e7;

type Column = { state: number };

/**
 * For each rollout of a group, its step in each column, or null. Rollouts are added one by one, `first` before the
 * others: each is aligned with the columns so far by a longest common subsequence of states.
 */
export function alignedSteps(group: Group, first = 0): (number | null)[][] {
  const sequences: number[][] = group.trajectories.map(() => []);
  group.steps.state.forEach((state, row) => sequences[group.steps.trajectory[row] as number]?.push(state));
  const total = group.steps.state.length;
  if (total * Math.max(...sequences.map((states) => states.length)) > MOST) {
    const longest = Math.max(...sequences.map((states) => states.length));
    return sequences.map((states) => Array.from({ length: longest }, (_, step) => (step < states.length ? step : null)));
  }
  const order = [first, ...sequences.keys()].filter((value, place, all) => all.indexOf(value) === place);
  let columns: Column[] = [];
  const columnsOf: Column[][] = [];
  for (const place of order) {
    const merged = merge(columns, sequences[place] as number[]);
    columns = merged.columns;
    columnsOf[place] = merged.own;
  }
  const at = new Map(columns.map((column, place) => [column, place]));
  return sequences.map((_, place) => {
    const row: (number | null)[] = new Array(columns.length).fill(null);
    (columnsOf[place] as Column[]).forEach((column, step) => { row[at.get(column) as number] = step; });
    return row;
  });
}

/** Columns that contain both the old ones and those of further states, in order, and the columns of these states. */
function merge(columns: Column[], states: number[]): { columns: Column[]; own: Column[] } {
  const width = states.length + 1;
  const common = new Uint16Array((columns.length + 1) * width); // of the columns from i on and the states from j on
  for (let i = columns.length - 1; i >= 0; i--) {
    for (let j = states.length - 1; j >= 0; j--) {
      common[i * width + j] = columns[i]?.state === states[j]
        ? (common[(i + 1) * width + j + 1] as number) + 1
        : Math.max(common[(i + 1) * width + j] as number, common[i * width + j + 1] as number);
    }
  }
  const all: Column[] = [];
  const own: Column[] = [];
  let i = 0;
  for (let j = 0; i < columns.length || j < states.length;) {
    const column = columns[i];
    if (column && j < states.length && column.state === states[j]) {
      all.push(column);
      own.push(column);
      i++;
      j++;
    } else if (j >= states.length || (column && (common[(i + 1) * width + j] as number) >= (common[i * width + j + 1] as number))) {
      all.push(column as Column);
      i++;
    } else {
      const added = { state: states[j] as number };
      all.push(added);
      own.push(added);
      j++;
    }
  }
  return { columns: all, own };
}

/** The step of the same trajectory at which a state was first seen, or null where it was not seen before. */
export function repeats(group: Group): (number | null)[] {
  const seen = new Map<string, number>();
  return group.steps.state.map((state, row) => {
    const key = `${group.steps.trajectory[row]} ${state}`;
    const before = seen.get(key);
    if (before === undefined) seen.set(key, group.steps.step[row] as number);
    return before ?? null;
  });
}
