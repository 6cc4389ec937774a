"""`python -m router --config FILE.json [--wait]`: runs one router until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import uvloop
from pydantic import ValidationError

from router.addresses import PortInUseError
from router.app import ConfigError, run
from router.config import RouterConfig
from router.errors import param_name
from telemetry import logs

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2

_LOOK_S = 0.02


class BadConfigFileError(Exception):
    """The configuration cannot be used; the message names the file, the key and what is allowed."""


def load_config(path: Path) -> RouterConfig:
    """Reads the configuration. Raises BadConfigFileError with one line for each thing that is wrong."""
    try:
        return RouterConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadConfigFileError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False, include_context=False):
            key, message = param_name(item["loc"]), item["msg"]
            if item["type"] == "extra_forbidden":
                message = f"unknown key; the keys are {', '.join(RouterConfig.model_fields)}"
            lines.append(f"{path}: {key}: {message}" if key else f"{path}: {message}")
        raise BadConfigFileError("\n".join(lines)) from error


def main() -> int:
    """Returns the exit status: 0 after a signal, 1 where a port is taken, 2 for a bad configuration."""
    parser = argparse.ArgumentParser(prog="python -m router", description="One kvrelay router.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE.json", help="a RouterConfig")
    parser.add_argument("--wait", action="store_true", help="until the file is there")
    arguments = parser.parse_args()
    path: Path = arguments.config
    while arguments.wait and not path.exists():
        time.sleep(_LOOK_S)
    try:
        config = load_config(path)
        for key, value, allowed in (
            ("log_level", config.log_level, logs.LEVELS),
            ("log_format", config.log_format, logs.FORMATS),
        ):
            if value not in allowed:
                raise BadConfigFileError(f"{path}: {key}: {value!r} is not one of {', '.join(allowed)}")
        logs.configure("router", config.log_level, config.log_format)
        uvloop.run(run(config))
    except BadConfigFileError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    except ConfigError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except PortInUseError as error:
        print(f"router: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
