"""Programs of Python that start in milliseconds: a stand-in for `python` whose programs are forked from a server."""
