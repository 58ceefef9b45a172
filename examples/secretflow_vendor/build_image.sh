#!/usr/bin/env bash
# build_image.sh BASE TAG SOURCE [BUILD_DIR]
# Builds the image of SecretFlow's components on BASE, which must hold Python 3.11 as python3, and sh and sort as in GNU's
# systems (busybox's are not enough for PSI). SOURCE says where the packages come from: a lock file (downloaded and checked
# against its hashes with pip) or the directory of a virtual environment that has them installed (copied, nothing is downloaded).
# BUILD_DIR keeps the prepared packages for the next build. PYTHON names the interpreter with pip, 3.11 too.
set -euo pipefail
[ $# -ge 3 ] && [ $# -le 4 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
base=$1 tag=$2 source=$3
here=$(cd "$(dirname "$0")" && pwd)
build=${4:-${TMPDIR:-/tmp}/bfia-secretflow-vendor-$(id -u)}
if [ -d "$source" ]; then python=${PYTHON:-$source/bin/python}; else python=${PYTHON:-python3}; fi
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$python is not Python 3.11" >&2; exit 1; }

mkdir -p "$build"
exec 9>"$build/lock"; flock 9 # two builds at a time would share one site
key=$(sha256sum "$here/requirements.txt" "$here/build_image.sh" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$build/site.key" 2>/dev/null)" != "$key" ]; then
  rm -rf "$build/site" "$build/site.key"; mkdir -p "$build/site"
  if [ -d "$source" ]; then
    cp -r "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')/." "$build/site/"
  else
    "$python" -m pip install --quiet --no-compile --require-hashes --only-binary :all: --no-deps --target "$build/site" -r "$source"
  fi
  rm -rf "$build"/site/{bin,pip,pip-*,setuptools,setuptools-*}
  # Compiled once here, since the container runs as nobody and would compile at every start.
  "$python" -m compileall -q --invalidation-mode unchecked-hash "$build/site" || true
  chmod -R a+rX "$build/site"
  echo "$key" >"$build/site.key"
fi
rm -rf "$build/sfvendor"
cp -r "$here/sfvendor" "$build/sfvendor"
find "$build/sfvendor" -type d -name __pycache__ -prune -exec rm -rf {} +
"$python" -m compileall -q --invalidation-mode unchecked-hash "$build/sfvendor"
chmod -R a+rX "$build/sfvendor"
cp "$here/Dockerfile" "$build/Dockerfile"
printf '*\n!site\n!sfvendor\n' >"$build/.dockerignore"
DOCKER_BUILDKIT=0 docker build --quiet --build-arg "BASE=$base" --tag "$tag" "$build"
