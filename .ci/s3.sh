#!/usr/bin/env bash
# s3.sh install|start|stop|status|quota BUCKET BYTES: an S3 server with STS for the test suite, Ceph's gateway on one monitor and one OSD.
# Its user may assume the role bfia-run, which allows all of S3, so that a session's policy narrows it.
# Set by the environment: S3_HOST, S3_PORT (the monitor takes the next one).
set -euo pipefail
# shellcheck disable=SC1091
source "$(dirname "$0")/common.sh"
home=$rt/s3
host=${S3_HOST:-127.0.0.1}; port=${S3_PORT:-17480}; monitor=$((port + 1))
key=bfia-root-key; secret=bfia-root-secret
packages=(radosgw ceph-mon ceph-osd ceph-common curl uuid-runtime)
conf=$home/ceph.conf

configure() {
  mkdir -p "$home"/{mon,osd,rgw,run,log}
  cat >"$conf" <<CONF
[global]
fsid = $(uuidgen)
mon_host = [v2:127.0.0.1:$monitor]
public_network = 127.0.0.0/8
ms_bind_msgr1 = false
keyring = $home/keyring
run_dir = $home/run
admin_socket = $home/run/\$name.asok
pid_file = $home/run/\$name.pid
log_file = $home/log/\$name.log
mon_data = $home/mon
mon_max_pg_per_osd = 1000
osd_data = $home/osd
osd_objectstore = bluestore
bluestore_block_size = 34359738368
bluestore_block_create = true
osd_memory_target = 1073741824
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_crush_chooseleaf_type = 0
rgw_data = $home/rgw
rgw_frontends = beast endpoint=$host:$port
rgw_s3_auth_use_sts = true
rgw_sts_key = bfia-sts-key-16b
rgw_bucket_quota_ttl = 0
CONF
}

running() { alive "$home/run/$1.pid"; }
stop() { local part; for part in client.rgw osd.0 mon.a; do end "$home/run/$part.pid" "$@"; done; }

create() { # an empty cluster
  stop -KILL; rm -rf "$home"; configure
  local keyring=(ceph-authtool "$home/keyring" --gen-key) osd; osd=$(uuidgen)
  "${keyring[@]}" --create-keyring -n mon. --cap mon 'allow *'
  "${keyring[@]}" -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  "${keyring[@]}" -n client.rgw --cap mon 'allow rwx' --cap osd 'allow rwx'
  "${keyring[@]}" -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
  monmaptool --create --fsid "$(sed -n 's/^fsid = //p' "$conf")" --addv a "[v2:127.0.0.1:$monitor]" "$home/monmap"
  ceph-mon -c "$conf" --mkfs -i a --monmap "$home/monmap" --keyring "$home/keyring"
  ceph-mon -c "$conf" -i a
  ceph -c "$conf" osd new "$osd" 0
  ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd"
}

admin() { radosgw-admin -c "$conf" "$@"; }

accounts() {
  local me=arn:aws:iam:::user/bfia
  admin user create --uid bfia --display-name bfia --access-key "$key" --secret-key "$secret" --caps 'roles=*'
  admin role create --role-name bfia-run --assume-role-policy-doc \
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["'$me'"]},"Action":["sts:AssumeRole"]}]}'
  admin role-policy put --role-name bfia-run --policy-name all --policy-doc \
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:*"],"Resource":["arn:aws:s3:::*"]}]}'
}

s3() { # METHOD PATH [CURL OPTION...]
  curl -sf -m 60 --noproxy '*' -o /dev/null --aws-sigv4 aws:amz:default:s3 --user "$key:$secret" \
    -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' -X "$1" "http://$host:$port/$2" "${@:3}"
}

start() {
  [ -e "$home/made" ] || create >"$rt/s3-create.log" 2>&1 || { tail -5 "$rt/s3-create.log" >&2; die "no cluster could be made"; }
  running mon.a || ceph-mon -c "$conf" -i a
  running osd.0 || ceph-osd -c "$conf" -i 0 >/dev/null 2>&1
  # by default it keeps what was deleted for two hours, and large uploads of a few test runs fill the disk
  running client.rgw || radosgw -c "$conf" -n client.rgw \
    --rgw-gc-obj-min-wait=60 --rgw-gc-processor-period=60 --rgw-gc-processor-max-time=60
  wait_for S3 120 curl -s -m 5 --noproxy '*' -o /dev/null "http://$host:$port"
  [ -e "$home/made" ] && return
  accounts >"$rt/s3-create.log" 2>&1 || { tail -5 "$rt/s3-create.log" >&2; die "no user could be made"; }
  s3 PUT warm; s3 PUT warm/object -d x; s3 POST 'warm/object?uploads=' # each makes a pool when it is used first
  touch "$home/made"
}

case ${1:-} in
  packages) echo "${packages[*]}" ;;
  install) install_packages "${packages[@]}" ;;
  start) start ;;
  stop) stop ;;
  status) if s3 HEAD warm -I; then echo "s3 up"; else echo "s3 down"; exit 1; fi ;;
  quota) # shellcheck disable=SC2015
    admin quota set --quota-scope=bucket --bucket="$2" --max-size="$3" && admin quota enable --quota-scope=bucket --bucket="$2" ;;
  *) die "usage: s3.sh install|start|stop|status|quota BUCKET BYTES" ;;
esac
