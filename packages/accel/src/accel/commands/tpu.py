"""The commands for TPU pods, under the path that programs import them from."""

from accel_names.commands.tpu_pods import tpu_command_launcher as tpu_command_launcher
from accel_names.commands.tpu_pods import tpu_command_parser as tpu_command_parser
