"""The completion scripts for bash, zsh and fish, made from one grammar."""

import shlex
from collections.abc import Callable, Sequence

from accel_launch.completion_grammar import FILES, FOLDERS, SHELL_NAMES, Command, Flag

BASH = r"""# bash completion for accel: eval "$(accel completion bash)"
_accel_takes() {
    case "$1" in
        @TAKING@) return 0 ;;
    esac
    return 1
}

_accel_offer() {
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@" -- "$cur")
}

_accel_files() {
    compopt -o filenames 2>/dev/null
    _accel_offer "$1"
}

_accel() {
    local cur="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" at=2 word="" words="" flags="" others=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        _accel_offer -W "@COMMANDS@ --help --version"
        return
    fi
    local scripted=0
    case "$command" in
@CASES@
        *) return ;;
    esac
    while [ "$at" -lt "$COMP_CWORD" ]; do
        word="${COMP_WORDS[at]}"
        case "$word" in
            --) at=$((at + 1)); flags=""; others=""; break ;;
            -*)
                if [ "${COMP_WORDS[at + 1]}" = "=" ]; then
                    at=$((at + 3))
                elif _accel_takes "$word"; then
                    at=$((at + 2))
                else
                    at=$((at + 1))
                fi ;;
            *)
                words=""
                case "$command $word" in
@AFTER@
                esac
                if [ "$scripted" -eq 1 ]; then _accel_files -f; return; fi
                at=$((at + 1)) ;;
        esac
    done
    if [ "$at" -gt "$COMP_CWORD" ]; then
        if [ "$cur" = "=" ]; then cur=""; fi
        case "$word" in
@VALUES@
        esac
        return
    fi
    case "$cur" in
        -*)
            _accel_offer -W "$flags"
            if [ "${#COMPREPLY[@]}" -eq 0 ]; then _accel_offer -W "$others"; fi ;;
        *)
            if [ -n "$words" ]; then _accel_offer -W "$words"; else _accel_files -f; fi ;;
    esac
}

complete -F _accel accel
"""

ZSH = r"""# zsh completion for accel, after compinit: eval "$(accel completion zsh)"
_accel_takes() {
    case "$1" in
        @TAKING@) return 0 ;;
    esac
    return 1
}

_accel_value() {
    case "$1" in
@VALUES@
    esac
}

_accel() {
    local command="${words[2]}" at=3 word="" scripted=0
    local -a commands flags others subcommands
    commands=(@COMMANDS@)
    if (( CURRENT == 2 )); then
        _describe -t commands command commands
        return
    fi
    case "$command" in
@CASES@
        *) return 1 ;;
    esac
    while (( at < CURRENT )); do
        word="${words[at]}"
        case "$word" in
            --) (( at += 1 )); flags=(); others=(); break ;;
            -*=*) (( at += 1 )) ;;
            -*) if _accel_takes "$word"; then (( at += 2 )); else (( at += 1 )); fi ;;
            *)
                subcommands=()
                case "$command $word" in
@AFTER@
                esac
                if (( scripted )); then _files; return; fi
                (( at += 1 )) ;;
        esac
    done
    if (( at > CURRENT )); then
        _accel_value "$word"
        return
    fi
    word="${words[CURRENT]}"
    case "$word" in
        -*=*) compset -P '*='; _accel_value "${word%%=*}" ;;
        -*) _describe -o -t options option flags || _describe -o -t options option others ;;
        *) if (( $#subcommands )); then compadd -- $subcommands; else _files; fi ;;
    esac
}

compdef _accel accel
"""

FISH = r"""# fish completion for accel: accel completion fish | source
function __accel_takes
    contains -- $argv[1] @TAKING@
end

# Whether the command is one of those named, and, with "options" or "words" first, whether these may come here.
function __accel_at
    set -l said (commandline -opc)
    test (count $said) -ge 2; and contains -- $said[2] $argv[2..]; or return 1
    set -l at 3
    while test $at -le (count $said)
        set -l word $said[$at]
        if test "$word" = --
            return 1
        else if __accel_takes $word
            set at (math $at + 2)
        else if string match -q -- '-*' $word
            set at (math $at + 1)
        else
            test "$argv[1]" = words; and return 1
            contains -- $said[2] @SCRIPTED@; and return 1
            set at (math $at + 1)
        end
    end
    return 0
end

complete -c accel -n 'test (count (commandline -opc)) -eq 1' -f -l help -d 'What there is.'
complete -c accel -n 'test (count (commandline -opc)) -eq 1' -f -l version -d 'The version.'
@LINES@
"""


def bash(commands: Sequence[Command]) -> str:
    """The script for bash 3.2 and later."""
    cases = []
    for each in commands:
        offered = " ".join(one for flag in each.flags if not flag.after for one in flag.offered)
        others = " ".join(one for flag in each.flags for one in flag.others)
        cases.append(
            f'        {each.name}) flags="{offered}"; others="{others}"; words="{" ".join(each.words)}";'
            f" scripted={int(each.script)} ;;"
        )
    return _fill(
        BASH,
        TAKING=_taking(commands, "|"),
        COMMANDS=" ".join(each.name for each in commands),
        CASES="\n".join(cases),
        AFTER=_after(commands, lambda flag, one: f'flags="$flags {one}"'),
        VALUES=_values(commands, _bash_values),
    )


def zsh(commands: Sequence[Command]) -> str:
    """The script for zsh 5, which needs compinit."""
    cases = []
    for each in commands:
        offered = " ".join(_zsh_word(flag, one) for flag in each.flags if not flag.after for one in flag.offered)
        others = " ".join(_zsh_word(flag, one) for flag in each.flags for one in flag.others)
        cases.append(
            f"        {each.name}) flags=({offered}); others=({others}); subcommands=({' '.join(each.words)});"
            f" scripted={int(each.script)} ;;"
        )
    return _fill(
        ZSH,
        TAKING=_taking(commands, "|"),
        COMMANDS=" ".join(shlex.quote(f"{each.name}:{each.help}") for each in commands),
        CASES="\n".join(cases),
        AFTER=_after(commands, lambda flag, one: f"flags+=({_zsh_word(flag, one)})"),
        VALUES=_values(commands, _zsh_values),
    )


def fish(commands: Sequence[Command]) -> str:
    """The script for fish 3."""
    first = "test (count (commandline -opc)) -eq 1"
    lines = [f"complete -c accel -n '{first}' -f -a {each.name} -d {_fish_word(each.help)}" for each in commands]
    for each in commands:
        if each.words:
            lines.append(f"complete -c accel -n '__accel_at words {each.name}' -f -a '{' '.join(each.words)}'")
    for flag in _all_flags(commands):
        owners = " ".join(each.name for each in commands if flag in each.flags)
        lines += [_fish_flag(one, flag, owners) for one in flag.offered]
    return _fill(
        FISH,
        TAKING=_taking(commands, " "),
        SCRIPTED=" ".join(each.name for each in commands if each.script),
        LINES="\n".join(lines),
    )


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = dict(zip(SHELL_NAMES, (bash, zsh, fish), strict=True))


def _all_flags(commands: Sequence[Command]) -> list[Flag]:
    """Each option once, whichever commands have it."""
    return list(dict.fromkeys(flag for each in commands for flag in each.flags))


def _values(commands: Sequence[Command], offer: Callable[[tuple[str, ...]], str]) -> str:
    """The lines of a `case` in which an option offers its values."""
    return "\n".join(
        f"            {'|'.join((*flag.offered, *flag.others))}) {offer(flag.values)} ;;"
        for flag in _all_flags(commands)
        if flag.takes_value and flag.values
    )


def _after(commands: Sequence[Command], add: Callable[[Flag, str], str]) -> str:
    """The lines of a `case` in which a word of a command adds options to those offered."""
    return "\n".join(
        f'                    "{each.name} {flag.after}") {add(flag, one)} ;;'
        for each in commands
        for flag in each.flags
        if flag.after
        for one in flag.offered
    )


def _zsh_word(flag: Flag, spelling: str) -> str:
    return shlex.quote(f"{spelling}:{flag.help}")


def _taking(commands: Sequence[Command], between: str) -> str:
    return between.join(
        one for flag in _all_flags(commands) if flag.takes_value for one in (*flag.offered, *flag.others)
    )


def _bash_values(values: tuple[str, ...]) -> str:
    if values == (FILES,):
        return "_accel_files -f"
    return "_accel_files -d" if values == (FOLDERS,) else f'_accel_offer -W "{" ".join(values)}"'


def _zsh_values(values: tuple[str, ...]) -> str:
    if values == (FILES,):
        return "_files"
    return "_files -/" if values == (FOLDERS,) else f"compadd -- {' '.join(values)}"


def _fish_flag(spelling: str, flag: Flag, owners: str) -> str:
    name = f"-l {spelling[2:]}" if spelling.startswith("--") else f"-s {spelling[1:]}"
    if not flag.takes_value:
        value = ""
    elif flag.values == (FILES,):
        value = " -r -F"
    elif flag.values == (FOLDERS,):
        value = " -x -a '(__fish_complete_directories)'"
    else:
        value = f" -x -a '{' '.join(flag.values)}'" if flag.values else " -x"
    about = f" -d {_fish_word(flag.help)}" if flag.help else ""
    after = f"; and contains -- {flag.after} (commandline -opc)" if flag.after else ""
    return f"complete -c accel -n '__accel_at options {owners}{after}' {name}{value}{about}"


def _fish_word(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _fill(template: str, **parts: str) -> str:
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template
