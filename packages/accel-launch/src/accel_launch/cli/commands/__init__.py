"""The subcommands of `accel`: each module has a COMMAND."""
