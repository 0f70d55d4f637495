"""Run commands on all machines of a TPU pod, for programs that read options with argparse."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

from accel_names.commands.cluster_config import load_config_from_file
from accel_names.commands.launch import command_of, parser_of
from accel_names.configs import default_config_path

#: what the option of a version stands for
_RELEASES = {"latest": "accelerate -U", "dev": "git+https://github.com/huggingface/accelerate.git"}


def tpu_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser of a pod, and of the commands that are run there."""
    about = "Runs commands on all machines of a TPU pod, by gcloud."
    parser = parser_of("tpu-config", about, tpu_command_launcher, subparsers)
    for name in ("config_file", "tpu_name", "tpu_zone", "command_file"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--command", action="append", nargs="+")
    parser.add_argument("--accelerate_version", default="latest")
    for name in ("use_alpha", "install_accelerate", "debug"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser


def tpu_command_launcher(args: argparse.Namespace) -> None:
    """Run the commands by gcloud, or print how with `debug`.

    Args:
        args: What `tpu_command_parser` has read. A config file says what it leaves out.

    Raises:
        ValueError: There are no commands, or it is not said on which pod.
        subprocess.CalledProcessError: gcloud failed.
    """
    commands = [word for words in args.command or () for word in words]
    file, name, zone = args.command_file, args.tpu_name, args.tpu_zone
    said = name and zone and (commands or file)
    if args.config_file is not None or (not said and default_config_path(None).is_file()):
        config: Any = load_config_from_file(args.config_file)
        file = file or (None if commands else config.command_file)
        commands = commands or list(config.commands or ())
        name, zone = name or config.tpu_name, zone or config.tpu_zone
    if file is not None:
        commands = Path(file).read_text(encoding="utf-8").splitlines()
    if not commands:
        raise ValueError("give --command or --command_file: there is nothing to run on the pod")
    if not name or not zone:
        raise ValueError("give --tpu_name and --tpu_zone, or a config file with them: on which pod is not said")
    if args.install_accelerate:
        version = args.accelerate_version
        commands.insert(0, f"pip install {_RELEASES.get(version, f'accelerate=={version}')}")
    line = ["gcloud", *(["alpha"] if args.use_alpha else []), "compute", "tpus", "tpu-vm", "ssh", name, "--zone", zone]
    line += ["--command", "; ".join(["cd /usr/share", *commands]), "--worker", "all"]
    if args.debug:
        print(f"Running {' '.join(line)}")
    else:
        subprocess.run(line, check=True)


COMMAND = command_of("tpu-config", tpu_command_parser, tpu_command_launcher)
