#!/usr/bin/env bash
# kerberos.sh packages|install|start|stop|status: a real Kerberos KDC with an HDFS that knows its clients by it alone.
# Clients find $BFIA_RT/kerberos/krb5.conf, and in client.keytab the key of the principal bfia, which owns the folder /bfia.
# Set by the environment: KERBEROS_HOST, KERBEROS_PORT (of the KDC; then the five of HDFS).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
source "$here/common.sh"
home=$rt/kerberos
host=${KERBEROS_HOST:-127.0.0.1}; port=${KERBEROS_PORT:-28050}; realm=BFIA.TEST
packages=(krb5-kdc krb5-admin-server)
export KRB5_CONFIG=$home/krb5.conf KRB5_KDC_PROFILE=$home/kdc.conf
export HDFS_HOME=$rt/kerberos/hdfs HDFS_HOST=$host HDFS_PORT=$((port + 1)) HDFS_KERBEROS=$home HDFS_REALM=$realm

configure() {
  mkdir -p "$home"
  cat >"$home/krb5.conf" <<END
[libdefaults]
  default_realm = $realm
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  $realm = {
    kdc = $host:$port
  }
END
  cat >"$home/kdc.conf" <<END
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = $host:$port
[realms]
  $realm = {
    database_name = $home/principal
    key_stash_file = $home/stash
    max_life = 10h
  }
END
}

admin() { kadmin.local -r "$realm" -q "$1" >>"$home/admin.log" 2>&1; }

make_principals() { # each with a keytab; a name after the slash is that of the server's host
  [ -e "$home/.done" ] && return
  rm -f "$home"/principal* "$home"/*.keytab
  kdb5_util create -r "$realm" -s -P "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" >"$home/admin.log" 2>&1
  local name
  for name in "hdfs/$host" "HTTP/$host"; do
    admin "addprinc -randkey $name"; admin "ktadd -k $home/server.keytab $name"
  done
  admin "addprinc -randkey bfia"; admin "ktadd -k $home/client.keytab bfia"
  touch "$home/.done"
}

answers() { (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; }

as_superuser() { # PATH?QUERY: a change by WebHDFS
  KRB5_CLIENT_KTNAME=$home/server.keytab KRB5CCNAME=$home/superuser.ccache \
    curl -sf -m 20 --noproxy '*' --negotiate -u : -o /dev/null -X PUT "http://$host:$((port + 2))/webhdfs/v1$1"
}

start() {
  configure; make_principals
  if ! alive "$home/kdc.pid"; then
    nohup setsid krb5kdc -n -r "$realm" -d "$home/principal" >"$home/kdc.log" 2>&1 </dev/null &
    echo $! >"$home/kdc.pid"
  fi
  wait_for KDC 30 answers
  bash "$here/hdfs.sh" start
  as_superuser "/bfia?op=MKDIRS&permission=700"
  as_superuser "/bfia?op=SETOWNER&owner=bfia"
}

case ${1:-} in
  packages) echo "${packages[*]}" ;;
  install) install_packages "${packages[@]}"; bash "$here/hdfs.sh" install ;;
  start) start ;;
  stop) bash "$here/hdfs.sh" stop; end "$home/kdc.pid" ;;
  status) if answers && bash "$here/hdfs.sh" status >/dev/null; then echo "kerberos up"; else echo "kerberos down"; exit 1; fi ;;
  *) die "usage: kerberos.sh packages|install|start|stop|status" ;;
esac
