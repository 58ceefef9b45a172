#!/bin/sh
# The component Echo of the provider "shellworks": tells the peer how many rows its table has, learns how many
# the peer's has, hands its table on and reports both numbers.
# Needs sh, wget, awk, sed, tr, base64 and /proc. Writes nothing but its outputs and its log.
# Exit codes: 0 done, 1 the run failed, 2 the environment breaks the contract, else what `fail` asks for.
set -u

main() {
  task=$(needed config.task_id) && session=$(needed config.session_id) && transport=$(needed system.transport) &&
    callback=$(needed system.callback) && storage=$(needed system.storage) && self=$(needed config.self_role) &&
    table=$(needed runtime.component.input.table) || exit 2
  [ "$(variable runtime.component.name)" = Echo ] || die 2 "there is no component $(variable runtime.component.name)"
  case $storage in
    file://*) root=${storage#file://} ;;
    *) die 2 "system.storage must be file://…" ;;
  esac
  self=${self%%,*} role=${self%%.*} peer=$(peer_of "${self%%,*}")
  node=$(needed "config.node_id.$self") && peer_node=$(needed "config.node_id.$peer") || die 2 "who is the peer?"
  patience=$(parameter patience)
  deadline=$(($(date +%s) + ${patience:-120}))

  tell RUNNING 1
  say info "$self of task $task, peer $peer at $peer_node"
  input=$root/$(address "$table")
  rows=$(rows_in "$input") && [ -n "$rows" ] || die 1 "cannot read the table $table"
  say info "the table has $rows rows"
  wanted=$(parameter fail)
  if [ "${wanted:-0}" -ne 0 ]; then die "$wanted" "asked to end with code $wanted"; fi

  push "echo.$task.$self.$peer" "$rows"
  pop "echo.$task.$peer.$self"
  case $popped in
    '' | *[!0-9]*) die 1 "the peer sent no number" ;;
  esac
  say info "the peer's table has $popped rows"

  copy=$(variable runtime.component.output.copy)
  if [ -n "$copy" ]; then hand_on "$input" "$copy" || die 1 "cannot write $copy"; fi
  counts=$(variable runtime.component.output.counts)
  if [ -n "$counts" ]; then report "$counts" || die 1 "cannot write $counts"; fi
  tell SUCCESS 60
  say info "done"
  echo '{"result_code": "00000000"}'
}

# ---------------------------------------------------------------- the environment

variable() { # NAME: its value, nothing if it is not set
  # A shell forgets variables with dots in their names; the process's own block has them, each ended by a zero.
  tr '\n\000' '\001\n' <"/proc/$$/environ" |
    awk -v start="$1=" 'index($0, start) == 1 { print substr($0, length(start) + 1); exit }' | tr '\001' '\n'
}

needed() { # NAME: its value; fails without one
  found=$(variable "$1")
  if [ -z "$found" ]; then say error "$1 is not set" >&2; return 1; fi
  printf %s "$found"
}

parameter() { variable "runtime.component.parameter.$1"; }

peer_of() { # ROLE.INDEX: the party of the other role with the same index
  case $1 in
    guest.*) echo "host.${1#*.}" ;;
    *) echo "guest.${1#*.}" ;;
  esac
}

# ---------------------------------------------------------------- what others see of the run

say() { # LEVEL TEXT
  line="$1 $(date -u +%Y-%m-%dT%H:%M:%SZ) $2"
  echo "$line"
  folder=$(variable config.log.path)
  if [ -n "$folder" ] && [ -w "$folder" ]; then echo "$line" >>"$folder/echo-${self:-unknown}.log"; fi
}

die() { # CODE TEXT
  say error "$2"
  if [ -n "${callback:-}" ] && [ -n "${role:-}" ]; then tell FAILED 3; fi
  exit "$1"
}

tell() { # STATUS TRIES: the callback, unless the run is asked to be silent
  case $(parameter silent) in
    [Tt][Rr][Uu][Ee] | 1) return 0 ;;
  esac
  left=$2
  until answer=$(post "$callback" "{\"task_id\":\"$task\",\"status\":\"$1\",\"role\":\"$role\"}"); do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then say error "nobody takes the callback $1"; return 0; fi
    sleep 1
  done
  if [ "$(printf %s "$answer" | field code)" != 0 ]; then say error "the callback $1 was answered: $answer"; fi
}

# ---------------------------------------------------------------- the channel

push() { # TOPIC TEXT
  content=$(printf %s "$2" | base64 | tr -d '\n')
  until answer=$(channel push "$peer_node" "{\"topic\":\"$1\",\"payload\":\"$content\",\"metadata\":{}}") &&
    accepted "$answer"; do
    again "cannot push to $peer_node" "$answer"
  done
}

pop() { # TOPIC: leaves the text of the next message in $popped
  # Short waits, so that a signal is heard soon.
  until answer=$(channel pop "$node" "{\"topic\":\"$1\",\"timeout\":2000}") && accepted "$answer" &&
    content=$(printf %s "$answer" | content_of) && [ -n "$content" ]; do
    again "nothing from $peer_node" "$answer"
  done
  popped=$(printf %s "$content" | base64 -d)
}

channel() { # OPERATION TARGET BODY
  post "http://$transport/v1/interconn/chan/$1" "$3" \
    --header "x-ptp-tech-provider-code: shellworks" \
    --header "x-ptp-trace-id: $(variable config.trace_id)" \
    --header "x-ptp-token: $(variable config.token)" \
    --header "x-ptp-session-id: $session" \
    --header "x-ptp-target-node-id: $2"
}

accepted() { # ANSWER
  case $(printf %s "$1" | field code) in
    E0000000000 | 0) return 0 ;;
    *) return 1 ;;
  esac
}

content_of() { # the bytes of a pop, still in Base64, under either of the two names in use
  said=$(cat)
  found=$(printf %s "$said" | field content)
  if [ -z "$found" ]; then found=$(printf %s "$said" | field payload); fi
  if [ "$found" != null ]; then printf %s "$found"; fi
}

again() { # TEXT ANSWER: returns if another try makes sense
  case $(printf %s "$2" | field code) in
    E0000000400 | E0000000403 | E0000000404 | E0000000413 | E0000000608 | E0000000614 | E0000000616 | E0000000618)
      die 1 "$1: $2" ;;
  esac
  if [ "$(date +%s)" -ge "$deadline" ]; then die 1 "$1 for ${patience:-120} s: $2"; fi
  if ! accepted "$2"; then sleep 1; fi
}

post() { # URL BODY [OPTION ...]: the answer
  url=$1 body=$2
  shift 2
  wget -q -O - --header 'Content-Type: application/json' "$@" --post-data "$body" "$url"
}

# ---------------------------------------------------------------- tables

address() { # JSON with namespace and name: the path below the storage
  printf '%s/%s' "$(printf %s "$1" | field namespace)" "$(printf %s "$1" | field name)"
}

rows_in() { # PATH of a folder with parts or of a plain file: the number of rows, headers not counted
  said=''
  if [ -r "$1/metadata" ]; then said=$(outside_columns "$1" | field count); fi
  if [ -d "$1" ]; then set -- "$1"/data_*; fi
  # The first line is a header, which every part may repeat, unless the metadata counts it as a row.
  SAID=$said awk '
    { sub(/\r$/, "") }
    NR == 1 { header = $0 }
    FNR == 1 && $0 == header { headers++ }
    length($0) { lines++ }
    END { print (ENVIRON["SAID"] != "" && lines == ENVIRON["SAID"] + 0) ? lines + 0 : lines - headers }' "$@"
}

column_info() { # PATH: the inner part of that list in its metadata
  if [ -r "$1/metadata" ]; then tr -d '\n' <"$1/metadata" | sed -n "s/.*$columns.*/\\1/p"; fi
}

outside_columns() { # PATH: its metadata without that list
  tr -d '\n' <"$1/metadata" | sed "s/$columns//"
}

hand_on() { # PATH ADDRESS: copies the table
  place=$root/$(address "$2")
  mkdir -p "$place" || return 1
  parts=0
  if [ -d "$1" ]; then
    for part in "$1"/data_*; do cat "$part" >"$place/${part##*/}" || return 1; parts=$((parts + 1)); done
  else
    cat "$1" >"$place/data_0" || return 1
    parts=1
  fi
  describe "$2" "$rows" "$parts" "$(column_info "$1")"
}

report() { # ADDRESS
  place=$root/$(address "$1")
  mkdir -p "$place" && printf '{"rows": %d, "peer_rows": %d}\n' "$rows" "$popped" >"$place/data_0" &&
    describe "$1" 1 1 ''
}

describe() { # ADDRESS ROWS PARTS COLUMNS: writes the metadata
  printf '{"namespace":"%s","name":"%s","count":%d,"partitions":%d,"column_info":[%s],"data_type":"dense","create_time":%d}\n' \
    "$(printf %s "$1" | field namespace)" "$(printf %s "$1" | field name)" "$2" "$3" "$4" "$(date +%s)" \
    >"$root/$(address "$1")/metadata"
}

field() { # NAME: the last text or number of that name in the JSON on standard input
  tr -d '\n' | sed -n 's/.*"'"$1"'"[[:space:]]*:[[:space:]]*"\{0,1\}\([^",}]*\).*/\1/p' | sed 's#\\/#/#g; s/[[:space:]]*$//'
}

columns='"column_info"[[:space:]]*:[[:space:]]*\[\([^]]*\)\]'

trap 'say info "told to stop"; exit 143' TERM INT
main
