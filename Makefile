.DEFAULT_GOAL := help
.PHONY: help install test test-slow test-nightly fuzz sanitize sanitize-threads neon check lint format bench bench-avx2 build-times compare pictures docs

help: ## List the tasks
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: ## Install poolgrad with everything that development needs
	pip install -c constraints.txt -e ".[dev]"

test: ## Run the tests
	pytest -n auto

test-slow: ## Run the slow tests
	pytest -n auto -m slow

test-nightly: ## Run the tests that run each night
	pytest -n auto -m nightly

fuzz: ## Run 200,000 generated calls with each instruction set, next to guard pages
	PYTHONPATH=tests python -m robustness.fuzz --calls 200000
	PYTHONPATH=tests python -m robustness.fuzz --calls 20000 --first 1000000 --flush
	PYTHONPATH=tests python -m robustness.fuzz --calls 200000 --tensors

sanitize: ## Build with AddressSanitizer and UndefinedBehaviorSanitizer; run generated calls
	tests/robustness/sanitize address

sanitize-threads: ## Build with ThreadSanitizer; run generated calls in several threads
	tests/robustness/sanitize thread

neon: ## Cross-compile for aarch64; run tests of NumPy arrays and generated calls under emulation
	tests/robustness/neon

check: ## Check every gradient in every front end
	poolgrad check

lint: ## Run the linters and type checks of CI
	ruff check .
	ruff format --check .
	PYTHONPATH=src lint-imports
	mypy
	find csrc -name '*.[ch]pp' -exec clang-format --dry-run --Werror {} +

format: ## Format the code
	ruff check --fix .
	ruff format .
	find csrc -name '*.[ch]pp' -exec clang-format -i {} +

bench: ## Time everything and compare with other libraries; write tables and plots of README and docs
	poolgrad bench --targets benchmarks/targets.csv --out docs
	poolgrad bench --networks --targets benchmarks/targets.csv --out docs
	poolgrad bench --jax --targets benchmarks/targets.csv --out docs
	poolgrad bench --algorithms --out docs
	python docs/make_tables.py

# On a processor with AVX-512, AVX2 kernels need a build of all instruction sets:
# pip install -C cmake.define.POOLGRAD_ISA=all .
bench-avx2: ## Time every row with AVX2 kernels; write their columns in README and docs/performance.md
	POOLGRAD_ISA=avx2 poolgrad bench --targets benchmarks/targets.csv --out runs/bench-avx2
	cp runs/bench-avx2/bench.csv docs/bench-avx2.csv
	python docs/make_tables.py

build-times: ## Build the kernels and print the cost of each translation unit
	python docs/measure_build.py

compare: ## Compare downsamplings on the digits; write the tables of docs/choosing.md
	poolgrad compare --out runs/compare
	poolgrad compare --task segment --out runs/compare-segment
	cp runs/compare/results.csv docs/compare.csv
	cp runs/compare-segment/results.csv docs/segment.csv
	python docs/make_tables.py

pictures: ## Draw the pictures of README and docs again
	python docs/make_pictures.py

docs: ## Build the documentation site in site/; warnings are errors
	mkdocs build --strict
