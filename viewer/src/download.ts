// Tables as files that the browser saves.
import type { Value } from "./filter";

/** A cell of CSV. Spreadsheets run texts that begin as formulas, and a run may come from a stranger. */
function cell(value: Value | undefined): string {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function downloadCsv(name: string, rows: Record<string, Value>[]): void {
  const columns = Object.keys(rows[0] ?? {});
  const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
  save(`${name}.csv`, lines.map((line) => line.map(cell).join(",")).join("\n") + "\n");
}

export const downloadJson = (name: string, rows: Record<string, Value>[]): void => save(`${name}.json`, JSON.stringify(rows, null, 1));

function save(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
