"""Run the subcommands of `accel`, of which each module has a COMMAND."""
