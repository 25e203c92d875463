"""Build sdist and wheel, and use them as a stranger would: nothing of src/ is seen (`make package`).

    python scripts/package.py [--out dist]

Needs build, hatchling and twine, and an environment into which the wheel may be installed; takes about a minute.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 4_000_000  # bytes of the wheel
NOT_SHIPPED = (".ci/", ".gitignore")  # what of the repository only its own server needs
ASKED = (
    "test_public.py",
    "test_layout.py",
    "test_documentation.py",
    "experiments/test_ledger.py",
    "measures/test_columns.py",
)


def called(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the repository's own environment; its standard output."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=own | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def tracked() -> set[str]:
    """The files of the repository; of an unpacked sdist, where there is no git, none."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return {name for name in done.stdout.split("\n") if name and not name.startswith(NOT_SHIPPED)}


def built(out: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    for old in out.glob("layerlaw-*"):
        old.unlink()
    called(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    if missing := tracked() - packed:
        sys.exit(f"{sdist.name}: expected every file of the repository, missing are {', '.join(sorted(missing)[:10])}.")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    due = {name.removeprefix("src/") for name in tracked() if name.startswith("src/")} | {"layerlaw/py.typed"}
    if missing := due - names:
        sys.exit(f"{wheel.name}: expected every file of the package, missing are {', '.join(sorted(missing)[:10])}.")
    if strange := [n for n in names if not n.startswith(("layerlaw/", "layerlaw-"))]:
        sys.exit(f"{wheel.name}: expected the package alone, got {', '.join(sorted(strange)[:10])}.")
    if (size := wheel.stat().st_size) > LARGEST:
        sys.exit(f"{wheel.name}: expected at most {LARGEST:,} bytes, got {size:,}.")
    print(f"{sdist.name} {sdist.stat().st_size:,} bytes, {wheel.name} {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out.resolve()
    sdist, wheel = built(out)
    check_contents(sdist, wheel)
    print(called(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=out).strip())
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    called(*pip, "install", "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=out)
    layerlaw = Path(sys.executable).parent / "layerlaw"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = Path(called(sys.executable, "-c", "import layerlaw; print(layerlaw.__file__)", cwd=folder).strip())
        if not seen.is_relative_to(Path(sys.prefix)):
            sys.exit(f"layerlaw: expected the installed wheel below {sys.prefix}, got {seen}.")
        print("version", called(layerlaw, "--version", cwd=folder).strip(), "of", seen.parent)
        called(layerlaw, "demo", "--quick", "--out", "demo", cwd=folder)
        page = folder / "demo" / "page.html"
        print(f"demo --quick: {len(list(page.parent.glob('*.json')))} records, a page of {page.stat().st_size:,} bytes")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        unpacked = folder / sdist.name.removesuffix(".tar.gz")
        pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        found = called(*pytest, "--collect-only", "tests", cwd=unpacked).split("\n")
        counts = [int(line.rpartition(": ")[2]) for line in found if line.startswith("tests/")]
        print(f"tests of the sdist, collected with the wheel: {sum(counts)} in {len(counts)} files")
        asked = [f"tests/{name}" for name in ASKED if (unpacked / "tests" / name).exists()]
        called(*pytest, *asked, "-k", "not example and not site_is_built and not guides", cwd=unpacked)
        print(f"passed there: {', '.join(asked)}")


if __name__ == "__main__":
    main()
