"""The launcher as a function, under the path that programs import it from."""

from accel_names.commands.launch import launch_command as launch_command
from accel_names.commands.launch import launch_command_parser as launch_command_parser
