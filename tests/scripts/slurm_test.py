#!/usr/bin/env python3
"""scripts/slurm.sbatch under a Slurm of this test alone: two ranks train, the signal before the time limit makes them
save and exit with 75, and the requeued job resumes and completes.

    slurm_test.py LANCET

The daemons run in their own namespaces (processes, network, mounts), which end with this test: they need no free
ports, and none of them survives.
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

from processes import CONFIG, ROOT, records, wait_until

LANCET = pathlib.Path(sys.argv[1]).resolve()
ADDRESS = "10.79.0.1"
NODE = socket.gethostname().split(".")[0]


def what_is_missing():
    if os.geteuid() != 0:
        return "no root"
    for tool in ("munged", "slurmctld", "slurmd", "sbatch", "ip", "unshare"):
        if not shutil.which(tool):
            return f"no {tool} here: apt-get install slurm-wlm iproute2"
    if subprocess.run(["unshare", "--pid", "--net", "--mount", "--fork", "true"], capture_output=True).returncode != 0:
        return "no namespaces of processes, network and mounts here"
    return None


def slurm_conf(folder):
    return f"""
ClusterName=test
SlurmctldHost={NODE}({ADDRESS})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
NodeName={NODE} NodeAddr={ADDRESS} CPUs=2 State=UNKNOWN
PartitionName=all Nodes={NODE} Default=YES MaxTime=INFINITE
"""


def add_interface():
    # The daemons resolve names only if an interface other than the loopback has an address.
    for words in ("link set lo up", "link add slurm type veth peer name unused", f"address add {ADDRESS}/24 dev slurm",
                  "link set slurm up"):
        subprocess.run(["ip", *words.split()], check=True)


class Slurm:
    """munged, slurmctld and slurmd, with all their files in one folder."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(slurm_conf(folder))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        add_interface()
        self.start("munged", "--foreground", "--force", f"--origin={ADDRESS}", f"--key-file={key}",
                   f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
                   f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        assert wait_until((folder / "munge.socket").exists, 10), self.logs()
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        assert wait_until(lambda: self.command("sinfo", "--noheader", "--format=%T").strip() == "idle", 20), self.logs()

    def start(self, name, *arguments):
        with (self.folder / f"{name}.out").open("w") as out:
            subprocess.Popen([name, *arguments], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def command(self, *words):
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout

    def job(self, number):
        """The fields of `scontrol show job`."""
        text = self.command("scontrol", "--oneliner", "show", "job", number)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.out"))


def write_config(path, steps):
    # Steps of about 20 ms. Only their number changes from the first run to the second.
    train = {**CONFIG["train"], "steps": steps, "gradient_accumulation_steps": 20}
    path.write_text(json.dumps({**CONFIG, "train": train}))


def test(folder):
    project = folder / "project"  # the folder that a user submits from
    (project / "build").mkdir(parents=True)
    (project / "build/lancet").symlink_to(LANCET)
    config, run = project / "config.json", project / "runs/small"
    write_config(config, 1000000)
    slurm = Slurm(folder)
    submitted = subprocess.run(
        ["sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--time=1", "--signal=USR1@20",
         ROOT / "scripts/slurm.sbatch", "config.json", "--run-dir", run],
        cwd=project, capture_output=True, text=True, timeout=20)
    assert submitted.returncode == 0, submitted.stderr
    number = submitted.stdout.strip()
    output = project / f"lancet-{number}.out"

    def state():
        return f"{slurm.job(number)}\n{output.read_text() if output.exists() else ''}\n{slurm.logs()}"

    assert wait_until(lambda: len(records(run)) > 0, 30), state()
    # Slurm checks time limits every 30 s and signals up to 30 s before the requested time: 10 to 40 s after the start.
    assert wait_until(lambda: slurm.job(number).get("JobState") == "PENDING", 60), state()
    slurm.command("scontrol", "update", f"JobId={number}", "TimeLimit=10")  # no signal to the second run
    saved = len(records(run))
    assert "saved and stopped after step" in output.read_text(), state()
    write_config(config, saved + 3)
    assert wait_until(lambda: slurm.job(number).get("JobState") == "COMPLETED", 40), state()
    text = output.read_text()
    assert slurm.job(number)["Restarts"] == "1", state()
    assert text.count("transport mpi (2 ranks, 1 host)") == 2, state()
    assert f"resume     after step {saved} from " in text, state()
    assert [record["step"] for record in records(run)] == list(range(1, saved + 4)), state()


missing = what_is_missing()
if missing:
    print("SKIPPED:", missing)
elif os.getpid() != 1:
    sys.exit(subprocess.run(["unshare", "--pid", "--net", "--mount", "--fork", "--kill-child", "--mount-proc",
                             sys.executable, *sys.argv]).returncode)
else:
    with tempfile.TemporaryDirectory() as name:
        test(pathlib.Path(name))
