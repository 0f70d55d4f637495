"""A truth value that scripts may also call."""


class CallableBool(int):
    """True or False as an attribute, and the same when called: scripts in the wild write it both ways."""

    def __new__(cls, value: object) -> "CallableBool":
        return super().__new__(cls, bool(value))

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))
