"""The check of a machine as a function, under the path that programs import it from."""

from accel_names.commands.launch import check_command as test_command
from accel_names.commands.launch import check_command_parser as test_command_parser

__all__ = ["test_command", "test_command_parser"]
