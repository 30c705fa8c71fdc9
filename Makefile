# make lab    the dashboard with a real Triton behind it, on http://127.0.0.1:8501
# make test   every check and test that CI runs
# make unit   the unit tier of the tests, in less than a minute
# make test-airflow   the nightly DAG of deploy/airflow in a real Airflow, in an environment of its own
PYTHON ?= $(shell for p in python3.12 python3.11 python3 python3.13; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv

.PHONY: lab test unit test-airflow bench clean

lab: $(VENV)/.ready
	@$(VENV)/bin/python -m lab up

test: $(VENV)/.ready-dev
	@scripts/test

test-airflow: $(VENV)/.ready
	@scripts/test-airflow

unit: $(VENV)/.ready-dev
	@scripts/test unit

bench: $(VENV)/.ready-dev
	@for b in $$(grep -lE '(xit\(|= )main\(' benchmarks/*.py); do $(VENV)/bin/python $$b || exit 1; done

clean:
	rm -rf $(VENV) .venv-airflow .lab

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer with venv found (Debian and Ubuntu: apt install python3-venv)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(VENV)/bin/python requirements.txt
	@echo "installing the requirements into $(VENV): some minutes, once"
	$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r requirements.txt
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready requirements-dev.txt
	$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r requirements-dev.txt
	@touch $@
