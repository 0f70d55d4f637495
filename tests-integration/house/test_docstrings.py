"""The form of docstrings: Google style, with an imperative or a noun phrase in the first line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import readability
from repository import is_described_in_base, sources, tree_of, where

#: the packages whose docstrings have this form
DONE = (
    "accel-names",
    "accel",
    "accel-parallel",
    "accel-deepspeed",
    "accel-sequence",
    "accel-checkpoint",
    "accel-ops",
    "accel-big",
    "accel-amp",
    "accel-data",
    "accel-verify",
    "accel-chaos",
    "accel-rehearse",
    "accel-track",
    "accel-runs",
    "accel-submit",
    "accel-launch",
    "accel-comm",
    "accel-state",
    "accel-testing",
    "accel-compat",
)
#: the verbs that a function or a module may begin with: add one if none of them says it
VERBS = frozenset(
    """
    Act Add Advance Agree Answer Append Apply Arrange Ask Begin Bind Call Cast Change Check Choose Clear Clip Close
    Collect Combine Compare Compile Complete Compute Continue Convert Copy Count Cut Declare Describe Digest Divide
    Do Draw Drop Encode End Estimate Exchange Fill Find Flatten Forget Fork Free Gather Give Hand Hide Hold Import
    Index Install Join Keep Kill Launch Leave Let Link List Load Lock Log Look Make Map Merge Migrate Move Multiply
    Name Note Open Pack Pad Parse Pin Post Postpone Prepare Print Profile Put Raise Read Receive Recompute Record Reduce
    Refuse Register Remove Rename Repeat Replace Restore Resume Return Rewrite Run Save Scale Seed Send Serialize
    Serve Set Shard Show Skip Stage Stand Start Step Switch Take Tell Test Tie Track Train Turn Unlock Verify Vote
    Wait Warn Watch Write Yield
    """.split()  # noqa: SIM905
)
#: how the noun phrase of a class or a property begins
DETERMINERS = frozenset({"A", "An", "The", "True"})
#: each on a line of its own, above an indented block
LABELS = ("Args", "Returns", "Yields", "Raises", "Shape", "Units", "Collective", "Source")
#: parameters that a signature and its names explain
PLAIN_PARAMETERS = 2
Documented = ast.FunctionDef | ast.ClassDef
HOLDERS = (ast.Module, ast.FunctionDef, ast.ClassDef)


@pytest.mark.parametrize("package", DONE)
def test_docstrings_speak_to_a_caller(package: str) -> None:
    found = [
        f"{where(path, node)}: {problem}"
        for path in sources(package)
        for node, problem in problems(tree_of(path), public=True)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", DONE)
def test_docstrings_are_easy_to_read(package: str) -> None:
    nodes = [node for path in sources(package) for node in ast.walk(tree_of(path)) if isinstance(node, HOLDERS)]
    texts = "\n\n".join(filter(None, map(ast.get_docstring, nodes)))
    # each section and each parameter is a paragraph
    texts = re.sub(rf"^({'|'.join(LABELS)}):$", "", texts, flags=re.M)
    measured = readability.ease(re.sub(r"^    \*{0,2}\w+: ", "\n", texts, flags=re.M))
    assert measured.flesch >= readability.EASE_OF_A_PAGE
    assert measured.sentence <= readability.WORDS_OF_A_SENTENCE


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ('"""Whether it is."""', "begins with 'Whether'"),
        ('def f():\n    """Loads it."""', "begins with 'Loads'"),
        ('def f():\n    """The loaded file."""', "begins with 'The'"),
        ('class A:\n    """Return it."""', "begins with 'Return'"),
        ('class A:\n    @property\n    def b(self):\n        """Whether it is."""', "begins with 'Whether'"),
        ('def f():\n    """Return it; or not."""', "semicolon"),
        ('def f():\n    """Return it,\n    or not."""', "does not end"),
        ('def f(a, b, *, c):\n    """Return it."""', "no Args:"),
        ('class A:\n    """A class."""\n    def __init__(self, a, b, c): ...', "no Args:"),
        ('@dataclass\nclass A:\n    """A class."""\n    a: int\n    b: int\n    c: int', "no Args:"),
        ('def f(a, *b):\n    """Return it.\n\n    Args:\n        a: What\n            it is."""', "has a, not a, b"),
        ('def f():\n    """Return it.\n\n    Raises: ValueError.\n    """', "Raises: is not alone"),
        ('def _f():\n    """Return it.\n\n    Or not.\n    """', "one line"),
    ],
)
def test_a_docstring_of_another_form_is_found(code: str, problem: str) -> None:
    tree = ast.parse(code if code.startswith('"') else f'"""A module."""\n{code}')
    ((_, found),) = problems(tree, public=True)
    assert problem in found


def problems(holder: ast.Module | ast.ClassDef, *, public: bool) -> Iterator[tuple[ast.AST, str]]:
    """Yield what is wrong with the docstring of a module or a class, and with those inside."""
    yield from ((holder, problem) for problem in _problems_of(holder, public=public))
    for node in holder.body:
        seen = public and isinstance(node, Documented) and not node.name.startswith("_")
        if isinstance(node, ast.ClassDef):
            yield from problems(node, public=seen)
        elif isinstance(node, ast.FunctionDef):
            inherits = is_described_in_base(holder, node)
            yield from ((node, problem) for problem in _problems_of(node, public=seen, inherits=inherits))


def _problems_of(node: ast.Module | Documented, *, public: bool, inherits: bool = False) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text is None:
        return
    first, *rest = text.splitlines()
    word = re.split(r"\W", first, maxsplit=1)[0]
    noun = isinstance(node, ast.ClassDef) or _is_property(node)
    expected = DETERMINERS if noun else VERBS | DETERMINERS if isinstance(node, ast.Module) else VERBS
    if word not in expected:
        yield f"it begins with {word!r}, expected {'a noun phrase' if noun else 'a verb in the imperative'}"
    if ";" in first:
        yield "a semicolon in the first line"
    if not first.endswith("."):
        yield "the first line does not end with its sentence"
    yield from (f"{label}: is not alone in its line" for label in LABELS if re.search(rf"^{label}: *\S", text, re.M))
    if isinstance(node, ast.FunctionDef) and not public and rest:
        yield "a private function has one line"
    described = re.findall(r"^    \*{0,2}(\w+): ", _section(text, "Args"), re.M)
    parameters = _parameters(node)
    if described and described != parameters:
        yield f"Args: has {', '.join(described)}, not {', '.join(parameters)}"
    if public and not inherits and not described and len(parameters) > PLAIN_PARAMETERS:
        yield f"no Args: for {', '.join(parameters)}"


def _section(text: str, label: str) -> str:
    """Return the indented block under a label."""
    found = re.search(rf"^{label}:\n((?: +.*\n?|\n(?= ))+)", text, re.M)
    return found[1] if found else ""


def _is_property(node: ast.AST) -> bool:
    decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ())]
    return any(decorator.endswith("property") for decorator in decorators)


def _parameters(node: ast.Module | Documented) -> list[str]:
    """Return what a caller passes to a function, or to the constructor of a class."""
    if isinstance(node, ast.ClassDef):
        inits = [inner for inner in node.body if isinstance(inner, ast.FunctionDef) and inner.name == "__init__"]
        return _parameters(inits[0]) if inits else _fields(node)
    if not isinstance(node, ast.FunctionDef):
        return []
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [argument.arg for argument in named if argument is not None and argument.arg not in ("self", "cls")]


def _fields(node: ast.ClassDef) -> list[str]:
    """Return the fields of a record that its constructor takes."""
    words = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
    if not re.search(r"\b(dataclass|NamedTuple)\b", words):
        return []
    fields = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
    texts = {ast.unparse(field.target): ast.unparse(field) for field in fields}
    # an option of the launcher declares its own words
    others = ("ClassVar", "init=False", "_setting(")
    return [name for name, text in texts.items() if not any(other in text for other in others)]
