// The documents of the server; hgpo_train/view/ describes them.

export type Cut = { cut: string; length: number };
export type Text = string | Cut | null;

/** An estimator with parameters. */
export type Trained = { name: string; set: Record<string, number | string | boolean | null> };

export type Run = {
  name: string; path: string; training: boolean; trained: Trained | null; problem: string | null;
  stored: boolean; // whether the advantages of training are stored
  live: boolean; // whether it is being written
  notable: boolean; // whether notes can be saved
  usual: string[]; // the estimators that are shown first
  trainer: string | null; // the training run whose policy it played
  selection?: { tasks: number; of: number }; // of a page without a server
};

export type Parameter = {
  name: string;
  default: number | string | boolean | null;
  meaning: string;
  kind: "int" | "float" | "bool" | "choice" | "text";
  choices?: string[];
  least?: number | null;
  most?: number | null;
};

export type Estimator = { name: string; summary: string; scope: string; parameters: Parameter[] };

export type Definitions = Record<"summary" | "levels", Record<string, { label: string; text: string }>>;

export type Head = { runs: Run[]; estimators: Estimator[]; opened: string[]; definitions: Definitions };

export type Measure = "success" | "score" | "mean_return" | "mean_length" | "valid" | "admissible";

export type Results = Record<Measure, number | null> & {
  iteration?: number;
  tasks: number;
  episodes: number;
  steps: number;
  intervals: Record<Measure, [number, number] | null>;
  bounds: [number, number] | null;
  aborted: number;
};

export type Overview = {
  environments: string[];
  splits: string[];
  groups: number;
  files: number;
  depth: number;
  iterations: number[];
  config: Record<string, unknown>;
  evaluation: boolean; // then an iteration is a seed
  total: Results;
  task_types: (Results & { task_type: string | null })[];
  lengths: { steps: string; episodes: number; aborted: number; won: number }[];
  outcomes: { none: number; partly: number; all: number };
};

type Side = Record<Measure, number | null> & { number: number };

/** Two runs on the tasks that both contain. */
export type Comparison = {
  differences: Partial<Record<Measure, { difference: number; low: number | null; high: number | null; tasks: number; better: number; worse: number }>>;
  total: number;
  tasks: { task_id: string; task: string; sides: [Side, Side] }[];
};

export type Series = (number | null)[];

export type Curves = {
  results: (Results & { iteration: number })[];
  metrics_iterations: number[];
  metrics: Record<string, Series>;
  seeds: boolean; // whether an iteration is a seed
};

export type Level = Record<string, number | string | null>;

export type Levels = {
  problem?: string;
  levels: Level[];
  levels_changed: Level[];
  intervals: Record<string, Record<string, Bounds>>;
  intervals_changed: Record<string, Record<string, Bounds>>;
  states: { state: string; pairs: number | null; steps: number | null }[];
  sentences: string[];
  tasks: number;
  permutations: number;
  by_iteration: { iterations?: number[]; shared?: Record<string, Series> };
};

export type Bounds = { low: number | null; high: number | null; chance: number | null };

/** All rollouts, column by column; `task` is a position in `tasks`. */
export type Rollouts = {
  total: number;
  tasks: { env_id: string | null; task_id: string; task_type: string | null; task: Text }[];
  columns: { [Name in keyof Omit<Trajectory, "error">]: Trajectory[Name][] } & Record<"number" | "iteration" | "group" | "task", number[]>;
};

export type RolloutEstimates = { spread: Series; tokens: Series };

export type Note = { run: string; trajectory: string; note: string; score: number | null; time: string };

export type Hit = { row: number; step: number; column: string; snippet: string | null; trajectory: string };
export type Search = { steps: number; rollouts: number[]; hits: Hit[] };

export type Trajectory = {
  trajectory: string;
  parent: string | null; // of a branch, the rollout that it leaves
  branch_step: number | null; // and the number of its first own step
  row: number;
  length: number;
  episode_return: number;
  score: number | null;
  won: boolean | null;
  aborted: boolean;
  truncated: boolean;
  invalid: number;
  error: Text;
};

/** The number of a trajectory's step: those of a branch go on from its parent's. */
export const numbered = (one: Trajectory, step: number): number => step + (one.branch_step ?? 0);

export type Group = {
  number: number;
  run: string;
  iteration: number;
  env_id: string | null;
  task_id: string;
  group: number;
  task_type: string | null;
  task: Text;
  row: number;
  rows: number;
  size: number;
  rollouts: number; // without aborted ones and branches
  won: number | null;
  aborted: number;
  truncated: number;
  invalid: number;
  mean_return: number | null;
  depth: number;
  states: Text[];
  actions: Text[];
  trajectories: Trajectory[];
  tree: { order: number[]; parent: (number | null)[] }; // positions in trajectories
  steps: {
    trajectory: number[];
    step: number[];
    state: number[];
    next: (number | null)[];
    action: (number | null)[];
    valid: boolean[];
    reward: number[];
    score: Series;
  };
  contexts: { states: (number | null)[][]; states_actions: (number | null)[][] };
};

export type Estimate = {
  estimator: string;
  parameters: Record<string, number | string | boolean | null>;
  columns: Record<string, Series>;
};

/** Steps whose texts are requested together. */
export const TOGETHER = 50;

export type Step = {
  row: number;
  trajectory: string;
  step: number;
  state: Text;
  action: Text;
  action_valid: boolean;
  why_invalid: string | null;
  admissible: boolean | null;
  prompt: Text;
  response: Text;
  message: Text;
  admissible_actions: Text[] | null;
  admissible_count: number | null;
  finish_reason: string | null;
  cut_pairs: number | null;
  policy_version: number;
  policy_s: number | null;
  prompt_tokens: number | null;
  response_tokens: number | null;
  tokens: number[] | null;
  token_texts: (string | null)[] | null; // null if the tokenizer is unknown
  logprobs: number[] | null;
};
