.DEFAULT_GOAL := help
.PHONY: help install test test-slow check lint format bench pictures

help: ## List the tasks
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: ## Install with everything that developing needs
	pip install -c constraints.txt -e ".[dev]"

test: ## Run the tests
	pytest -n auto

test-slow: ## Run the slow tests, and properties with more examples
	POOLGRAD_TEST_PROFILE=full pytest -n auto -m "slow or hypothesis"

check: ## Check every gradient in every front end
	poolgrad check

lint: ## What CI checks besides the tests
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run --Werror csrc/*.hpp csrc/*.cpp

format: ## Put the code into its form
	ruff check --fix .
	ruff format .
	clang-format -i csrc/*.hpp csrc/*.cpp

bench: ## Time everything beside its peers; write the tables and plots of README and docs
	poolgrad bench --out docs
	poolgrad bench --networks --out docs
	poolgrad bench --jax --out docs
	python docs/make_bench_tables.py

pictures: ## Draw the pictures of README and docs again
	python docs/make_pictures.py
