#!/bin/sh
# Runs a launcher over hosts that are network namespaces of this machine, joined by a bridge in one more. Each has a name
# and an address of its own, and each command there its own process numbers and shared memory, so that MPI finds none. All that was made goes when this ends, and the processes in it are killed.
#
#   hosts.sh [--cut FILE] N COMMAND…   started on the first of N hosts; an argument HOSTS becomes their names, with commas
#   hosts.sh --can                     exit 0 if this is possible here
#   hosts.sh [-x] HOST COMMAND…        as ssh, from inside: the command's launcher uses this
#
# --cut FILE: when FILE has three lines, the last host loses its network. Ranks (stagewright) have 60 s to end then, and
# "ranks ended after N s" is written to stderr; the launcher has 5 s more.
#
# Exit: the command's, or 124 when it was killed after the cut.

# Launchers tell hosts by their names, and look these up.
enter() # HOST COMMAND…
{
    host=$1
    shift
    exec ip netns exec "$host" unshare --uts --ipc --pid --fork --kill-child --mount-proc sh -c '
        hostname "$0" && mount --bind "$SW_HOSTS_FILE" /etc/hosts && exec "$@"' "$host" "$@"
}

make_hosts()
{
    ip netns add "$name-0" && ip -n "$name-0" link add name bridge type bridge && ip -n "$name-0" link set bridge up || exit 2
    echo '127.0.0.1 localhost' >"$SW_HOSTS_FILE"
    for i in $(seq "$n"); do
        ip netns add "$name-$i" &&
            ip -n "$name-0" link add name "host$i" type veth peer name eth0 netns "$name-$i" &&
            ip -n "$name-0" link set "host$i" master bridge up &&
            ip -n "$name-$i" addr add "10.77.0.$i/24" dev eth0 &&
            ip -n "$name-$i" link set eth0 up &&
            ip -n "$name-$i" link set lo up || exit 2
        echo "10.77.0.$i $name-$i" >>"$SW_HOSTS_FILE"
        names=$names${names:+,}$name-$i
    done
}

pids()
{
    for i in $(seq "$n"); do ip netns pids "$name-$i" 2>/dev/null; done
}

ranks()
{
    for pid in $(pids); do
        case $(readlink "/proc/$pid/exe") in */stagewright) echo "$pid" ;; esac
    done
}

clean()
{
    trap '' INT TERM HUP
    for pid in $(pids); do kill -9 "$pid" 2>/dev/null; done
    for i in $(seq 0 "$n"); do ip netns del "$name-$i" 2>/dev/null; done
    rm -f "$SW_HOSTS_FILE"
}

cut_off()
{
    until [ "$(wc -l 2>/dev/null <"$cut")" -ge 3 ] 2>/dev/null; do
        kill -0 "$launcher" 2>/dev/null || return
        sleep 0.1
    done
    ip -n "$name-0" link set "host$n" down
    begin=$(date +%s)
    while [ -n "$(ranks)" ] && [ $(($(date +%s) - begin)) -lt 60 ]; do sleep 0.2; done
    echo "ranks ended after $(($(date +%s) - begin)) s" >&2
    sleep 5
    kill -9 "$launcher" 2>/dev/null && killed=124
}

if [ -n "$SW_HOSTS_FILE" ]; then
    [ "$1" != -x ] || shift
    host=$1
    shift
    enter "$host" sh -c "$*"
fi

cut=
case $1 in
--can)
    [ "$(id -u)" = 0 ] && command -v ip >/dev/null && command -v unshare >/dev/null || exit 1
    ip netns add "sw-test-$$-0" 2>/dev/null || exit 1
    ip -n "sw-test-$$-0" link add name bridge type bridge 2>/dev/null
    status=$?
    ip netns del "sw-test-$$-0"
    exit $status
    ;;
--cut)
    cut=$2
    shift 2
    ;;
esac
n=$1 name=sw-test-$$ names= killed=
shift
SW_HOSTS_FILE=$(mktemp) || exit 2
export SW_HOSTS_FILE
trap clean EXIT
trap 'exit 2' INT TERM HUP
make_hosts
for argument; do
    shift
    [ "$argument" != HOSTS ] || argument=$names
    set -- "$@" "$argument"
done
enter "$name-1" "$@" &
launcher=$!
[ -z "$cut" ] || cut_off
wait "$launcher"
status=$?
exit "${killed:-$status}"
