#!/usr/bin/env bash
# mkbase.sh WORKDIR TAG [EXTRA_DEB ...]
# Builds a small Debian image with Python 3.11 from unpacked packages, for machines that reach no image registry.
# Extra packages (with all their dependencies named) make other bases: the Compose test adds MariaDB this way.
set -euo pipefail
work=$1; tag=$2; shift 2
root=$work/root; debs=$work/debs
rm -rf "$root"; mkdir -p "$root" "$debs"; chmod 755 "$work"

packages=(libc6 libgcc-s1 zlib1g libssl3 libexpat1 libffi8 libsqlite3-0 libbz2-1.0 liblzma5 libuuid1
  libreadline8 libtinfo6 libncursesw6 libdb5.3 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3
  libcom-err2 libkrb5support0 libkeyutils1 libcrypt1 libstdc++6 libgomp1 python3.11-minimal
  libpython3.11-minimal libpython3.11-stdlib python3.11 media-types tzdata busybox-static base-files netbase "$@")
missing=()
for package in "${packages[@]}"; do compgen -G "$debs/${package}_*.deb" >/dev/null || missing+=("$package"); done
if [ ${#missing[@]} -gt 0 ]; then
  (cd "$debs" && apt-get -o APT::Sandbox::User=root -o Acquire::Retries=3 download -qq "${missing[@]}")
fi

mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$root/$dir"; done
for package in "${packages[@]}"; do
  for deb in "$debs/${package}"_*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink \
      --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale
  done
done
mkdir -p "$root"/{tmp,proc,sys,dev,run,root,home,etc/ssl,var/tmp,usr/local/bin}
chmod 1777 "$root/tmp" "$root/var/tmp"
chroot "$root" /bin/busybox --install -s /usr/bin
ln -sf python3.11 "$root/usr/bin/python3"
ln -sf python3 "$root/usr/bin/python"
if [ $# -eq 0 ]; then # packages leave compiling to their installation: else each container would do it at its start
  chroot "$root" /usr/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash \
    -x '/(idlelib|lib2to3|test|turtledemo|ensurepip|tkinter|distutils|pydoc_data)/' /usr/lib/python3.11
fi
printf 'root:x:0:0:root:/root:/bin/sh\nmysql:x:999:999::/var/lib/mysql:/bin/false\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n' >"$root/etc/passwd"
printf 'root:x:0:\nmysql:x:999:\nnogroup:x:65534:\n' >"$root/etc/group"

tar -C "$root" --sort=name --mtime=@0 --numeric-owner -c . | docker import \
  -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin LANG=C.UTF-8 PYTHONUNBUFFERED=1' -c 'CMD ["python3"]' -c "LABEL made-by=$(sha256sum <"$0" | cut -c1-12)" - "$tag"
rm -rf "$root"
