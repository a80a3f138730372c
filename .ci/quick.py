"""Run the tests of the packages that changed, and the contract suite on one method of each kind of patients' data.

python .ci/quick.py [BASE]      default: what is not committed, or else what the last commit changed

Where more than FEW packages changed, of their tests those that name a changed module. The slowest files are left to
`make test`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Packages whose tests are in the folder of another one.
ELSEWHERE = {
    "ledger": ["tests/privacy/test_ledger*.py", "tests/privacy/test_hash_tree.py"],
    "models": ["tests/protocol/test_decision.py", "tests/protocol/test_adapting.py", "tests/consult"],
    "transports": [
        "tests/protocol/test_embedded.py",
        "tests/protocol/test_flare.py",
        "tests/flare/test_kits.py",
    ],
}
SLOW = [
    "tests/adversary/test_gateway_messages.py",
    "tests/adversary/test_relays.py",
    "tests/adversary/test_work.py",
    "tests/cli/test_demo_command.py",
    "tests/cli/test_tutorial.py",
    "tests/flare",
    "tests/protocol/test_hostile_numbers.py",
]
FEW = 3
# Of tables, of rules and of series.
METHODS = ("tree", "discovery", "experts")


def list_changed(base: str | None) -> list[str]:
    git = ["git", "diff", "--name-only"]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    if base is not None:
        return [*run(*git, base), *run(*new)]
    return [*run(*git, "HEAD"), *run(*new)] or run(*git, "HEAD~1")


def run(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def choose_tests(changed: list[str]) -> list[str]:
    """The folders and files of tests that are about the changed files."""
    chosen = {"tests/test_architecture.py"}
    modules: dict[str, set[str]] = {}
    for name in changed:
        parts = Path(name).parts
        if parts[0] == "tests" and Path(name).name.startswith("test_") and Path(name).exists():
            chosen.add(name)
        elif parts[0] == "tests" and len(parts) > 2 and list(Path(name).parent.glob("test_*.py")):
            chosen.add(str(Path(name).parent))  # what its tests share
        elif parts[:2] == ("src", "concilium") and len(parts) > 3:
            modules.setdefault(parts[2], set()).add(Path(name).stem)
    for package, names in modules.items():
        folder = f"tests/{package}"
        places = ELSEWHERE.get(package, [folder] if Path(folder).is_dir() else [])
        found = [path for place in places for path in Path().glob(place)]
        if len(modules) > FEW:
            named = re.compile(rf"concilium\.{package}\b.*\b(?:{'|'.join(sorted(names))})\b")
            files = [
                file for path in found for file in (path.rglob("test_*.py") if path.is_dir() else [path])
            ]
            found = [file for file in files if named.search(file.read_text(encoding="utf-8"))]
        chosen |= {str(path) for path in found}
    return sorted(chosen)


def main() -> int:
    tests = choose_tests(list_changed(sys.argv[1] if len(sys.argv) > 1 else None))
    pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
    slow = [f"--ignore={place}" for place in SLOW if not any(test.startswith(place) for test in tests)]
    print("tests:", *tests, "and the contract of", *METHODS, flush=True)
    ended = subprocess.run([*pytest, *tests, *slow]).returncode
    others = "voting or rulefit or bayes or masked"
    chosen = f"({' or '.join(METHODS)}) and not ({others})"
    contract = subprocess.run([*pytest, "tests/contract/test_contract.py", "-k", chosen])
    return ended or contract.returncode


if __name__ == "__main__":
    sys.exit(main())
