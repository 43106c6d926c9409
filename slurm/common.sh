# What the scripts of this folder share; each sources it on the first node of its allocation.
#
# A site sets, where sbatch is typed (the scripts take these variables along, and no others):
#   MEGAPTM_HOME   the checkout, on a disk that all nodes share; absent: the folder where sbatch is typed
#   MEGAPTM_VENV   its Python environment; absent: $MEGAPTM_HOME/.venv
#   MEGAPTM_IMAGE  a container instead: a file.sif runs under Apptainer, any other name under Pyxis
#   MEGAPTM_CHAIN  any word, the same for jobs that were submitted to follow each other (--dependency=afterany)
#   MEGAPTM_RAY_START_SECONDS  how long a node that fails to start Ray tries again (corpus.sh); absent: 600
#   MEGAPTM_ALLOW_CODE  modules that the folder of a run may name (docs/configs.md#code-of-your-own)
#   PYTHONPATH     folders with modules of your own
#   MEGAPTM_CHECK  no: the nodes are not asked, before the run starts, whether they are alike and see its folder

set -uo pipefail
cd "${MEGAPTM_HOME:=$SLURM_SUBMIT_DIR}" || exit
export PYTHONUNBUFFERED=1
export PYTHONSAFEPATH=1 # Python does not search the working directory for modules
if [[ -f megaptm/__main__.py ]]; then export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}; fi # the checkout
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # since Slurm 22.05 srun does not take it from the job
restart=${SLURM_RESTART_COUNT:-0}
options=() first=() look=120
trap too_short USR1

case ${MEGAPTM_IMAGE-} in
    "") python=("${MEGAPTM_VENV:-$MEGAPTM_HOME/.venv}/bin/python") ;;
    *.sif) python=(apptainer exec --nv --bind "$PWD" "$MEGAPTM_IMAGE" python) ;;
    *)
        options=(--container-image="$MEGAPTM_IMAGE" --container-mounts="$PWD:$PWD" --container-workdir="$PWD")
        look=1800 # on most nodes it is the look at them that pulls the image
        python=(python) first=(srun "${options[@]}" --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1)
        ;;
esac

# train CONFIG [key=value ...]: start or continue a run. A later CONFIG takes the place of an earlier one, as a later
# value does: scripts give theirs first, then what stood on sbatch's command line.
train() {
    local config="" values=() word
    for word; do
        if [[ $word =~ ^[A-Za-z][A-Za-z0-9_.]*= ]]; then values+=("$word"); else config=$word; fi
    done
    set -- "$config" "${values[@]}"
    logs=$(once megaptm.launch.slurm.preflight --attempt="$SLURM_JOB_ID.$restart" --tasks="$SLURM_NTASKS" "$@") || exit
    [[ $logs ]] || exit 0 # nothing is left to do
    leave_failed_node
    scontrol show hostnames "$SLURM_JOB_NODELIST" >"$logs/nodes"
    look_at_nodes
    take_step_numbers
    on_all_nodes "${python[@]}" -m megaptm train "$@"
    echo "$code" >"$logs/ended"
    avoid "$(sed -n 's/^srun: error: Node failure on //p' "$logs/srun.log" | tail -n 1)"
    if [[ $asked && $code == 138 ]]; then too_short; fi
    if ((code)); then
        once megaptm.launch.slurm.failure_report "$logs"
        case $?$asked in 75*) code=75 ;; 70*) code=1 ;; 71yes) too_short ;; esac
    fi
    if [[ $code == 75 ]]; then requeue; fi # saved, or a rank hung: to be continued
    exit "$code"
}

# A module of ours, as one process on the first node.
once() {
    "${first[@]}" "${python[@]}" -m "$@"
}

# Each node says what it is and sees, in a second or two but for an image: a broken one is named, which would have been
# waited for.
look_at_nodes() {
    if [[ ${MEGAPTM_CHECK-} == no ]]; then return; fi
    local begin=$EPOCHREALTIME each=(--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
    timeout "$look" srun "${options[@]}" --export=ALL "${each[@]}" --label "${python[@]}" \
        -m megaptm.check.node --token="$logs/nodes" --writable="$logs" >"$logs/look.out" 2>"$logs/look.err"
    once megaptm.launch.slurm.node_report --probe-start="$begin" "$logs" || exit
}

# Slurm numbers the steps of each start from 0 on. An srun that lives on where Slurm lost sight of an earlier start cancels
# its step by that number when it learns of it: ours must have another.
take_step_numbers() {
    local before number
    for before in "${logs%.*}".*; do
        if [[ $before != "$logs" && ! -e $before/ended ]]; then
            for ((number = 0; number < restart; number++)); do
                srun --export=NONE --nodes=1 --ntasks=1 --ntasks-per-node=1 true
            done
            return
        fi
    done
}

# A process for each task of the job, each with a log of its own; rank 0's is copied to the job's. Sets `code` and `asked`.
on_all_nodes() {
    asked="" code=0
    trap 'woken=yes asked=yes; kill -USR1 "$tasks"' USR1 # the time limit is near: the processes finish their step and save
    trap 'woken=yes' TERM                                # a node was lost, or the job canceled: stay to note what happened
    # The first process that ends, for whatever reason, leaves the others a minute to end by themselves.
    srun "${options[@]}" --export=ALL --wait=60 --kill-on-bad-exit=0 --output="$logs/rank-%t.log" "$@" \
        2>"$logs/srun.log" &
    tasks=$!
    tail -q -F -n +1 -s 0.2 --pid="$tasks" "$logs/srun.log" "$logs/rank-0.log" 2>/dev/null &
    while woken=""; wait "$tasks"; code=$?; [[ $woken ]] && ((code > 128)); do :; done
    wait $! 2>/dev/null
}

# USR1 before the first step, when nobody listens, or nothing is there to save: to go back to the queue would be to go
# round in circles.
too_short() {
    echo "The warning before the time limit (--signal) came before the first step: give the job more --time."
    exit 1
}

# Back to the queue, to be continued on the same terms. Not when Slurm is ending the job: it would rise from the dead.
requeue() {
    if running; then
        echo "Saved; job $SLURM_JOB_ID goes back to the queue."
        scontrol requeue "$SLURM_JOB_ID" && sleep infinity
        echo "It may not (--no-requeue): another job goes on with the run."
    fi
    exit 75
}

# Whether Slurm runs this start of the job: not while it ends it, nor when it lost sight of this node and began again.
running() {
    [[ $(scontrol show job "$SLURM_JOB_ID" --oneliner) == *" JobState=RUNNING "*" Restarts=$restart "* ]]
}

# Keep the job, and those that follow it, off a node that failed from their next start on, and off those that failed
# before; off the last one alone, or off none, where the partition has not enough others.
avoid() {
    if [[ ! $1 ]] || running; then return; fi
    local before nodes job
    before=$(scontrol show job "$SLURM_JOB_ID" --oneliner | grep -oP ' ExcNodeList=\K(?!\(null\))\S+')
    for nodes in ${before:+"$before,$1"} "$1"; do
        if (($(others_than "$nodes") >= SLURM_JOB_NUM_NODES)); then
            echo "Node failure on $1: the next start does without${before:+ $nodes}."
            for job in "$SLURM_JOB_ID" $(followers); do
                scontrol update JobId="$job" ExcNodeList="$nodes"
            done
            return
        fi
    done
}

# How many nodes of the partition are in service, without these.
others_than() {
    sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --states=alloc,comp,idle,mix --format=%N |
        sort -u | grep --count --invert-match --line-regexp --file=<(scontrol show hostnames "$1")
}

# Jobs that wait for this one to end.
followers() {
    squeue --noheader --me --states=PENDING --format='%A %E' | grep --word-regexp "afterany:$SLURM_JOB_ID" | cut -d ' ' -f 1
}

# A first node that is lost takes this script with it, unnoted. Where it is back, and ours again, take another.
leave_failed_node() {
    local before=${logs%.*}.$((restart - 1))
    [[ -e $before/nodes && ! -e $before/ended ]] || return 0
    local lost
    lost=$(head -n 1 "$before/nodes")
    scontrol show hostnames "$SLURM_JOB_NODELIST" | grep --quiet --line-regexp "$lost" || return 0
    trap : TERM
    if scontrol requeue "$SLURM_JOB_ID"; then
        avoid "$lost"
        sleep infinity
        exit 75
    fi
}

# A Ray cluster of this job's nodes, which ends with the job; RAY_ADDRESS says where it is. Its ports follow from the job's
# number, and nobody else's job can use it: they do not know the token.
start_ray() {
    local port=$((20000 + SLURM_JOB_ID % 1000 * 10)) nodes host head
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    host=$(address_of "${nodes[0]}")
    RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') RAY_USAGE_STATS_ENABLED=0
    export RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED
    local ray=("${python[@]}" -m megaptm.schedulers.ray.start --block --num-cpus="$SRUN_CPUS_PER_TASK")
    exec {head}< <(on_node "${nodes[0]}" "${ray[@]}" --head --node-ip-address="$host" --port="$port" --include-dashboard=false)
    read -r -u "$head" || exit # it says a line when it runs, and none where it gave up
    local node
    for node in "${nodes[@]:1}"; do
        on_node "$node" "${ray[@]}" --address="$host:$port" >&2 &
    done
    export RAY_ADDRESS="$host:$port"
}

on_node() {
    srun "${options[@]}" --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --nodelist="$1" "${@:2}"
}

# Names of nodes need not be names of hosts.
address_of() {
    getent hosts "$1" | awk '{print $1; exit}' | grep . || scontrol show node "$1" --oneliner | grep -oP '(?<=NodeAddr=)\S+'
}

if [[ ${MEGAPTM_IMAGE-} ]]; then # Slurm's commands, which name the first node, are not in the container
    MASTER_ADDR=$(address_of "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)") && export MASTER_ADDR
fi
