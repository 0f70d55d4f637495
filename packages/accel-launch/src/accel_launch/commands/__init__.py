"""The subcommands of `accel`, one file each, imported when used."""
