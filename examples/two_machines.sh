#!/bin/bash
# Two machines without SLURM: torchrun on both, started from the first over ssh.
#
#   examples/two_machines.sh FIRST SECOND GPUS_PER_MACHINE VERB [ARGUMENTS...]
#   examples/two_machines.sh 10.0.0.1 10.0.0.2 4 scale --batch-size 256
#
# Run it on FIRST, whose address SECOND must reach. Both need the same folder and environment at the same path; the
# run folder is written on FIRST. torch's store asks for no password: keep the port inside your network. Where gloo
# or NCCL take the wrong network, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME in the environment of both.
set -euo pipefail
first=$1 second=$2 ranks=$3
shift 3
port=${MASTER_PORT:-$((20000 + RANDOM % 12000))}

command_of() { # of the machine with this number and address
    local words=(env "PATH=$PATH" "OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}"
        torchrun --nnodes=2 --node_rank="$1" --nproc_per_node="$ranks" --local_addr="$2"
        --master_addr="$first" --master_port="$port" -m scalescope "${@:3}")
    printf '%q ' "${words[@]}"
}

echo "ranks meet at $first:$port"
# -tt: the other torchrun ends when the connection does.
ssh -tt "$second" "cd $(printf '%q' "$PWD") && $(command_of 1 "$second" "$@")" </dev/null &
bash -c "exec $(command_of 0 "$first" "$@")" &
machines=$(jobs -p)
trap 'kill $machines 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Both end by themselves when all is well; where one fails, the other is ended too.
wait -n
wait -n
