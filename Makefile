# make demo [ARGS=--once]   serve a real model, ask it something, show where the time went
# make test [ARGS=...]      all tests
# make lint                 ruff, format check, strict type check
# make format               what lint asks for, done
# make proto                regenerate client/kvrelay/v1 from proto/
# make install              only the virtual environment; the others do it by themselves
.PHONY: demo test lint format proto install
.DEFAULT_GOAL := demo

BIN := .venv/bin

install:
	@./scripts/install.sh

demo: install
	@$(BIN)/kvrelay demo $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m mypy

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

proto: install
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=client --pyi_out=client \
		--grpc_python_out=client $(shell cd proto && ls kvrelay/v1/*.proto)
