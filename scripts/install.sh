#!/usr/bin/env bash
# Makes .venv with everything that the project and its tests need. Quick when nothing has changed.
#   PYTHON         interpreter to use; default: the first of python3.11, 3.12, 3.13, python3 that fits
#   TORCH          requirement of the torch to install where the environment has none
#   TORCH_PIP_ARGS further arguments for that, for example the index of a CPU build
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=${TORCH:-torch==2.13.0}
VENV=.venv
STAMP=$VENV/.installed

fits() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
        >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "error: kvrelay needs Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip" \
        "(Debian: python3-venv); found none under ${PYTHON:-python3.11, python3.12, python3.13, python3}." \
        "PYTHON=/path/to/python names one." >&2
    exit 1
}

# An environment with an own torch (a GPU build, say) stays as it is.
has_torch() {
    "$VENV/bin/python" - <<'EOF' >/dev/null 2>&1
from importlib.metadata import version
import sys
sys.exit(tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2]) < (2, 11))
EOF
}

# The folder is part of it: a virtual environment that was moved does not work.
wanted=$(cat pyproject.toml client/pyproject.toml scripts/install.sh engine/ops/cpu/{build.py,*.cpp,*.h} <(pwd) |
    sha256sum)
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$wanted" ]; then
    exit 0
fi

if [ ! -x "$VENV/bin/python" ] || ! fits "$VENV/bin/python"; then
    python=$(find_python)
    echo "Making $VENV with $("$python" --version)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
fi
if ! has_torch; then
    # First, and alone: other packages would pull in a build for CUDA.
    echo "Installing $TORCH"
    # shellcheck disable=SC2086  # several arguments
    "$VENV/bin/python" -m pip install --disable-pip-version-check ${TORCH_PIP_ARGS:-} "$TORCH"
fi
echo "Installing kvrelay and what it needs"
"$VENV/bin/python" -m pip install --disable-pip-version-check -e client -e '.[dev]'
# Says it where there is no compiler; the engine does without.
"$VENV/bin/python" -m engine.ops.cpu.build
echo "$wanted" >"$STAMP"
