#!/usr/bin/env bash
# services.sh up|packages|begin|wait|down|status|python: Docker, a Swarm, a Kubernetes, MariaDB, PostgreSQL, S3 and HDFS for the test suite, without systemd.
# `up` installs what is missing (needs root and Debian), starts what does not answer, and writes $BFIA_RT/env.
# S3 and HDFS are at the address of Docker's bridge: the same for the host and its containers.
# `begin` is `up` without waiting for Kubernetes, whose source may have to be compiled; `wait` waits for it.
# `packages` only installs what they and make's targets need from Debian.
# `python` only sees to a Python 3.11 that makes virtual environments.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
source "$here/common.sh"
sock=${BFIA_DOCKER_SOCK:-/var/run/docker.sock}
dockerd=$rt/docker-exec/pid
db=$rt/db/pid
dbport=${BFIA_DB_PORT:-13306}
dbdata=$rt/db/data
pg=$rt/pg/pid
pgport=${BFIA_PG_PORT:-15432}
pgdata=$rt/pg/data
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt 2000000 ] 2>/dev/null; then # every test makes its own tables
  dbdata=/dev/shm/bfia-db$rt
  pgdata=/dev/shm/bfia-pg$rt
fi
export S3_PORT=${BFIA_S3_PORT:-17480} HDFS_PORT=${BFIA_HDFS_PORT:-28020}
export DOCKER_HOST=unix://$sock

python_up() { # a Python 3.11 that makes virtual environments with pip in them; Debian has parts of it in extra packages
  python3.11 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3.11 python3.11-venv python3-pip
}

mount_cgroups() { # a container without systemd may have none mounted
  mountpoint -q /sys/fs/cgroup && return
  mount -t tmpfs cgroup /sys/fs/cgroup
  local name
  for name in $(awk '!/^#/ && $4 == 1 {print $1}' /proc/cgroups); do
    mkdir -p "/sys/fs/cgroup/$name"
    mount -n -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name" || rmdir "/sys/fs/cgroup/$name"
  done
}

docker_up() {
  docker info >/dev/null 2>&1 && return
  mount_cgroups
  if ! alive "$dockerd"; then # what a killed daemon left behind
    rm -f "$dockerd" "$sock"
    end "$rt/docker-exec/containerd/containerd.pid" -KILL
    rm -rf "$rt/docker-exec/containerd"
  fi
  mkdir -p "$rt/docker-exec"
  nohup setsid /usr/sbin/dockerd --data-root "$rt/docker" --exec-root "$rt/docker-exec" -H "unix://$sock" \
    --pidfile "$dockerd" --log-level warn >"$rt/dockerd.log" 2>&1 </dev/null &
  wait_for dockerd 60 docker info
}

mariadb_up() {
  alive "$db" && return
  mkdir -p "$rt/db/tmp"; chown mysql "$rt/db" "$rt/db/tmp" # a server that starts deletes the temporary tables of others in /tmp
  mkdir -p "$(dirname "$dbdata")"
  [ -d "$dbdata/mysql" ] || mariadb-install-db --no-defaults --user=mysql --datadir="$dbdata" --tmpdir="$rt/db/tmp" \
    --auth-root-authentication-method=normal --skip-test-db >"$rt/db-install.log" 2>&1 || die "mariadb-install-db failed"
  nohup setsid /usr/sbin/mariadbd --no-defaults --user=mysql --datadir="$dbdata" --socket="$rt/db/s.sock" \
    --pid-file="$rt/db/m.pid" --tmpdir="$rt/db/tmp" --bind-address=127.0.0.1 --port="$dbport" --skip-name-resolve --max-connections=500 \
    --character-set-server=utf8mb4 --collation-server=utf8mb4_bin >"$rt/db.log" 2>&1 </dev/null &
  echo $! >"$db"
  wait_for mariadb 30 mariadb-admin --no-defaults -uroot -S "$rt/db/s.sock" ping
  mariadb --no-defaults -uroot -S "$rt/db/s.sock" -e \
    "create user if not exists bfia@'127.0.0.1' identified by 'bfia'; grant all on \`bfia\\_%\`.* to bfia@'127.0.0.1'"
}

postgresql_up() {
  alive "$pg" && return
  local programs
  programs=$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -1)
  mkdir -p "$rt/pg" "$(dirname "$pgdata")"; chown postgres "$rt/pg" "$(dirname "$pgdata")"
  [ -f "$pgdata/PG_VERSION" ] || as_postgres "$programs/initdb" -D "$pgdata" -U postgres -E UTF8 --locale=C.UTF-8 \
    --auth-local=trust --auth-host=scram-sha-256 --no-sync >"$rt/pg-install.log" 2>&1 || die "initdb failed"
  rm -f "$pgdata/postmaster.pid" # of a server that was killed
  nohup setsid setpriv --reuid=postgres --regid=postgres --init-groups "$programs/postgres" -D "$pgdata" -h 127.0.0.1 -p "$pgport" \
    -k "$rt/pg/" -c max_connections=500 -c fsync=off >"$rt/pg.log" 2>&1 </dev/null &
  echo $! >"$pg"
  wait_for postgresql 30 psql -h "$rt/pg" -p "$pgport" -U postgres -c "select 1"
  psql -q -h "$rt/pg" -p "$pgport" -U postgres -c "create role bfia login createdb password 'bfia'" 2>/dev/null || true # may exist
}

as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

base_is_there() { # made by the script as it is now
  local made
  made=$(docker image inspect -f '{{ index .Config.Labels "made-by" }}' bfia-base:py311 2>/dev/null)
  [ "$made" = "$(sha256sum <"$here/mkbase.sh" | cut -c1-12)" ]
}

packages() {
  # shellcheck disable=SC2046
  install_packages docker.io iptables mariadb-server mariadb-client postgresql busybox-static docker-compose make docker-registry openssl \
    openssh-server iproute2 nftables softhsm2 nginx-light haproxy tinyproxy chromium-headless-shell fonts-noto-cjk systemd $(command -v npm >/dev/null || echo nodejs npm) $(bash "$here/s3.sh" packages) $(bash "$here/hdfs.sh" packages) $(bash "$here/kerberos.sh" packages) $(bash "$here/kubernetes.sh" packages)
  python_up
}

kubernetes_up() {
  # bash gives the last command of a subshell its process
  while grep -qsE '(services|kubernetes)\.sh' "/proc/$(cat "$rt/kubernetes.pid")/cmdline"; do sleep 0.2; done
  bash "$here/kubernetes.sh" status >/dev/null || { tail "$rt/kubernetes.log" >&2; die "kubernetes is not ready"; }
}

set -- "${1:-up}"
case $1 in
  packages) packages ;;
  up | begin)
    packages
    (nice bash "$here/kubernetes.sh" install && wait_for "base image" 600 base_is_there && bash "$here/kubernetes.sh" start) \
      >"$rt/kubernetes.log" 2>&1 </dev/null & # minutes, where it is not kept from before
    echo $! >"$rt/kubernetes.pid"
    docker_up
    host=$(bridge); export S3_HOST=$host HDFS_HOST=$host KERBEROS_HOST=$host
    bash "$here/s3.sh" start & s3=$!
    (bash "$here/hdfs.sh" install && bash "$here/hdfs.sh" start && bash "$here/kerberos.sh" start) & hdfs=$!
    mariadb_up
    postgresql_up
    base_is_there || bash "$here/mkbase.sh" "$rt/base" bfia-base:py311 >&2
    bash "$here/swarm.sh" start || bash "$here/swarm.sh" start # a daemon may lose its start on a busy machine
    wait $s3; wait $hdfs
    {
      printf 'export DOCKER_HOST=unix://%s\n' "$sock"
      printf 'export BFIA_TEST_DB_URL=mysql+pymysql://bfia:bfia@127.0.0.1:%s\n' "$dbport"
      printf 'export BFIA_TEST_PG_URL=postgresql+psycopg://bfia:bfia@127.0.0.1:%s\n' "$pgport"
      printf 'export BFIA_TEST_BASE_IMAGE=bfia-base:py311\n'
      printf 'export BFIA_TEST_S3=http://%s:%s\n' "$host" "$S3_PORT"
      printf 'export BFIA_TEST_S3_KEY=bfia-root-key BFIA_TEST_S3_SECRET=bfia-root-secret\n'
      printf 'export BFIA_TEST_S3_ROLE=arn:aws:iam:::role/bfia-run\n'
      printf 'export BFIA_TEST_HDFS="hdfs://%s:%s http://%s:%s"\n' "$host" "$HDFS_PORT" "$host" $((HDFS_PORT + 1))
      printf 'export BFIA_TEST_KERBEROS="%s hdfs://%s:28051 http://%s:28052"\n' "$rt/kerberos" "$host" "$host"
      printf 'export BFIA_TEST_SWARM=%s/swarm BFIA_TEST_SWARM_HOST=%s\n' "$rt" "$(bash "$here/swarm.sh" host)"
      printf 'export BFIA_TEST_KUBERNETES=%s/kubernetes BFIA_TEST_KUBERNETES_HOST=%s\n' "$rt" "$(bash "$here/kubernetes.sh" host)"
      printf 'export BFIA_TEST_KUBERNETES_REGISTRY=%s BFIA_TEST_KUBERNETES_TLS_REGISTRY=%s\n' \
        "$(bash "$here/kubernetes.sh" registry)" "$(bash "$here/kubernetes.sh" tls-registry)"
    } >"$rt/env"
    if [ "$1" = up ]; then kubernetes_up; fi ;;
  wait) kubernetes_up ;;
  python) python_up ;;
  down)
    bash "$here/swarm.sh" stop; bash "$here/kubernetes.sh" stop; bash "$here/s3.sh" stop; bash "$here/hdfs.sh" stop; bash "$here/kerberos.sh" stop
    for f in "$db" "$pg" "$dockerd"; do end "$f"; done ;;
  status)
    if alive "$db"; then echo "mariadb up"; else echo "mariadb down"; fi
    if alive "$pg"; then echo "postgresql up"; else echo "postgresql down"; fi
    if docker info >/dev/null 2>&1; then echo "docker up"; else echo "docker down"; fi
    bash "$here/swarm.sh" status || true
    bash "$here/kubernetes.sh" status || true
    S3_HOST=$(bridge) bash "$here/s3.sh" status || true
    HDFS_HOST=$(bridge) bash "$here/hdfs.sh" status || true
    KERBEROS_HOST=$(bridge) bash "$here/kerberos.sh" status || true ;;
  *) die "usage: services.sh up|packages|begin|wait|down|status|python" ;;
esac
