#!/usr/bin/env python3
"""scripts/emulate-cluster.sh: wrong arguments, links that are cut and restored, the end of its ranks, and links of the
speed that a hardware file declares.

    emulate_cluster_test.py LANCET
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from processes import ROOT, processes_with, records, wait_until, write_config

LANCET = pathlib.Path(sys.argv[1]).resolve()
SCRIPT = ROOT / "scripts/emulate-cluster.sh"
NAME = f"lt{os.getpid()}-"
ENVIRONMENT = {**os.environ, "LANCET_CLUSTER": NAME}


HARDWARE = ROOT / "configs/hardware/p3dn-v100.json"


def command(*words, **environment):
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env={**ENVIRONMENT, **environment},
                          timeout=300)


def refused(words, beginning, code=2, **environment):
    done = command(*words.split(), **environment)
    assert done.returncode == code, done
    assert done.stderr.startswith(f"error: {beginning}"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def wrong_command_lines():
    refused("up --hosts 2", "up needs --rate")
    refused("up --rate 1gbit", "up needs --hosts")
    refused("up --hosts 2 --rate 1kbit", "expected a rate like 500mbit, from 64kbit to 100gbit, found '1kbit'")
    refused("up --hosts 2 --rate 1gbit,2gbit,3gbit", "expected a rate for all hosts, or 2 of them for as many hosts, "
            "found '1gbit,2gbit,3gbit'")
    refused("up --hosts 2 --rate 1gbit,", "expected a rate like 500mbit, from 64kbit to 100gbit, found ''")
    refused("up --hosts 2 --rate 1gbit --scale 2", "--scale, --dilation and --ranks-per-host need --hardware")
    refused("up --hosts 2 --rate 1gbit --hardware x", "expected --rate or --hardware, found both")
    refused("up --hosts 2 --hardware x --dilation 2", "up --hardware needs --scale")
    refused("up --hosts 2 --hardware x --scale 2", "up --hardware needs --dilation")
    known = "up --hosts 2 --hardware p3dn-v100"
    refused(f"{known} --scale 0 --dilation 1", "--scale: expected a number above 0, found '0'")
    refused(f"{known} --scale 1 --dilation nan", "--dilation: expected a number above 0, found 'nan'")
    # 10 Gbit/s a device at scale 1 and dilation 1.
    refused(f"{known} --scale 1e6 --dilation 10", "--scale: expected 0.01 to 1.56e+04 with a dilation of 10, so that a "
            "host's link has 64 kbit/s to 100 Gbit/s, found 1e+06")
    refused(f"{known}:network.cards=8 --scale 1 --dilation 1", "--hardware: expected changes like slow, device=fast, ")
    refused(f"{known} --scale 1 --dilation 1 --ranks-per-host 0", "expected --ranks-per-host from 1 to 200, found '0'")
    refused(f"{known} --scale 1 --dilation 1 --ranks-per-host 9", "--ranks-per-host: expected 1 to 8, the devices of a "
            f"node in {HARDWARE}, found 9")


def wrong_hardware_files():
    options = "--scale 100 --dilation 12"
    refused(f"up --hosts 2 --hardware none {options}", "--hardware: expected a file or one of dgx-h100, ")
    with tempfile.TemporaryDirectory() as name:
        file = pathlib.Path(name) / "mine.json"
        for change, error in (
                (lambda text: text[:-3], f"{file}: expected a hardware file, found one that cannot be read: "),
                (lambda text: text.replace('"nic_gbit_per_s": {"value": 100', '"nic_gbit_per_s": {"value": "fast"'),
                 f"{file}: expected numbers with their sources, found TypeError "),
                (lambda text: text.replace('"nics": {"value": 1', '"nics": {"value": 0'),
                 f"{file}: network.nics.value: expected a number from 1 to 4096, found 0"),
                (lambda text: text.replace("[[2, 70, 0.8]", "[[2, 70, 1.8]"),
                 f"{file}: network.all_to_all_efficiency.points: expected a list of [places, MB, share], found "
                 "[[2, 70, 1.8]"),
                (lambda text: text.replace('"nics"', '"cards"'),
                 f"{file}: expected numbers with their sources, found KeyError 'nics'")):
            file.write_text(change(HARDWARE.read_text()))
            refused(f"up --hosts 2 --hardware {file} {options}", error)
        for tool in ("bash", "dirname", "awk"):
            (pathlib.Path(name) / tool).symlink_to(shutil.which(tool))
        refused(f"up --hosts 2 --hardware p3dn-v100 {options}", "cannot emulate a cluster here: expected the command "
                "'python3', found none", 77, PATH=name)


def links():
    return [line.split("link ")[1].split()[0] for line in command("status").stdout.splitlines()[1:]]


def a_link_that_is_cut_and_restored():
    assert links() == ["up", "up"]
    assert command("cut", "1").returncode == 0
    assert links() == ["up", "cut"]
    assert command("restore", f"{NAME}1").returncode == 0
    assert links() == ["up", "up"]


def ranks_of_a_killed_script():
    with tempfile.TemporaryDirectory() as name:
        run = pathlib.Path(name) / "run"
        train = [LANCET, "train", write_config(pathlib.Path(name)), "--run-dir", run]
        script = subprocess.Popen([SCRIPT, "run", "--", *train], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: len(records(run)) > 0), "the run did not begin"
        assert len(processes_with(str(run), LANCET)) == 2
        script.kill()
        script.wait()
        assert wait_until(lambda: not processes_with(str(run), LANCET)), "ranks live on after the script was killed"


def paced_kbit(*devices):
    """The rates of the cluster's links, in kbit/s."""
    rates = []
    for device in devices:
        shown = subprocess.run(["ip", "netns", "exec", f"{NAME}-head", "tc", "qdisc", "show", "dev", device],
                               capture_output=True, text=True, check=True).stdout
        number, unit = re.search(r"rate (\d+)([KM])bit", shown).groups()
        rates.append(float(number) * {"K": 1, "M": 1000}[unit])
    return rates


def rates_of_a_hardware_file():
    """A host with 2 of 8 devices has a quarter of the NIC's 80 Gbit/s, here divided by 600."""
    up = command("up", *"--hosts 2 --hardware p3dn-v100 --scale 100 --dilation 6 --ranks-per-host 2".split())
    assert up.returncode == 0, up
    what = ("2 hosts, p3dn-v100 at scale 100 and dilation 6, ranks a host: 2, 33.33 Mbit/s each way, "
            "512 Mbit/s within a host")
    assert up.stderr == f"cluster '{NAME}': {what}\n", up
    assert command("status").stdout.splitlines()[0] == f"cluster '{NAME}': {what}"
    assert all(33_330 < rate < 35_500 for rate in paced_kbit("data0", "data1")), paced_kbit("data0", "data1")
    hosts = command("run", "--", "hostname").stdout.split()
    assert sorted(hosts) == [f"{NAME}0", f"{NAME}0", f"{NAME}1", f"{NAME}1"], hosts

    bench = command("run", "--", LANCET, *"bench network --min-mb 0.25 --max-mb 0.25 --gaps 0,200".split())
    rows = [line.split() for line in bench.stdout.splitlines()[1:]]
    assert [row[1] for row in rows] == ["0", "200"], bench
    for row in rows:  # 333 KB a host take 80 ms, or longer on a busy machine
        assert float(row[5]) < 1.02 * 33.33, bench.stdout
        assert float(row[2]) >= 78.5, bench.stdout
    for space, device in ((f"{NAME}0", "data"), (f"{NAME}0", "lo"), (f"{NAME}-head", "data1")):
        shown = subprocess.run(["ip", "netns", "exec", space, "tc", "-s", "qdisc", "show", "dev", device],
                               capture_output=True, text=True, check=True).stdout
        sent, dropped = map(int, re.search(r"Sent (\d+) .*dropped (\d+)", shown).groups())
        assert sent > 250_000 and dropped == 0, shown

    assert command("rate", "40mbit").returncode == 0
    assert command("status").stdout.splitlines()[0] == f"cluster '{NAME}': 2 hosts, 40mbit each way"


def unlike_hosts():
    """An eighth of 80 Gbit/s, of 4 x 100 Gbit/s at A100's efficiency, and of 8 x 25 Gbit/s, divided by 1,200."""
    changed = "p3dn-v100:device.fp32_tflops=31.4,network.nics=8,network.nic_gbit_per_s=25,network.all_to_all_efficiency=1"
    up = command("up", *f"--hosts 3 --hardware p3dn-v100;p4de-a100;{changed} --scale 100 --dilation 12".split())
    assert up.returncode == 0, up
    assert up.stderr == f"cluster '{NAME}': 3 hosts, unlike hosts at scale 100 and dilation 12, ranks a host: 1\n", up
    rates = paced_kbit("data0", "data1", "data2")
    assert 7_000 < rates[0] < 9_000 and rates[1] > 1.5 * rates[0] and 20_800 < rates[2] < 22_000, rates
    assert command("down").returncode == 0


def hosts_of_unlike_speed():
    """Each host's link has a rate of its own."""
    assert command("up", "--hosts", "2", "--rate", "20mbit,10mbit").returncode == 0
    assert paced_kbit("data0", "data1") == [20_000, 10_000]
    refused("run --cores 1,1 -- true", "expected --cores from 0 to 200, found '1,1'")
    assert command("down").returncode == 0


wrong_command_lines()
wrong_hardware_files()
up = command("up", "--hosts", "2", "--rate", "1gbit")
if up.returncode == 77:
    print("SKIPPED:", up.stderr.strip())
    sys.exit()
try:
    assert up.returncode == 0, up
    a_link_that_is_cut_and_restored()
    ranks_of_a_killed_script()
    assert command("down").returncode == 0
    rates_of_a_hardware_file()
    assert command("down").returncode == 0
    unlike_hosts()
    hosts_of_unlike_speed()
finally:
    down = command("down")
assert down.returncode == 0, down
