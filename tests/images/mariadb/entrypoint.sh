#!/bin/sh
# Stands for the official image's entrypoint as far as the shipped files rely on it: an empty data folder is initialised,
# the root password and one database with its user made, and /docker-entrypoint-initdb.d run against a server without network.
set -eu
data=/var/lib/mysql socket=/run/mysqld/mysqld.sock
[ "${1:-}" = mariadbd ] && shift
mkdir -p /run/mysqld "$data"
chown mysql:mysql /run/mysqld "$data"

if [ ! -d "$data/mysql" ]; then
  mariadb-install-db --no-defaults --user=mysql --datadir="$data" --auth-root-authentication-method=normal \
    --skip-test-db >/dev/null
  mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$socket" --skip-networking &
  first=$!
  until mariadb --no-defaults -uroot -S "$socket" -e 'select 1' >/dev/null 2>&1; do
    kill -0 "$first"
    sleep 0.1
  done
  root() { mariadb --no-defaults -uroot -S "$socket" -e "$1"; }
  [ -z "${MARIADB_DATABASE:-}" ] || root "create database $MARIADB_DATABASE;
    create user $MARIADB_USER@'%' identified by '$MARIADB_PASSWORD'; grant all on $MARIADB_DATABASE.* to $MARIADB_USER@'%'"
  root "alter user root@localhost identified by '${MARIADB_ROOT_PASSWORD:-$(cat /proc/sys/kernel/random/uuid)}'"
  for script in /docker-entrypoint-initdb.d/*.sh; do
    [ ! -f "$script" ] || sh "$script"
  done
  kill "$first"
  wait "$first"
fi
exec mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$socket" --bind-address=0.0.0.0 \
  --skip-name-resolve "$@"
