"""Command lines of `accel launch`, read without a start."""

from accel_launch.cli.launch_command import ResolvedOptions, resolve_options


def read(tokens: list[str], environ: dict[str, str] | None = None) -> ResolvedOptions:
    """What a line says in an environment without a config file."""
    return resolve_options(tokens, {"ACCEL_HOME": "/nowhere", **(environ or {})})
