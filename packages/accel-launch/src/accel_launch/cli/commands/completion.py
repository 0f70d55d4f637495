"""Run `accel completion`, which prints the script that has a shell complete words."""

import click
from click.shell_completion import shell_complete

SHELLS = ("bash", "zsh", "fish")
HELP = """Prints a script that has a shell complete the commands of accel, their options, values of options, and files.

\b
To have it in every new shell, add the line for yours:
  bash    in ~/.bashrc                      eval "$(accel completion bash)"
  zsh     in ~/.zshrc, after compinit       eval "$(accel completion zsh)"
  fish    in ~/.config/fish/config.fish     accel completion fish | source"""


@click.command("completion", help=HELP)
@click.argument("shell", type=click.Choice(SHELLS))
def COMMAND(shell: str) -> int:
    """Print the script of a shell, and return 0."""
    from accel_launch.cli.program import ACCEL, COMPLETE, PROGRAM

    return shell_complete(ACCEL, {}, PROGRAM, COMPLETE, f"{shell}_source")
