// A person's own note and score of a rollout, kept beside the run in notes.jsonl.
import { useState } from "preact/hooks";
import { changed, isFile, post, useDocument } from "./data";
import type { Note } from "./documents";
import { Block } from "./texts";

/** Give it the trajectory as its key: what was typed belongs to one rollout. */
export function NoteEditor({ path, trajectory, version, notable }: { path: string; trajectory: string; version: number; notable: boolean }) {
  const notes = useDocument<Note[]>(`${path}/notes`, {}, version);
  const saved = notes.value?.find((one) => one.trajectory === trajectory);
  // What was typed, null where nothing was: notes that arrive later do not replace it.
  const [typedNote, setNote] = useState<string | null>(null);
  const [typedScore, setScore] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);

  if (isFile || !notable) {
    if (!saved) return null;
    return (
      <section aria-label="Note">
        <h2>Note {saved.score !== null && `· score ${saved.score}`}</h2>
        <Block text={saved.note} label="Text of the note" />
      </section>
    );
  }
  const savedNote = saved?.note ?? "";
  const savedScore = String(saved?.score ?? "");
  const note = typedNote ?? savedNote;
  const score = typedScore ?? savedScore;
  const isChanged = note !== savedNote || score !== savedScore;
  const save = async (event: Event) => {
    event.preventDefault();
    try {
      await post(`${path}/notes`, { trajectory, note, score: score === "" ? null : Number(score) });
      setProblem(null);
      changed();
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <form class="note-editor" aria-label="Note" onSubmit={save}>
      <textarea
        aria-label="Note on this rollout" placeholder="Your note on this rollout" rows={2} maxLength={10_000} value={note}
        onInput={(event) => setNote(event.currentTarget.value)}
      />
      <div class="row">
        <label>score <input type="number" step="any" class="short" aria-label="Score of this rollout" value={score} onInput={(event) => setScore(event.currentTarget.value)} /></label>
        <button disabled={!isChanged}>Save note</button>
        <span class="note" role="status">{saved && !isChanged && `saved ${saved.time.slice(0, 16).replace("T", " ")}`}</span>
      </div>
      {(problem ?? notes.error) && <p class="error" role="alert">{problem ?? notes.error}</p>}
    </form>
  );
}
