from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(
        "-p", "accel_testing", "-p", "suite.leak_check", "--import-mode=importlib", *args
    )


def test_a_changed_environment_is_an_error_and_is_put_back(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os
        def test_leaks():
            os.environ["LEFT_BEHIND"] = "1"
        def test_next():
            assert "LEFT_BEHIND" not in os.environ
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*changed environment*LEFT_BEHIND: '(unset)' became '1'*"])


def test_monkeypatch_is_no_leak(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_sets(monkeypatch):\n    monkeypatch.setenv('SET', '1')")
    result.assert_outcomes(passed=1)


def test_a_running_thread_is_an_error(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import threading
        stop = threading.Event()
        def test_leaks():
            threading.Thread(target=stop.wait, name="forgotten").start()
        def test_next():
            stop.set()
        def test_daemons_are_allowed():
            threading.Thread(target=threading.Event().wait, args=(1,), daemon=True).start()
        """,
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*running threads*forgotten*"])


def test_an_open_process_group_is_an_error_and_is_closed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import torch.distributed as dist
        def test_leaks():
            dist.init_process_group("fake", rank=0, world_size=4)
        def test_next():
            assert not dist.is_initialized()
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*open default process group*"])


def test_a_child_process_is_an_error_and_is_killed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import multiprocessing, time
        def test_leaks():
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), name="orphan").start()
        def test_next():
            assert not multiprocessing.active_children()
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*child processes*orphan*"])


def test_a_mark_allows_what_it_names_and_nothing_else(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os, pytest
        @pytest.mark.leaves("environment")
        def test_allowed():
            os.environ["LEFT_BEHIND"] = "1"
        @pytest.mark.leaves("threads")
        def test_refused():
            os.environ["LEFT_BEHIND"] = "1"
        @pytest.mark.leaves("everything")
        def test_unknown():
            pass
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(["*leaves(everything): expected some of environment, threads, group, children*"])
