"""What `hgpo verify` finds in a run."""

from hgpo_train.training.verify_run import verify_run


def damaged_files(run: object) -> list[str]:
    """Return the file of every problem of a run, its tables and its checkpoints."""
    return [
        problem.file for report in verify_run(run, None) for problem in report.problems
    ]
