"""The help of `accel config`, made from the table of options."""

from accel_launch.help_text import list_options
from accel_launch.options import BY_NAME, OPTIONS

CONFIG = """\
usage: accel config [--config_file PATH]
       accel config default [--overwrite] [--config_file PATH] [options]
       accel config update [--config_file PATH]
       accel config show [--origin] [options of accel launch]

Writes and shows the file of settings that accel launch reads. Without PATH that is default_config.yaml in $ACCEL_HOME,
else in accel below $HF_HOME, else in ~/.cache/huggingface/accel; or what $ACCEL_CONFIG_FILE names. No launch needs a
file.

commands:
  (none)     asks what to write, at a terminal; Ctrl-C writes nothing
  default    writes what the options say and the GPUs that are found, and asks nothing; another file that is there
             already stays as it is, unless --overwrite is given
  update     rewrites a file in accel's own keys, also one of Accelerate's; keeps PATH.bak, and lists what was dropped
  show       prints the value of each setting; with --origin also whether a flag, a variable, the file or nobody set it

options of accel config default:
{options}

examples:
  accel config default --num_processes 2 --mixed_precision bf16
  accel config update --config_file ~/.cache/huggingface/accelerate/default_config.yaml
  accel config show --origin -n 4

exit codes: 0 if it was done; 2 if not; 130 after Ctrl-C.
"""


def config_help() -> str:
    """The help of `accel config`, which lists every option that a file may set."""
    options = [BY_NAME["config_file"], *(option for option in OPTIONS if option.key is not None)]
    return CONFIG.format(options=list_options(options))
