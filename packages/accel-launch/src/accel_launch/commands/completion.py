"""`accel completion`: prints the script that has a shell complete commands, options, their values, and files."""

from collections.abc import Sequence

from accel_launch.completion_grammar import grammar
from accel_launch.completion_scripts import SHELLS
from accel_launch.nearest import did_you_mean

HELP = """\
usage: accel completion SHELL

Prints a script that has SHELL, which is bash, zsh or fish, complete the commands of accel, their options, the values
of options, and files. To have it in every new shell, add the line for yours:

  bash    in ~/.bashrc                      eval "$(accel completion bash)"
  zsh     in ~/.zshrc, after compinit       eval "$(accel completion zsh)"
  fish    in ~/.config/fish/config.fish     accel completion fish | source
"""


def run(tokens: Sequence[str]) -> int:
    """Exit code 0 after the script or the help, 1 if no shell was named.

    Raises: CannotRun if the shell is none of those, or if there is more than one.
    """
    if not tokens or "-h" in tokens or "--help" in tokens:
        print(HELP, end="")
        return 0 if tokens else 1
    if len(tokens) > 1 or tokens[0] not in SHELLS:
        from accel_state.errors import CannotRun

        meant = did_you_mean(tokens[0], SHELLS) if len(tokens) == 1 else ""
        raise CannotRun("accel completion", [f"expected one of {', '.join(SHELLS)}, found {' '.join(tokens)!r}{meant}"])
    print(SHELLS[tokens[0]](grammar()), end="")
    return 0
