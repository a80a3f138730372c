# `make demo` and `make test` each do all set-up from a fresh clone: own .venv, pinned versions, nothing global.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP = .venv/bin/python -m pip --disable-pip-version-check

.PHONY: demo test check bench clean

demo: .venv/ready
	.venv/bin/concilium demo

test: .venv/ready
	.venv/bin/python -m pytest -n 2 --dist worksteal

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/bench
	for file in benchmarks/*.py; do .venv/bin/python $$file || exit 1; done

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Concilium needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt -e '.[codes,demo,dev,excel,experts,flare,hl7,postgres,units,web]'
	touch $@

.venv/bench: .venv/ready
	$(PIP) install -q -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf .venv build dist
