"""The job of docs/training.md, with stand-ins for Slurm's command and hgpo."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text("utf-8")


@pytest.fixture
def job(tmp_path):
    """Return what starts the job, of which every hgpo ends with an exit code after so many seconds."""
    lines = PAGE.partition("**Slurm.**")[2].partition("\n\n")[2].partition("\n\n")[0]
    script = textwrap.dedent(lines)
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    run = tmp_path / "run"
    (tmp_path / "job.sh").write_text(script.replace("/shared/runs/first", str(run)))

    def command(name, body):
        path = tmp_path / name
        path.write_text(f'#!/bin/bash\necho {name} "$@"\n{body}\n')
        path.chmod(0o755)

    def start(code, seconds=0):
        command("hgpo", f"sleep {seconds}; exit {code}")
        command("scontrol", "")
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        return subprocess.Popen(
            ["bash", tmp_path / "job.sh"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start, run


def test_a_job_starts_resumes_and_has_the_exit_code_of_its_run(job):
    start, run = job
    first = start(3)
    assert first.communicate()[0] == f"hgpo train CONFIG --out {run}\n"
    assert first.returncode == 3
    run.mkdir()
    (run / "config.toml").touch()
    again = start(0)
    assert again.communicate()[0] == f"hgpo train --resume --out {run}\n"
    assert again.returncode == 0


def test_a_job_is_requeued_before_its_time_limit(job):
    start, _ = job
    process = start(0, seconds=60)
    assert process.stdout.readline().startswith("hgpo train")  # the trap is set
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "scontrol requeue 7\n"
    # Slurm ends what the job has started.
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
