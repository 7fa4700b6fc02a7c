#!/bin/sh
# Runs the demo's two processes, both on this machine, over the RDMA device of address ADDR.
#
#   run.sh [ADDR [PMEM]]    without arguments: inside the virtual machine, with what that has
set -u
cd "$(dirname "$0")" || exit 1
[ $# -gt 0 ] || set -- "$RPMA_VM_IP" "$RPMA_VM_PMEM"
addr=$1
export LD_LIBRARY_PATH="$PWD"

dir=$(mktemp -d) || exit 1
server=
trap 'kill $server 2>/dev/null; rm -rf "$dir"' EXIT
mkfifo "$dir/pipe"

# Whether a port is free shows when it is listened on; the server exits with 3 if it is not.
port=$((20000 + $$ % 20000))
listening=
until [ -n "$listening" ]; do
    timeout 300 ./server "$addr" "$port" ${2+"$2"} >"$dir/pipe" 2>&1 &
    server=$!
    exec 3<"$dir/pipe"
    while IFS= read -r line <&3; do
        printf '%s\n' "$line"
        case $line in *': listening on '*) listening=1; break ;; esac
    done
    [ -z "$listening" ] || break
    wait $server
    status=$?
    server=
    [ $status -eq 3 ] && [ $port -lt $((20010 + $$ % 20000)) ] || exit $status
    port=$((port + 1))
done
# Both print into one pipe, so that the lines come in the order of what happens.
exec 4>"$dir/pipe"
cat <&3 4>&- &
reader=$!

timeout 300 ./client "$addr" "$port" >&4 2>&1
client_status=$?
# Without a client to wait for, the server need not wait until its time is up.
[ $client_status -eq 0 ] || kill "$server" 2>/dev/null
wait "$server"
server_status=$?
server=
exec 4>&-
wait $reader
[ $client_status -eq 0 ] && [ $server_status -eq 0 ]
