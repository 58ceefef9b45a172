#!/bin/sh
# Runs once, when the database server's data folder is new: one database and one user for each node.
set -eu

literal() { printf "'%s'" "$(printf %s "$1" | sed "s/[\\\\']/\\\\&/g")"; }

database() { # NAME PASSWORD
  printf 'create database if not exists bfia_%s character set utf8mb4 collate utf8mb4_bin;\n' "$1"
  printf "create user if not exists '%s'@'%%' identified by %s;\n" "$1" "$(literal "$2")"
  printf "grant all privileges on bfia_%s.* to '%s'@'%%';\n" "$1" "$1"
}

{
  database bank "$BANK_DB_PASSWORD"
  database partner "$PARTNER_DB_PASSWORD"
} | MYSQL_PWD=$MARIADB_ROOT_PASSWORD mariadb --protocol=socket -uroot
