"""The help of `accel config` and of its commands, made from the table of options."""

from collections.abc import Callable

from accel_launch.help_text import list_options
from accel_launch.options import BY_NAME, OPTIONS, Option

_FILE = """\
Without PATH the file is default_config.yaml in $ACCEL_HOME, else in accel below $HF_HOME, else in
~/.cache/huggingface/accel; or what $ACCEL_CONFIG_FILE names."""

_EXITS = "exit codes: 0 if it was done; 2 if not"

CONFIG = f"""\
usage: accel config [--config_file PATH]
       accel config default [--overwrite] [--config_file PATH] [options]
       accel config update [--config_file PATH]
       accel config show [--origin] [options of accel launch]

Writes and shows the file of settings that accel launch reads. No launch needs a file.
{_FILE}

commands:
  (none)     asks what to write, at a terminal; Ctrl-C writes nothing
  default    writes what the options say and the GPUs that are found, and asks nothing; another file that is there
             already stays as it is, unless --overwrite is given
  update     rewrites a file in accel's own keys, also one of Accelerate's; keeps PATH.bak, and lists what was dropped
  show       prints the value of each setting; with --origin also whether a flag, a variable, the file or nobody set it

options of accel config default:
{{options}}

examples:
  accel config default --num_processes 2 --mixed_precision bf16
  accel config update --config_file ~/.cache/huggingface/accelerate/default_config.yaml
  accel config show --origin -n 4

{_EXITS}; 130 after Ctrl-C.
"""

DEFAULT = f"""\
usage: accel config default [--overwrite] [--config_file PATH] [options]

Writes what the options say and the GPUs that are found, and asks nothing.
{_FILE}

options:
  --overwrite
      Write also where another file is there already, which else stays as it is.
{{options}}

example:
  accel config default --num_processes 2 --mixed_precision bf16

{_EXITS}.
"""

UPDATE = f"""\
usage: accel config update [--config_file PATH]

Rewrites a file in accel's own keys, also one of Accelerate's; keeps PATH.bak, and lists what was dropped.
{_FILE}

options:
{{options}}

example:
  accel config update --config_file ~/.cache/huggingface/accelerate/default_config.yaml

{_EXITS}.
"""

SHOW = f"""\
usage: accel config show [--origin] [options of accel launch]

Prints the value that each setting would have in a launch with these options. What it prints is a config file itself.
{_FILE}

options:
  --origin
      Tell also whether a flag, a variable, the file or nobody set each.
{{options}}

example:
  accel config show --origin -n 4

{_EXITS}.
"""


def _in_a_file(option: Option) -> bool:
    return option.key is not None or option.name == "config_file"


_HELPS: dict[str | None, tuple[str, Callable[[Option], bool]]] = {
    None: (CONFIG, _in_a_file),
    "default": (DEFAULT, _in_a_file),
    "update": (UPDATE, lambda option: option.name == "config_file"),
    "show": (SHOW, lambda option: option.name not in ("module", "no_python")),
}


def config_help(command: str | None = None) -> str:
    """The help of one command of `accel config` with the options that it takes, or of all of them."""
    text, takes = _HELPS[command]
    # What says which file comes first.
    options = sorted(
        (option for option in OPTIONS if takes(option)), key=lambda option: option is not BY_NAME["config_file"]
    )
    return text.format(options=list_options(options))
