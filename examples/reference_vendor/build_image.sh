#!/usr/bin/env bash
# build_image.sh BASE TAG SOURCE [BUILD_DIR]
# Builds the reference vendor's image on BASE, which must hold Python 3.11 as python3.
# SOURCE says where numpy, gmpy2, PyNaCl, opendal, certifi and grpcio come from: a lock file (downloaded and checked against its hashes
# with pip) or the directory of a virtual environment that has them installed (copied, nothing is downloaded).
# CHANNEL_FORM (environment): json, protobuf, bare or grpc, how the image sends its messages; default json.
# BUILD_DIR keeps the prepared packages for the next build. PYTHON names the interpreter with pip, 3.11 too.
set -euo pipefail
[ $# -ge 3 ] && [ $# -le 4 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
base=$1 tag=$2 source=$3
here=$(cd "$(dirname "$0")" && pwd)
build=${4:-${TMPDIR:-/tmp}/bfia-reference-vendor-$(id -u)}
if [ -d "$source" ]; then python=${PYTHON:-$source/bin/python}; else python=${PYTHON:-python3}; fi
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$python is not Python 3.11" >&2; exit 1; }

mkdir -p "$build"
exec 9>"$build/lock"; flock 9 # two builds at a time would share one site
key=$(sha256sum "$here/requirements.txt" "$here/build_image.sh" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$build/site.key" 2>/dev/null)" != "$key" ]; then
  rm -rf "$build/site" "$build/site.key"; mkdir -p "$build/site"
  if [ -d "$source" ]; then
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
    for name in numpy numpy.libs gmpy2 gmpy2.libs nacl cffi pycparser opendal certifi grpc typing_extensions.py; do
      [ ! -e "$packages/$name" ] || cp -r "$packages/$name" "$build/site/"
    done
    cp "$packages"/_cffi_backend*.so "$build/site/"
    cp -r "$packages"/{numpy,gmpy2,[Pp]y[Nn]a[Cc]l,cffi,pycparser,opendal,certifi}-*.dist-info "$build/site/" 2>/dev/null || true
  else
    "$python" -m pip install --quiet --no-compile --require-hashes --only-binary :all: --no-deps \
      --target "$build/site" -r "$source"
  fi
  rm -rf "$build"/site/bin "$build"/site/numpy/{f2py,distutils,doc,_core/include,_core/lib/pkgconfig}
  find "$build/site" -type d \( -name tests -o -name __pycache__ -o -name include \) -prune -exec rm -rf {} +
  find "$build/site" -type f \( -name '*.pyi' -o -name '*.h' -o -name '*.a' -o -name '*.c' -o -name '*.pxd' \) -delete
  # Compiled once here, since the container runs as nobody and would compile at every start.
  "$python" -m compileall -q --invalidation-mode unchecked-hash "$build/site"
  chmod -R a+rX "$build/site"
  echo "$key" >"$build/site.key"
fi
rm -rf "$build/refvendor"
cp -r "$here/refvendor" "$build/refvendor"
find "$build/refvendor" -type d -name __pycache__ -prune -exec rm -rf {} +
"$python" -m compileall -q --invalidation-mode unchecked-hash "$build/refvendor"
chmod -R a+rX "$build/refvendor"
cp "$here/Dockerfile" "$build/Dockerfile"
printf '*\n!site\n!refvendor\n' >"$build/.dockerignore"
DOCKER_BUILDKIT=0 docker build --quiet --build-arg "BASE=$base" --build-arg "CHANNEL_FORM=${CHANNEL_FORM:-json}" --tag "$tag" "$build"
