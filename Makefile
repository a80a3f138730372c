# `make demo` and `make test` each do all set-up from a fresh clone: own .venv, pinned versions, nothing global.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP = .venv/bin/python -m pip --disable-pip-version-check

.PHONY: demo test thorough quick check bench docs locked hashes sbom clean

demo: .venv/ready
	.venv/bin/concilium demo

# One process more than two cores: a fifth of the time of two is spent waiting, for networks above all.
test: .venv/ready
	.venv/bin/python -m pytest -n 3 --dist worksteal

# The same with all examples of property tests.
thorough: .venv/ready
	.venv/bin/python -m pytest -n 3 --dist worksteal --examples 1

# The tests of what changed since BASE (what is not committed, or else the last commit), and a part of the contract.
quick: .venv/ready
	.venv/bin/python .ci/quick.py $(BASE)

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/bench
	for file in benchmarks/*.py; do .venv/bin/python $$file || exit 1; done

# The pages as a site, in build/site: any link that leads nowhere ends it. What builds it has an environment of its own.
docs: .venv/ready build/docs/ready
	.venv/bin/python .ci/site.py build/docs/pages
	NO_MKDOCS_2_WARNING=1 build/docs/env/bin/mkdocs build --strict
	.venv/bin/python .ci/site.py --look build/site

build/docs/ready: constraints.txt
	$(PYTHON) -m venv build/docs/env
	build/docs/env/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt mkdocs-material
	touch $@

# What a hospital installs: every file is compared with its hash before it is used. In build/locked, beside .venv.
locked:
	$(PYTHON) -m venv build/locked
	build/locked/bin/python -m pip --disable-pip-version-check install -q --require-hashes -r hashes.txt
	build/locked/bin/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation .

hashes: .venv/ready
	mkdir -p build
	.venv/bin/python .ci/hashes.py > build/hashes.txt.new
	mv build/hashes.txt.new hashes.txt

# A bill of materials (CycloneDX) of what `make locked` installed; the tool has an environment of its own.
sbom: locked
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip --disable-pip-version-check install -q cyclonedx-bom==7.5.0
	build/sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml -o build/sbom.json build/locked/bin/python

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Concilium needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt -e '.[cds,codes,demo,dev,excel,experts,fhir,flare,hl7,postgres,sqlserver,units,web]'
	touch $@

.venv/bench: .venv/ready
	$(PIP) install -q -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf .venv build dist
