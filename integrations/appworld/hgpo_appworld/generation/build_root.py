"""Writes a planned world as a folder that AppWorld can use.

It runs in AppWorld's interpreter as ``PYTHON build_root.py PLAN ROOT``, and imports only the standard library and
AppWorld. Each line that it prints is a JSON value: a stage, how much of it is done, and how much there is.
"""

import json
import os
import random
import sys
from datetime import datetime
from pathlib import Path
from typing import Any


def main(plan_file: str, root: str) -> None:
    """Write the world of a plan into the folder `root`, which AppWorld reads as APPWORLD_ROOT."""
    plan = json.loads(Path(plan_file).read_text("utf-8"))
    os.environ["APPWORLD_ROOT"] = root
    os.environ["APPWORLD_CACHE"] = f"{root}/.cache"
    data = Path(root, "data")
    data.mkdir(parents=True)

    from appworld.apps.api_lib import set_local_date_and_time
    from appworld.common.constants import DB_VERSION

    set_local_date_and_time(datetime.fromisoformat(plan["now"]))
    random.seed(plan["seed"])
    docs = write_api_docs(data / "api_docs" / "standard")
    write_base(data / "base_dbs", plan["rows"], docs)
    (data / "datasets").mkdir()
    for split, ids in plan["splits"].items():
        (data / "datasets" / f"{split}.txt").write_text(
            "".join(f"{task_id}\n" for task_id in ids), "utf-8"
        )
    for number, task in enumerate(plan["tasks"]):
        report("tasks", number, len(plan["tasks"]))
        write_task(data, task, plan["now"])
    report("tasks", len(plan["tasks"]), len(plan["tasks"]))
    (data / "version.txt").write_text(DB_VERSION, "utf-8")


def write_api_docs(folder: Path) -> list[dict[str, Any]]:
    """Write the documentation of every API in the form that AppWorld reads, and return the documents."""
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.constants import CANARY_STRING

    folder.mkdir(parents=True)
    apps = get_all_apps(skip_admin=True)
    collection = ApiDocCollection.build(tuple(apps))
    docs = []
    for number, app in enumerate(apps):
        report("API documentation", number, len(apps))
        docs += collection[app].values()
        content = {
            name: {**doc, "canary_string": CANARY_STRING}
            for name, doc in collection[app].items()
        }
        write_json(folder / f"{app}.json", content)
    report("API documentation", len(apps), len(apps))
    return docs


def write_base(
    folder: Path, rows: list[dict[str, Any]], docs: list[dict[str, Any]]
) -> None:
    """Write the databases of all apps before any task."""
    from appworld.apps import get_all_apps
    from appworld.apps.api_lib import set_local_dbs
    from appworld.apps.model_lib import CachedDBHandler
    from appworld.collections.models import ModelCollection

    apps = get_all_apps()
    set_local_dbs(":memory:base", ":memory:base", list(apps), create=True)
    models = ModelCollection.load(":memory:base", load_apps=list(apps))
    fields = (
        "api_name",
        "path",
        "method",
        "description",
        "parameters",
        "response_schemas",
    )
    documents = [
        {
            "app": "api_docs",
            "model": "ApiDoc",
            "id": number,
            "fields": {
                "app_name_": doc["app_name"],
                **{name: doc[name] for name in fields},
            },
        }
        for number, doc in enumerate(docs, 1)
    ]
    write_rows(models, [*documents, *rows], report_stage="databases")
    models.save(str(folder), format="full", app_names=list(apps))
    CachedDBHandler.reset()


def write_task(data: Path, task: dict[str, Any], now: str) -> None:
    """Write the folder of a task: its databases as changes to the base, its specification and its ground truth."""
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import CachedDBHandler
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import CANARY_STRING, DB_VERSION

    folder = data / "tasks" / task["id"]
    truth = folder / "ground_truth"
    truth.mkdir(parents=True)
    apps = get_all_apps()
    models = ModelCollection.load(
        f":memory:task_input-{task['id']}", str(data / "base_dbs"), load_apps=list(apps)
    )
    write_rows(models, task["rows"])
    models.save(str(folder / "dbs"), format="changes", app_names=list(apps))
    CachedDBHandler.reset()
    names = ("instruction", "supervisor")
    specs = {
        **{name: task[name] for name in names},
        "datetime": now,
        "db_version": DB_VERSION,
    }
    write_json(folder / "specs.json", {**specs, "canary_string": CANARY_STRING})
    metadata = {
        "mode": "full",
        "difficulty": task["difficulty"],
        "num_apps": len(task["required_apps"]),
        "num_apis": 0,
        "num_api_calls": 0,
        "num_solution_code_lines": task["solution"].count("\n"),
    }
    write_json(truth / "metadata.json", metadata)
    write_json(truth / "required_apps.json", task["required_apps"])
    write_json(truth / "public_data.json", {})
    write_json(truth / "private_data.json", task["private_data"])
    write_json(truth / "answer.json", task["answer"])
    write_json(truth / "test_data.json", task["test_data"])
    canary = f"# Canary String: {CANARY_STRING}\n"
    (truth / "evaluation.py").write_text(canary + task["evaluation"], "utf-8")
    for name in ("solution.py", "compiled_solution.py"):
        (truth / name).write_text(canary + task["solution"], "utf-8")


def write_rows(
    models: dict[str, Any], rows: list[dict[str, Any]], report_stage: str = ""
) -> None:
    """Write rows through AppWorld's models and check that each gets its planned id.

    All rows of a model are written at once, which is faster. What a row refers to is of a model that appears first.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["app"], row["model"]), []).append(row)
    done = 0
    for (app, name), group in groups.items():
        model = models[app][name]
        made = [model.create(**with_times(model, row["fields"])) for row in group]
        model.save_all(made)
        for row, record in zip(group, made, strict=True):
            if record.id != row["id"]:
                raise SystemExit(
                    f"{app}.{name}: planned the id {row['id']}, received {record.id}"
                )
        done += len(group)
        if report_stage:
            report(report_stage, done, len(rows))


def with_times(model: Any, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a model of AppWorld
    """Return the fields with texts replaced by times where the model expects times."""
    kinds = {name: kind.outer_type_ for name, kind in model.__fields__.items()}
    return {
        name: datetime.fromisoformat(value)
        if isinstance(value, str) and kinds[name] is datetime
        else value
        for name, value in fields.items()
    }


def write_json(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=1), "utf-8")


def report(stage: str, done: int, total: int) -> None:
    """Print how much of a stage is done."""
    print(json.dumps([stage, done, total]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
