#!/usr/bin/env bash
# hdfs.sh install|start|stop [nn|dn] [-SIGNAL]|status|wipe|quota PATH BYTES: a real HDFS 2.7 (NameNode, DataNode, WebHDFS) for the test suite.
# Its classes come with an old pyspark of PyPI, the rest from Debian. `start` returns once a file could be written.
# Set by the environment: HDFS_HOST, HDFS_PORT (rpc; then the NameNode's http and the DataNode's three), and by kerberos.sh
# HDFS_HOME (of a second one), HDFS_KERBEROS (the KDC's folder), HDFS_REALM.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091
source "$here/common.sh"
code=$rt/hdfs; home=${HDFS_HOME:-$code}
kerberos=${HDFS_KERBEROS:-}; realm=${HDFS_REALM:-}
host=${HDFS_HOST:-127.0.0.1}; port=${HDFS_PORT:-28020}; web=http://$host:$((port + 1))
packages=(openjdk-17-jdk-headless curl)
pyspark='pyspark==2.2.3 --hash=sha256:fdce24678da3b662d53e4605b4c1b0870d0c2a505158eec0286e138f90eba5c5'
jars=(hadoop-{annotations,auth,common,hdfs} commons-{beanutils,cli,codec,collections,configuration,digester,io,lang-2,logging,net}
  activation guava-1 htrace-core httpclient httpcore jackson-{core,mapper}-asl javax.servlet-api jaxb-api jetty-6 jetty-util
  leveldbjni-all log4j-1 netty-all protobuf-java slf4j-{api,log4j12} xmlenc)
debs=(libjersey1-{core,server,servlet}-java libjsr311-api-java)
namenode=org.apache.hadoop.hdfs.server.namenode.NameNode
datanode=org.apache.hadoop.hdfs.server.datanode.DataNode

find_java() { for java in /usr/lib/jvm/java-17-openjdk-*/bin/java; do [ -x "$java" ]; done; } # newer ones have no Subject.getSubject

install() {
  [ -e "$code/lib/.done" ] && return
  install_packages "${packages[@]}"; find_java
  local work app deb paths; work=$(mktemp -d); mkdir -p "$code/lib" "$code/classes/webapps/static"
  python3.11 -m venv "$work/venv" # without isolation: its setup.py stumbles over today's pypandoc
  echo "$pyspark" >"$work/pyspark.txt"
  "$work/venv/bin/pip" install -q --disable-pip-version-check setuptools wheel
  "$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-build-isolation --require-hashes -r "$work/pyspark.txt" -d "$work"
  paths=("${jars[@]/#/*/deps/jars/}")
  tar -xzf "$work"/pyspark-*.tar.gz -C "$code/lib" --strip-components=3 --wildcards "${paths[@]/%/*.jar}"
  (cd "$work" && apt-get -o APT::Sandbox::User=root -o Acquire::Retries=3 download -qq "${debs[@]}")
  for deb in "$work"/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$code/lib" --strip-components=4 --wildcards './usr/share/java/*.jar'
  done
  find "$code/lib" -type l -delete
  for app in hdfs datanode; do # the jar comes without them
    mkdir -p "$code/classes/webapps/$app/WEB-INF"
    echo '<web-app version="2.4" xmlns="http://java.sun.com/xml/ns/j2ee"></web-app>' >"$code/classes/webapps/$app/WEB-INF/web.xml"
  done
  "${java}c" -nowarn -cp "$code/lib/*" -d "$code/classes" "$here"/hdfs/*.java
  python3.11 - "$code" <<'PYTHON' # for a file's last block it waits 400 ms, which later versions have a setting for: 10 ms
import pathlib, sys, zipfile
home = pathlib.Path(sys.argv[1])
jar = zipfile.ZipFile(next(home.glob("lib/hadoop-hdfs-*.jar")))
for name in "DFSOutputStream", "DFSOutputStream$DataStreamer":
    path = f"org/apache/hadoop/hdfs/{name}.class"
    before, after = (b"\5" + value.to_bytes(8, "big") for value in (400, 10))
    code = jar.read(path)
    assert code.count(before) == 1, name
    target = home / "classes" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(code.replace(before, after))
PYTHON
  rm -rf "$work"; touch "$code/lib/.done"
}

configuration() { # NAME=VALUE...
  echo '<configuration>'
  local each; for each in "$@"; do echo "<property><name>${each%%=*}</name><value>${each#*=}</value></property>"; done
  echo '</configuration>'
}

secure() { # NAME=VALUE... of a service that knows its clients by Kerberos alone; the DataNode would want ports below 1024
  [ -n "$kerberos" ] || return 0
  local name
  echo hadoop.security.authentication=kerberos hadoop.security.authorization=true dfs.block.access.token.enable=true \
    ignore.secure.ports.for.testing=true dfs.namenode.delegation.token.always-use=true \
    "dfs.web.authentication.kerberos.principal=HTTP/$host@$realm" "dfs.web.authentication.kerberos.keytab=$kerberos/server.keytab"
  for name in namenode datanode; do
    echo "dfs.$name.kerberos.principal=hdfs/$host@$realm" "dfs.$name.keytab.file=$kerberos/server.keytab"
  done
}

configure() {
  mkdir -p "$home"/{conf,run}
  local secure; read -ra secure <<<"$(secure | tr '\n' ' ')"
  configuration "fs.defaultFS=hdfs://$host:$port" "hadoop.tmp.dir=$home/data/tmp" \
    "hadoop.http.filter.initializers=NoRedirect\$Init,org.apache.hadoop.http.lib.StaticUserWebFilter" \
    'hadoop.proxyuser.root.hosts=*' 'hadoop.proxyuser.root.groups=*' "${secure[@]}" >"$home/conf/core-site.xml"
  # one DataNode, whose end is noticed at once; the host and containers know it by one address
  configuration "dfs.namenode.name.dir=file://$home/data/nn" "dfs.datanode.data.dir=file://$home/data/dn" \
    "dfs.namenode.rpc-address=$host:$port" "dfs.namenode.http-address=$host:$((port + 1))" \
    "dfs.datanode.http.address=$host:$((port + 2))" "dfs.datanode.address=0.0.0.0:$((port + 3))" "dfs.datanode.ipc.address=$host:$((port + 4))" \
    "dfs.datanode.hostname=$host" dfs.namenode.datanode.registration.ip-hostname-check=false \
    dfs.replication=1 dfs.client.block.write.replace-datanode-on-failure.policy=NEVER dfs.client.block.write.locateFollowingBlock.retries=11 \
    dfs.namenode.safemode.extension=0 dfs.namenode.fs-limits.min-block-size=4096 dfs.heartbeat.interval=1 \
    dfs.namenode.heartbeat.recheck-interval=2000 dfs.namenode.stale.datanode.interval=5000 "${secure[@]}" >"$home/conf/hdfs-site.xml"
  printf 'log4j.%s\n' rootLogger=INFO,A appender.A=org.apache.log4j.ConsoleAppender appender.A.target=System.err \
    appender.A.layout=org.apache.log4j.PatternLayout 'appender.A.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n' >"$home/conf/log4j.properties"
}

run() { # CLASS [ARGUMENT...]
  local options=()
  [ -z "$kerberos" ] || options=("-Djava.security.krb5.conf=$kerberos/krb5.conf" --add-exports java.security.jgss/sun.security.krb5=ALL-UNNAMED --add-exports java.security.jgss/sun.security.jgss=ALL-UNNAMED)
  LC_ALL=C.UTF-8 exec "$java" -Xmx192m -Xss512k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true \
    "${options[@]}" -cp "$home/conf:$code/classes:$code/lib/*" "$@"
}

spawn() { # NAME CLASS
  alive "$home/run/$1.pid" && return
  (run "$2") >>"$home/run/$1.log" 2>&1 </dev/null &
  echo $! >"$home/run/$1.pid"; disown
}

call() {
  local options=()
  [ -z "$kerberos" ] || options=(--negotiate -u : --location-trusted)
  KRB5_CLIENT_KTNAME=$kerberos/server.keytab KRB5CCNAME=$home/run/client.ccache \
    curl -sf -m 20 --noproxy '*' -L -o /dev/null "${options[@]}" "$@"
}
ready() { # the NameNode may still count a DataNode that has gone: only a file shows the pair
  local file="$web/webhdfs/v1/.ready?user.name=root"
  [ -z "$kerberos" ] || file="$web/webhdfs/v1/.ready?"
  call -X PUT --data-binary x -H 'Content-Type: application/octet-stream' "$file&op=CREATE&overwrite=true" && call -X DELETE "$file&op=DELETE"
}

start() {
  find_java; configure
  [ -e "$home/data/nn/current/VERSION" ] || (run $namenode -format -nonInteractive) >"$home/run/format.log" 2>&1 </dev/null || die "see $home/run/format.log"
  spawn nn $namenode; spawn dn $datanode
  wait_for HDFS 120 ready
}

stop() { # [nn|dn] [-SIGNAL]
  local names=(dn nn) name
  case ${1:-} in nn | dn) names=("$1"); shift ;; esac
  for name in "${names[@]}"; do end "$home/run/$name.pid" "$@"; done
}

case ${1:-} in
  packages) echo "${packages[*]}" ;;
  install) install ;;
  start) start ;;
  stop) stop "${@:2}" ;;
  status) if ready; then echo "hdfs up"; else echo "hdfs down"; exit 1; fi ;;
  quota) find_java; run org.apache.hadoop.hdfs.tools.DFSAdmin -setSpaceQuota "$3" "$2" ;;
  wipe) stop; rm -rf "$home"/data "$home"/run ;;
  *) die "usage: hdfs.sh install|start|stop [nn|dn] [-SIGNAL]|status|wipe|quota PATH BYTES" ;;
esac
