#!/usr/bin/env python3
"""scripts/mpirun.sh: no rank outlives it, and the end of a saved run is not reported as a failure.

    mpirun_test.py LANCET
"""
import contextlib
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from processes import ROOT, processes_with, records, wait_until, write_config

LANCET = pathlib.Path(sys.argv[1]).resolve()


@contextlib.contextmanager
def training(*settings):
    """A run of two ranks under the script: (script, run folder, log). It ends with the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run, log = folder / "run", folder / "log"
        command = [ROOT / "scripts/mpirun.sh", "2", LANCET, "train", write_config(folder), "--run-dir", run]
        for setting in settings:
            command += ["--set", setting]
        with log.open("w") as out:
            script = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield script, run, log
        finally:
            script.kill()
            script.wait()
            assert wait_until(lambda: not processes_with(str(run))), "the ranks of a script that was killed live on"


def ranks(run):
    return processes_with(str(run), LANCET)


def signals_again(times):
    # A step without an end: the first signal cannot be answered.
    with training("train.gradient_accumulation_steps=1000000") as (script, run, log):
        assert wait_until(lambda: (run / "metrics.jsonl").exists() and len(ranks(run)) == 2), log.read_text()
        script.send_signal(signal.SIGTERM)
        assert wait_until(lambda: "saving and stopping after this step" in log.read_text()), log.read_text()
        for _ in range(times):
            script.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        code = script.wait(30)
        # mpirun may return a moment before the kernel has ended a rank that it killed.
        gone = wait_until(lambda: not processes_with(str(run)), 10)
        assert gone, f"processes {processes_with(str(run))} live on after the script's end\n{log.read_text()}"
        assert code not in (0, 75, 143), f"exit code {code}\n{log.read_text()}"


def killed_script():
    with training() as (script, run, log):
        assert wait_until(lambda: len(records(run)) > 0), log.read_text()
        assert len(ranks(run)) == 2
        script.kill()
        script.wait()
        assert wait_until(lambda: not processes_with(str(run)), 10), \
            f"processes {processes_with(str(run))} live on 10 s after the script was killed\n{log.read_text()}"


def saved_run():
    with training("train.stop_after=2") as (script, run, log):
        code = script.wait(60)
        text = log.read_text()
        assert code == 75, f"exit code {code}\n{text}"
        assert "saved and stopped" in text.splitlines()[-1], f"expected a last line 'saved and stopped'\n{text}"


def killed_rank():
    with training() as (script, run, log):
        assert wait_until(lambda: len(records(run)) > 0), log.read_text()
        subprocess.run(["kill", "-KILL", str(ranks(run)[1])], check=True)
        code = script.wait(60)
        text = log.read_text()
        assert code == 5, f"exit code {code}\n{text}"
        assert "exited on signal 9 (Killed)" in text, f"expected mpirun's line\n{text}"
        assert text.splitlines()[-1] == "a rank was ended by signal 9", text


def exit_code():
    for code, alarms in (("75", 0), ("3", 1), ("0", 0)):
        done = subprocess.run([ROOT / "scripts/mpirun.sh", "2", "sh", "-c", f"echo a rank says this >&2; exit {code}"],
                              capture_output=True, text=True, timeout=60)
        assert str(done.returncode) == code, f"exit code {done.returncode}, expected {code}"
        assert done.stderr.count("a rank says this\n") >= 1, done.stderr
        assert done.stderr.count("a non-zero exit code") == alarms, done.stderr


def a_second_signal():
    signals_again(1)


def a_second_and_a_third_signal():
    signals_again(2)


for case in (a_second_signal, a_second_and_a_third_signal, killed_script, saved_run, killed_rank, exit_code):
    case()
    print("passed:", case.__name__, flush=True)
