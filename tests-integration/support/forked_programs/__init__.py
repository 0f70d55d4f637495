"""Start programs of Python in milliseconds: a stand-in for `python` has them forked from a server."""
