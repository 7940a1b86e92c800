# The commands of this project; `make` alone lists them.

PYTHON := .venv/bin/python
export DEMO_SOURCE ?= mysql
SEEDS ?= 20
MIGRATIONS ?= 500
MINUTES ?= 0
OTHER_VERSIONS := mysql=8.0 mysql=8.4 mariadb=11.4 mariadb=newest postgres=16 postgres=17 postgres=18
export PYTHONUNBUFFERED := 1
# Where an image sets it, each process of ours would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo check test times lint linters soak bench pictures up down lock

help:
	@echo "make setup   what is missing: .venv, the jars of Delta and Kafka, the test servers"
	@echo "make demo    the whole path on real servers; DEMO_SOURCE=mysql (default), mariadb or postgres; QUICK=1: a short one"
	@echo "make check   linters, types, unit tests and small worlds, without a server"
	@echo "make test    linters, types, and the tests on real servers; EVERY=1: each on every database"
	@echo "make times   where the time of the last make test went"
	@echo "make up      the local stack: databases, ZooKeeper, Airflow with the DAGs;  make down  stops it, data kept"
	@echo "make soak    every test on every database, and the seeded long runs; SEEDS=20 for each of them, MIGRATIONS=500, MINUTES=M to stop after that time"
	@echo "make lint    ruff, mypy, import rules, prose; the linters of docker/"
	@echo "make bench   the benchmarks, beside Debezium and the servers' own tools, in hours; QUICK=1: smaller, in 90 minutes; FULL=1: larger"
	@echo "make pictures   the documentation's pictures of Airflow anew, from the browser tests"
	@echo "make lock    requirements.txt anew from pyproject.toml"

setup: SERVERS := all
setup: .venv/.complete
	@$(PYTHON) -m dblog_core.local.setup

.venv/.complete: requirements.txt pyproject.toml
	@tools/setup $(SERVERS)

# What the tests need besides is not fetched for the demo.
.venv/.demo: tools/demo-requirements.txt pyproject.toml
	@tools/setup $(DEMO_SOURCE)

demo: $(firstword $(wildcard .venv/.complete) .venv/.demo)
	@$(PYTHON) -m dblog_core.local.setup $(DEMO_SOURCE)
	@exec $(PYTHON) -m dblog_core.local.demo $(if $(QUICK),--quick)

check: linters  # the import rules are among the unit tests
	@exec $(PYTHON) -m pytest --quiet -n 2 -m "not bench and not soak" --smaller tests/unit tests/protocol

# A run that hangs ends by itself before the limit of a CI: the set-up counts, so the time begins here.
test: export DBLOG_TESTS_BEGAN := $(shell date +%s)
test:
	@$(MAKE) --no-print-directory --jobs=2 setup linters  # the import rules are among the tests
	@exec $(PYTHON) -m pytest -n 3 --max-worker-restart=0 --no-loadscope-reorder --run-minutes=80 --turn-minutes=18 \
	  -m "not bench and not soak" $(if $(EVERY),--every-kind)

times:
	@$(PYTHON) -m tests.times

lint: linters
	@$(PYTHON) -m pytest --quiet --no-summary tests/unit/test_imports.py

linters: .venv/.complete
	@$(PYTHON) -m ruff check --quiet --output-format concise .
	@$(PYTHON) -m ruff format --check --quiet --output-format concise .
	@$(PYTHON) -m mypy
	@tools/lint-docker
	@$(PYTHON) tools/check-prose

# First all that `make test` takes in turn, then the long runs; the second goes on where the first has failed.
soak: setup
	@code=0; \
	$(PYTHON) -m pytest -n 3 --max-worker-restart=0 --no-loadscope-reorder -m "not bench and not soak" --every-kind || code=1; \
	for version in $(OTHER_VERSIONS); do kind=$${version%=*}; [ $$kind != mysql ] || kind="mysql and not mariadb"; \
	  $(PYTHON) -m pytest -n 3 --max-worker-restart=0 --no-loadscope-reorder -m "not bench and not soak" --every-kind \
	  --$$version -k "$$kind and not make_commands" tests/contract tests/integration tests/conformance || code=1; \
	done; \
	for way in mark copy; do $(PYTHON) -m pytest --lake-way=$$way -m "not bench and not soak" tests/spark || code=1; done; \
	$(PYTHON) -m pytest tests/nemesis tests/simulation/test_simulation.py::test_more_seeds \
	  tests/unit/staging/test_retention.py::test_soak_of_the_worlds \
	  tests/integration/test_verify.py::test_seeded_writes_raise_no_false_alarm \
	  tests/integration/test_verify_at_size.py tests/contract/test_generated_values.py tests/contract/test_forms.py \
	  tests/integration/test_schema_matrix.py tests/spark/test_schema_matrix.py tests/conformance \
	  tests/airflow/test_faults.py tests/spark/test_merge_faults.py tests/spark/test_histories.py tests/spark/test_policies.py \
	  --soak-seeds=$(SEEDS) --soak-minutes=$(MINUTES) || code=1; \
	$(PYTHON) -m pytest -n 3 --max-worker-restart=0 --soak-seeds=$(MIGRATIONS) --soak-minutes=$(MINUTES) \
	  tests/integration/test_held_tables.py::test_random_migrations_bring_no_hidden_value_into_the_open || code=1; \
	exit $$code

bench: setup .venv-bench/.complete
	@exec $(PYTHON) -m pytest tests/benchmarks -p no:randomly --capture=no --bench=$(if $(FULL),full,$(if $(QUICK),quick,usual))

pictures: setup
	@exec $(PYTHON) -m pytest tests/airflow/test_page.py tests/airflow/test_dump_page.py tests/airflow/test_backfills.py \
	  --pictures docs/images

.venv-bench/.complete: tests/benchmarks/requirements.txt
	@tools/setup-bench

up: setup
	@exec $(PYTHON) -m dblog_core.local.stack up

down: .venv/.complete
	@exec $(PYTHON) -m dblog_core.local.stack down

lock:
	@tools/lock
