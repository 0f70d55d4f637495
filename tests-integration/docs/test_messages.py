"""What the program says is on the page "Messages", and is said in sentences.

`python docs/_site/messages.py` prints all messages with their places.
"""

import ast
import re

import messages
import pytest
from messages import Message, markdown, texts

FOUND = messages.messages()
#: words without a verb, or with a "no" where English has "not a"
TELEGRAPH = re.compile(r"\bsince \{|\bwaits since\b|(?<!there )\b(?:is|are) no (?!longer\b)|\bis a \w+, and no\b")
#: a sentence begins small, as it follows the name of an exception; names keep their letters
CAPITAL = re.compile(r"^[A-Z][a-z]+ ")
NAMES = ("Accelerator", "Linux ")
#: what programs for Accelerate look for in its messages
OF_ACCELERATE = ("Batch size was passed", "No executable batch size found", "Distributed environment: ")
#: a title of the page of runs
NO_MESSAGES = ("Restarts and checkpoints",)
TO_DO = re.compile(r"[;:]|\b(?:expected|found|needs|takes|give|use)\b")


def faults(message: Message) -> list[str]:
    """What is wrong with the form of a message."""
    text, wrong = message.text, []
    if TELEGRAPH.search(text):
        wrong.append('write a sentence: "is not a folder", "has been waiting for 4 s"')
    if CAPITAL.search(text) and not text.startswith((*NAMES, *OF_ACCELERATE, *NO_MESSAGES)):
        wrong.append("begin with a small letter")
    if re.search(r"(?<!\.)[.!]$", text) and "<" not in text:
        wrong.append("leave out the point at the end")
    # "it ..." ends a sentence that another message begins
    if message.kind in ("ValueError", "TypeError") and not text.startswith(("it ", "its ")) and not TO_DO.search(text):
        wrong.append("say what was expected, or what to do")
    return wrong


def test_the_messages_are_sentences() -> None:
    wrong = {f"{one.module}:{one.line}: {one.text}": faults(one) for one in FOUND if faults(one)}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("rank 0 waits since {seconds} s: look there", 1),
        ("{folder} is no folder; give another", 1),
        ("there is no folder {folder}; give another", 0),
        ("Models cannot be prepared twice.", 3),
        ("rank={rank}: expected 0 to {last}", 0),
    ],
)
def test_a_fault_is_found(text: str, count: int) -> None:
    assert len(faults(Message("accel", "accel.module", 1, "ValueError", text))) == count


def test_messages_are_read_out_of_the_source() -> None:
    tree = ast.parse(
        '''
def check(folder, problems, warned):
    """Is no message of the program."""
    if problems:
        raise ValueError(f"the folder {folder.name!r} has {len(problems)} faults: " + "; ".join(problems))
    warned.warn_once("the folder is empty, and nothing is read")
    problems.append(f"{', '.join(folder.names)} cannot be read here")
    return "short"
'''
    )
    assert [(kind, text) for _, kind, text in sorted(texts(tree), key=lambda found: found[0])] == [
        ("ValueError", "the folder {name} has {number of problems} faults: {problems, ...}"),
        ("reason", "the folder {name} has {number of problems} faults: {problems, ...}"),
        ("warning", "the folder is empty, and nothing is read"),
        ("reason", "{names, ...} cannot be read here"),
    ]


def test_the_page_has_each_message_once() -> None:
    page = markdown(FOUND)
    for package in ("accel", "accel-data", "accel-launch", "accel-checkpoint"):
        assert f"## Messages of {package}\n" in page
    assert page.count("only a torch.utils.data.DataLoader can be prepared") == 1
    (line,) = [line for line in page.splitlines() if "only a torch.utils.data.DataLoader" in line]
    assert line.endswith("*TypeError* in `accel_data.prepare`")
    assert messages.PLACE in (messages.ROOT / "docs" / f"{messages.PAGE}.md").read_text()


def test_most_of_what_is_raised_is_on_the_page() -> None:
    """A message that is put together elsewhere is found there, or not at all."""
    raised = [one for one in FOUND if one.kind not in ("reason", "warning")]
    assert len(raised) > 400
