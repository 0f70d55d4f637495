"""Rewrite a program of Python, and keep all of its text that is not about Accelerate."""

from __future__ import annotations

from accel_compat.migrate.mentions import notes_of_texts
from accel_compat.migrate.program_names import ProgramNames, find_names
from accel_compat.migrate.program_notes import notes_of_program
from accel_compat.migrate.report import CannotRewrite, Rewritten
from accel_compat.migrate.rewrites import OURS


def rewrite_python(text: str) -> Rewritten:
    """Rewrite a program so that it imports accel.

    Raises:
        CannotRewrite: It is not Python, or its text would change in other places.
    """
    new = rewrite_program(text, find_names(text))
    return Rewritten(new, (*notes_of_texts(text), *notes_of_program(new, find_names(new, OURS))))


def rewrite_program(text: str, names: ProgramNames) -> str:
    """Return a program with accel in place of Accelerate.

    Raises:
        CannotRewrite: Its text would change in other places.
    """
    if not names.origins:
        return text
    # only here: the import takes most of the time of this command
    import libcst as cst

    from accel_compat.migrate.codemod import Codemod

    try:
        module = cst.parse_module(text)
        if module.code != text:
            raise CannotRewrite("it cannot be read without a loss: its text would change in other places")
        return module.visit(Codemod(names)).code
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise CannotRewrite(f"it cannot be read without a loss: {str(error).splitlines()[0]}") from None
