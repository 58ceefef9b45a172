#!/usr/bin/env bash
# build.sh [BASE [TAG]]: builds the gateway's image from any base with Python 3.11.
# Installs on this machine, so the base needs neither pip nor a network; $PYTHON (3.11, with pip, on Linux of the
# same architecture) does that. EXTRA=k8s adds what a Kubernetes as engine needs, EXTRA=all also
# what PostgreSQL and further options need. Defaults: python:3.11-slim, bfia-gateway:0.1.0, python3.11.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
base=${1:-python:3.11-slim}
tag=${2:-bfia-gateway:0.1.0}
python=${PYTHON:-python3.11}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) or sys.platform != "linux")' ||
  { echo "build.sh: $python is not Python 3.11 on Linux; set PYTHON" >&2; exit 2; }

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }

isolation=() # with the build tool at hand there is nothing to fetch
if "$python" -c 'import hatchling' 2>/dev/null; then isolation=(--no-build-isolation); fi
# --no-deps: the file names all of them, and pip need not look each one's up again
pip install -q --no-compile --no-deps --require-hashes --target "$context/site" -r "$root/requirements/gateway${EXTRA:+-$EXTRA}.txt"
rm -rf "$context/site/bin" # console scripts that name this interpreter
pip wheel -q --no-deps "${isolation[@]}" --wheel-dir "$context/wheel" "$root"
pip install -q --no-compile --no-deps --no-index --target "$context/site" "$context"/wheel/*.whl
rm -rf "$context/site/bin" "$context/wheel"
"$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$context/site"

cp "$here/Dockerfile" "$here/bfia-gateway" "$context/"
DOCKER_BUILDKIT=0 docker build -q --build-arg "BASE=$base" --tag "$tag" "$context"
