"""The launcher as a function."""

from accel.compat.names.commands import launch_command as launch_command
from accel.compat.names.commands import launch_command_parser as launch_command_parser
