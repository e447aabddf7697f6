#!/bin/sh
# SkyRL's server of the Tinker protocol, on its JAX backend: on a CPU for trying things out, or on
# GPUs. It wants Python 3.12 and an environment of its own, which is kept between runs.
#
#   scripts/tinker-server.sh install
#   scripts/tinker-server.sh where
#   scripts/tinker-server.sh serve MODEL_FOLDER [PORT]
#
# PYTHON312 names the interpreter where none is found, INWIT_TINKER_SERVER another place, and
# TINKER_BACKEND the backend's settings (JSON).
set -eu

skyrl=0.3.0
place=${INWIT_TINKER_SERVER:-${XDG_CACHE_HOME:-$HOME/.cache}/inwit/tinker-server-$skyrl}
small='{"max_lora_adapters": 8, "max_lora_rank": 8, "train_micro_batch_size": 16, "sample_max_num_sequences": 64}'

python() {
  for each in ${PYTHON312:-} python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python; do
    if "$each" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      echo "$each"
      return
    fi
  done
  echo "No Python 3.12 was found, which SkyRL's server wants. Install it, or set PYTHON312." >&2
  return 3
}

case ${1:-} in
  install)
    if [ -e "$place/.ready" ]; then exit 0; fi
    if [ -n "$(ls -A "$place" 2>/dev/null)" ] && [ ! -e "$place/pyvenv.cfg" ]; then
      echo "$place is something else already: set INWIT_TINKER_SERVER to a new folder." >&2
      exit 2
    fi
    found=$(python)
    echo "SkyRL $skyrl into $place: some minutes"
    "$found" -m venv "$place"
    "$place/bin/python" -m pip install -q --disable-pip-version-check uv "skyrl[tinker,jax]==$skyrl"
    touch "$place/.ready"
    ;;
  where | serve)
    if [ ! -e "$place/.ready" ]; then
      echo "SkyRL's server is not installed: make tinker-server" >&2
      exit 3
    fi
    if [ "$1" = where ]; then
      echo "$place"
      exit 0
    fi
    model=$(cd "$2" && pwd)
    place=$(cd "$place" && pwd)
    mkdir -p "${TINKER_DATA:=$place/data}"
    TINKER_DATA=$(cd "$TINKER_DATA" && pwd)
    cd "$TINKER_DATA"
    export PATH="$place/bin:$PATH" VIRTUAL_ENV="$place"
    # compiled once for each shape, and kept
    export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$place/compiled}"
    export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
    # it starts its engine the way it was started itself, so by uv
    exec uv run --active --no-project -- python -m skyrl.tinker.api \
      --base-model "$model" --backend jax --backend-config "${TINKER_BACKEND:-$small}" \
      --host 127.0.0.1 --port "${3:-8000}" \
      --database-url "sqlite:///$TINKER_DATA/tinker.db" --checkpoints-base "$TINKER_DATA/checkpoints"
    ;;
  *)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
