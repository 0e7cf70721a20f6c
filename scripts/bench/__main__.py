"""`python3 scripts/bench COMMAND [OPTION...]`"""
import argparse
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
from bench.run import Failed, python_with  # noqa: E402

PLOTS = ("matplotlib", "expected python3-matplotlib for the plots; scripts/install_deps.sh --plots installs it")
COMMANDS = {  # name: (purpose, (library, error without it) or None)
    "sweep": ("the points of an experiment: simulated, or run here or on an emulated cluster", None),
    "cases": ("models that people train: Lancet beside the best published ways, simulated", None),
    "emulated": ("every policy on emulated devices and links, run against predicted", None),
    "imbalance": ("step time and gain by the imbalance of the routing, simulated", None),
    "overlap": ("the policies on an emulated network, in turns: steps, exposed time, memory", None),
    "overlap_devices": ("the policies on emulated devices: those points, one MoE layer, rings", None),
    "stages": ("pipeline stages and placements on emulated devices, run against predicted", None),
    "placement": ("models on unlike devices, every solver, simulated; planning time measured", None),
    "recompute": ("what it costs to keep half of the activations, simulated, or measured here", None),
    "bubbles": ("the schedules of pipeline stages: bubbles, memory, bounds, simulated", None),
    "peer": ("training speed and memory against a PyTorch trainer", None),
    "generate": ("generation speed against PyTorch", None),
    "gpu": ("tests and benchmarks on a GPU machine", None),
    "reproduce": ("the points, tables and plots of the Lancet paper's figures", PLOTS),
    "figures": ("tables and plots of recorded points", PLOTS),
}


def usage():
    lines = ["usage: python3 scripts/bench COMMAND [OPTION...]; COMMAND --help lists its options"]
    return "\n".join(lines + [f"  {name:15} {what}" for name, (what, _) in COMMANDS.items()])


def use_python_with(library, without):
    """Restarts the program in a Python that has the library, if this one does not."""
    if importlib.util.find_spec(library):
        return
    python = python_with(library)
    if not python:
        raise Failed(without)
    os.execvp(python, [python, *sys.argv])


def main():
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    if not words or words[0] not in COMMANDS:
        print(usage(), file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that a command's cleanup runs
    try:
        if COMMANDS[words[0]][1]:
            use_python_with(*COMMANDS[words[0]][1])
        command = importlib.import_module(f"bench.{words[0].removesuffix('_devices')}")
        parser = argparse.ArgumentParser(prog=f"python3 scripts/bench {words[0]}", description=command.__doc__,
                                         formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.set_defaults(command=words[0])
        command.add_arguments(parser)
        return command.main(parser.parse_args(words[1:]))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
