"""Models that another library divides while it loads them, for tests."""
