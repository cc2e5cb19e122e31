// All groups of a task, of every iteration of a run, as one group: for the graph of its states.
import { useEffect, useState } from "preact/hooks";
import { get, useDocument } from "./data";
import type { Estimate, Group, Rollouts, Series, Text } from "./documents";
import { asQuery, type Chosen } from "./estimators";

/** Groups that are combined at most; of more, as many are taken at equal distances. */
export const MOST_GROUPS = 60;

/** The groups of one task, with the iteration of each trajectory. */
export type WholeTask = { group: Group; estimate: Estimate; iterations: number[]; combined: number; total: number };

export type Loading = { value: WholeTask | null; error: string | null };

/** The numbers of all groups of a group's task, in the order of the table. */
export function useGroupsOfTask(path: string, group: Group | null, version: number): number[] {
  const found = useDocument<Rollouts>(group && `${path}/rollouts`, {}, version).value;
  const task = found?.tasks.findIndex((one) => one.task_id === group?.task_id && (one.env_id ?? null) === (group?.env_id ?? null));
  const numbers = found?.columns.number.filter((_, at) => found.columns.task[at] === task) ?? [];
  return [...new Set(numbers)].sort((one, other) => one - other);
}

/** The combined groups with the advantages of an estimator, which is computed in each of them; null while it loads. */
export function useWholeTask(path: string, numbers: number[] | null, chosen: Chosen, version: number): Loading {
  const [found, setFound] = useState<Loading & { key: string }>({ value: null, error: null, key: "" });
  const key = JSON.stringify([path, numbers, chosen, version]);
  useEffect(() => {
    if (numbers === null || !numbers.length) return;
    let current = true;
    const taken = spread(numbers, MOST_GROUPS);
    const groups = Promise.all(taken.map((at) => get<Group>(`${path}/groups/${at}`)));
    const estimates = Promise.all(taken.map((at) => get<Estimate>(`${path}/groups/${at}/estimates`, asQuery(chosen))));
    Promise.all([groups, estimates]).then(
      ([all, estimated]) => current && setFound({ value: combined(all, estimated, numbers.length), error: null, key }),
      (error: Error) => current && setFound({ value: null, error: error.message, key }),
    );
    return () => {
      current = false;
    };
  }, [key]);
  return found.key === key ? found : { value: null, error: null };
}

/** At most so many of some values, at equal distances, the first and the last included. */
function spread(values: number[], most: number): number[] {
  if (values.length <= most) return values;
  return Array.from({ length: most }, (_, at) => values[Math.round((at * (values.length - 1)) / (most - 1))] as number);
}

function combined(groups: Group[], estimates: Estimate[], total: number): WholeTask {
  const first = groups[0] as Group;
  const states = new Distinct();
  const actions = new Distinct();
  const steps: Group["steps"] = { trajectory: [], step: [], state: [], next: [], action: [], valid: [], reward: [], score: [] };
  const columns: Record<string, Series> = { advantage: [], return: [] };
  const trajectories: Group["trajectories"] = [];
  const iterations: number[] = [];
  groups.forEach((group, place) => {
    const stateAt = group.states.map((text) => states.add(text));
    const actionAt = group.actions.map((text) => actions.add(text));
    const before = trajectories.length;
    for (const one of group.trajectories) {
      trajectories.push(one);
      iterations.push(group.iteration);
    }
    const at = (numbers: number[], value: number | null) => (value === null ? null : (numbers[value] ?? null));
    for (const value of group.steps.trajectory) steps.trajectory.push(before + value);
    for (const value of group.steps.state) steps.state.push(stateAt[value] as number);
    for (const value of group.steps.next) steps.next.push(at(stateAt, value));
    for (const value of group.steps.action) steps.action.push(at(actionAt, value));
    steps.step.push(...group.steps.step);
    steps.valid.push(...group.steps.valid);
    steps.reward.push(...group.steps.reward);
    steps.score.push(...group.steps.score);
    for (const [name, values] of Object.entries(columns)) {
      const estimated = estimates[place]?.columns[name];
      for (let row = 0; row < group.rows; row++) values.push(estimated?.[row] ?? null);
    }
  });
  const estimate = { ...(estimates[0] as Estimate), columns };
  const group = { ...first, states: states.texts, actions: actions.texts, trajectories, steps, rows: steps.state.length };
  return { group, estimate, iterations, combined: groups.length, total };
}

/** Texts, each once. Texts that the run does not store are all different, because nothing tells them apart. */
class Distinct {
  texts: Text[] = [];
  private known = new Map<string, number>();

  add(text: Text): number {
    const key = text === null ? null : typeof text === "string" ? `=${text}` : `${text.length} ${text.cut}`;
    const found = key === null ? undefined : this.known.get(key);
    if (found !== undefined) return found;
    if (key !== null) this.known.set(key, this.texts.length);
    return this.texts.push(text) - 1;
  }
}
