"""Run `accel env`, for a bug report: versions, devices, the config file, and which settings win."""

import sys
from collections.abc import Iterator, Mapping

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions

HELP = """Prints versions, devices, the config file, and which value each launch option would have, and why. With the
options of accel launch it tells how they would change that."""
_TELLING = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def run(options: ResolvedOptions) -> int:
    """Print the report.

    Raises:
        CannotRun: A setting in it is wrong. It is raised after the report.
    """
    from accel_state.errors import CannotRun

    from accel_launch.config.config_show import setting_lines

    environ = options.environ
    settings = ("settings:", *(f"  {line}" for line in setting_lines(options, origins=True)))
    for part in (_versions(), _devices(environ), _config(options), settings, _variables(environ)):
        print("\n".join(part), flush=True)
    if options.problems:
        raise CannotRun("accel env", options.problems)
    return 0


def _versions() -> Iterator[str]:
    import platform
    from importlib.metadata import distributions

    yield f"python: {platform.python_version()} ({sys.executable})"
    yield f"platform: {platform.platform()}"
    names = {package.metadata["Name"] or "": package.version for package in distributions()}
    ours = {name: version for name, version in names.items() if name.partition("-")[0] == "accel"}
    yield from (f"{name}: {version}" for name, version in sorted(ours.items()))
    if not ours:
        yield "accel: no distribution is installed; the packages are used from a source folder"


def _devices(environ: Mapping[str, str]) -> Iterator[str]:
    from accel_launch.job.job import this_host

    host = this_host(environ)
    yield f"cores: {host.cores}"
    yield f"accelerators counted without torch: {host.accelerators}"
    try:
        import torch
    except ModuleNotFoundError:
        yield "torch: not installed"
        return
    except (ImportError, OSError) as error:
        yield f"torch: installed, but cannot be imported: {error}"
        return
    yield f"torch: {torch.__version__} (built for CUDA {torch.version.cuda or 'none'})"
    count = torch.cuda.device_count()
    yield f"devices seen by torch: {count or 'CPU only'}"
    for index in range(count):
        yield f"  cuda:{index}: {torch.cuda.get_device_name(index)}"


def _config(options: ResolvedOptions) -> Iterator[str]:
    from accel_launch.config.config_file import config_folder

    default = f"none (default_config.yaml would be read from {config_folder(options.environ)})"
    yield f"config file: {options.file or default}"


def _variables(environ: Mapping[str, str]) -> Iterator[str]:
    chosen = sorted(name for name in environ if name.startswith("ACCEL_") or name in _TELLING)
    yield "environment:" if chosen else "environment: no variable that accel reads is set"
    yield from (f"  {name}={environ[name]}" for name in chosen)


COMMAND = LaunchCommand("env", run, help=HELP)
