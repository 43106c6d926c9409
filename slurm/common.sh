# Functions of the scripts in this folder. Each script sources this file on the first node of its allocation.
#
# Environment variables, set where sbatch is called (the scripts export these and no others):
#   MEGAPTM_HOME   checkout, on a disk that all nodes share; default: the folder where sbatch is called
#   MEGAPTM_VENV   its Python environment; default: $MEGAPTM_HOME/.venv
#   MEGAPTM_IMAGE  container instead of the environment: a file.sif runs with Apptainer, other names with Pyxis
#   MEGAPTM_CHAIN  any word, equal for jobs that follow each other (--dependency=afterany)
#   MEGAPTM_RAY_START_SECONDS  seconds for which a node retries to start Ray (corpus.sh); default: 600
#   MEGAPTM_ALLOW_CODE  modules that the config in a run folder may import (docs/configs.md#code-of-your-own)
#   PYTHONPATH     folders with modules of your own
#   MEGAPTM_CHECK  no: do not compare the nodes, and their view of the run folder, before the run starts

set -uo pipefail
cd "${MEGAPTM_HOME:=$SLURM_SUBMIT_DIR}" || exit
export PYTHONUNBUFFERED=1
export PYTHONSAFEPATH=1 # Python does not search the working directory for modules
if [[ -f megaptm/__main__.py ]]; then export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}; fi # the checkout
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # since Slurm 22.05 srun does not inherit it from the job
restart=${SLURM_RESTART_COUNT:-0}
options=() first=() probe_seconds=120 grace_seconds=5
trap too_short USR1

case ${MEGAPTM_IMAGE-} in
    "") python=("${MEGAPTM_VENV:-$MEGAPTM_HOME/.venv}/bin/python") ;;
    *.sif) python=(apptainer exec --nv --bind "$PWD" "$MEGAPTM_IMAGE" python) ;;
    *)
        options=(--container-image="$MEGAPTM_IMAGE" --container-mounts="$PWD:$PWD" --container-workdir="$PWD")
        probe_seconds=1800 # the probe is the first to pull the image on most nodes
        python=(python) first=(srun "${options[@]}" --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1)
        ;;
esac

# train CONFIG [key=value ...]: start or continue a run. A later CONFIG or value replaces an earlier one: scripts pass
# their own first, then the words of sbatch's command line.
train() {
    local config="" values=() word
    for word; do
        if [[ $word =~ ^[A-Za-z][A-Za-z0-9_.]*= ]]; then values+=("$word"); else config=$word; fi
    done
    set -- "$config" "${values[@]}"
    local plan
    plan=$(once megaptm.launch.slurm.preflight --attempt="$SLURM_JOB_ID.$restart" --tasks="$SLURM_NTASKS" "$@") || exit
    [[ $plan ]] || exit 0 # nothing is left to do
    read -r restarts fault_hours logs <<<"$plan"
    leave_failed_node
    scontrol show hostnames "$SLURM_JOB_NODELIST" >"$logs/nodes"
    compare_nodes
    skip_step_numbers
    asked="" start=0 own=$logs # `own` has the logs of the processes that run now
    until on_all_nodes "${python[@]}" -m megaptm train "$@"; ended_for_good; do
        export MEGAPTM_START=$((++start))
        own=$logs/start-$((start + 1)) # late output of a process that was killed must not mix with that of the next
        mkdir -p "$own"
    done
    echo "$code" >"$logs/ended"
    if [[ $code == 75 ]]; then requeue; fi # saved, or a rank hung: continue
    exclude_sick_nodes
    exit "$code"
}

# Whether the job ends: all is done, or its processes are not started again. Sets `code`, the exit code of the job.
ended_for_good() {
    trap 'asked=yes' USR1
    if ((code == 0)); then return; fi
    exclude_lost_node "$(lost_node)"
    if [[ $asked && $code == 138 && $start == 0 ]]; then too_short; fi
    if start_failed; then
        await_node_failure
        code=75
        return
    fi
    local facts=(--restarts="$restarts" --start="$start" --node-fault-hours="$fault_hours")
    if [[ $asked ]] || ! running; then facts+=(--stopping); fi
    count_nodes
    once megaptm.launch.slurm.failure_report "${facts[@]}" "$own"
    case $?$asked in
        72) ! running ;; # start again, unless Slurm is ending the job
        72*) code=75 ;;  # the warning came during the restart
        75*) code=75 ;;
        70*) code=1 ;;
        71yes) too_short ;;
        0yes) code=75 ;;
    esac
}

# Run a module of megaptm in one process on the first node.
once() {
    "${first[@]}" "${python[@]}" -m "$@"
}

# Compare facts of all nodes, in a second or two unless an image is pulled: it names a broken node, which the run would
# wait for.
compare_nodes() {
    if [[ ${MEGAPTM_CHECK-} == no ]]; then return; fi
    local begin=$EPOCHREALTIME each=(--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
    timeout "$probe_seconds" srun "${options[@]}" --export=ALL "${each[@]}" --label "${python[@]}" \
        -m megaptm.check.node_facts --token="$logs/nodes" --writable="$logs" >"$logs/nodes.out" 2>"$logs/nodes.err"
    once megaptm.launch.slurm.node_report --probe-start="$begin" "$logs" || exit
}

# Slurm numbers the steps of each start from 0. If Slurm lost contact with an earlier start, an srun of it may still run,
# and later cancels its step by number: the steps of this start must have other numbers.
skip_step_numbers() {
    local before starts number
    for before in "${logs%.*}".*; do
        if [[ $before != "$logs" && ! -e $before/ended ]]; then
            starts=$({ compgen -G "${logs%.*}.*/srun.log"; compgen -G "${logs%.*}.*/start-*/srun.log"; } | wc -l)
            for ((number = 0; number < 2 * starts; number++)); do # a start of the processes, and the report of its end
                srun --export=NONE --nodes=1 --ntasks=1 --ntasks-per-node=1 true
            done
            return
        fi
    done
}

# Run one process per task, each with its own log; rank 0's log is copied to the job's. Sets `code` and `asked`.
on_all_nodes() {
    local each=(--wait=60 --kill-on-bad-exit=0) watch show
    if ((start)); then each+=(--immediate=30); fi # a process that cannot be killed occupies its node
    trap 'woken=yes asked=yes; kill -USR1 "$tasks"' USR1 # near the time limit: the processes finish their step and save
    trap 'woken=yes' TERM                                # a node was lost, or the job was canceled: stay to record it
    # After the first process has ended, for any reason, the others have a minute to end by themselves.
    srun "${options[@]}" --export=ALL "${each[@]}" --output="$own/rank-%t.log" "$@" 2>"$own/srun.log" &
    tasks=$!
    tail -q -F -n +1 -s 0.2 --pid="$tasks" "$own/srun.log" "$own/rank-0.log" 2>/dev/null &
    show=$!
    end_after_failure &
    watch=$!
    if [[ $asked ]]; then kill -USR1 "$tasks"; fi # the warning came in the moment of a restart
    while woken=""; wait "$tasks"; code=$?; [[ $woken ]] && ((code > 128)); do :; done
    kill "$watch" 2>/dev/null
    wait "$show" "$watch" 2>/dev/null
}

# If the processes can be started again, end all a few seconds after one has failed. The others wait for it, on GPUs until
# a timeout.
end_after_failure() {
    local never
    if ((restarts == 0)); then return; fi
    exec {never}<> <(:) # sleeps without a process
    until grep --quiet --perl-regexp '^srun: error: \S+: tasks? [\d,-]+: (?!Exited with exit code 75$)' "$own/srun.log"; do
        read -r -t 0.5 -u "$never"
    done
    read -r -t "$grace_seconds" -u "$never"
    kill -TERM "$tasks"
}

# USR1 before the first step, when there is nothing to save: a requeued job would end the same way again.
too_short() {
    echo "The warning before the time limit (--signal) came before the first step: use a longer --time."
    exit 1
}

# Requeue the job, unless Slurm is ending it: a canceled job must not start again.
requeue() {
    if running; then
        echo "Saved; job $SLURM_JOB_ID goes back to the queue."
        if scontrol requeue "$SLURM_JOB_ID"; then
            (trap '' TERM; exclude_sick_nodes)
            sleep infinity # until Slurm ends this start of the job
            exit 75
        fi
        echo "The job must not be requeued (--no-requeue): another job can continue the run."
    fi
}

# Whether Slurm runs this start of the job: not while it ends the job, and not if it lost this node and started again.
# A controller that does not answer is asked again for some minutes: a busy one must not cost the job.
running() {
    local job try
    for try in {1..10}; do
        if job=$(scontrol show job "$SLURM_JOB_ID" --oneliner); then break; fi
        sleep 5
    done
    [[ $job == *" JobState=RUNNING "*" Restarts=$restart "* ]]
}

# The node whose failure ended the processes, if any.
lost_node() {
    sed -n 's/^srun: error: Node failure on //p' "$own/srun.log" | tail -n 1 | grep . ||
        sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,no_respond --format=%N | head -n 1
}

# Exclude a failed node, and those that failed before, from the next starts of this job and of the jobs that follow it.
# If the partition has too few other nodes, exclude only the last failed node, or none.
exclude_lost_node() {
    if [[ ! $1 ]] || running; then return; fi
    local before nodes
    before=$(excluded_nodes)
    if grep --quiet --fixed-strings ",$1," <<<",$before,"; then return; fi
    for nodes in ${before:+"$before,$1"} "$1"; do
        if (($(num_other_nodes "$nodes") >= SLURM_JOB_NUM_NODES)); then
            echo "Node failure on $1: the next start excludes $nodes."
            exclude "$nodes"
            return
        fi
    done
}

# Exclude the nodes on which ranks failed repeatedly, which the report of the last start has chosen.
exclude_sick_nodes() {
    local sick before
    sick=$(paste -sd , "$own/sick-nodes" 2>/dev/null)
    before=$(excluded_nodes)
    if [[ $sick ]]; then exclude "${before:+$before,}$sick"; fi
}

# Exclude nodes from the next start of this job, unless it still runs, and of the jobs that follow it.
exclude() {
    local job
    for job in $(running || echo "$SLURM_JOB_ID") $(followers); do
        scontrol update JobId="$job" ExcNodeList="$1"
    done
}

# Nodes that this job excludes, separated by commas.
excluded_nodes() {
    local nodes
    nodes=$(scontrol show job "$SLURM_JOB_ID" --oneliner | grep -oP ' ExcNodeList=\K(?!\(null\))\S+')
    if [[ $nodes ]]; then scontrol show hostnames "$nodes" | paste -sd ,; fi
}

# Add to `facts` the nodes that this job excludes, how many more could be, and how many idle ones a requeue would find:
# none if the job names the nodes that it needs.
count_nodes() {
    local job excluded
    job=$(scontrol show job "$SLURM_JOB_ID" --oneliner)
    excluded=$(excluded_nodes)
    facts+=(--excluded="$excluded")
    if [[ $job != *" ReqNodeList=(null) "* ]]; then return; fi
    facts+=(--removable=$(($(num_other_nodes "$excluded") - SLURM_JOB_NUM_NODES)))
    if [[ $job == *" Requeue=1 "* ]]; then facts+=(--idle="$(num_other_nodes "$excluded" idle)"); fi
}

# num_other_nodes NODES [STATES]: number of nodes of the partition that are in service, without these. Only nodes with
# the features and GPUs of a node of this job count, because others may not fit its request.
num_other_nodes() {
    local nodes=(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION")
    "${nodes[@]}" --states="${2:-alloc,comp,idle,mix}" --format='%f %G %N' |
        grep --fixed-strings --file=<("${nodes[@]}" --nodes="$SLURM_JOB_NODELIST" --format='%f %G ') |
        sed 's/.* //' | sort -u | grep --count --invert-match --line-regexp --file=<(tr , '\n' <<<"$1")
}

# Jobs that wait for this one to end.
followers() {
    squeue --noheader --me --states=PENDING --format='%A %E' | grep --word-regexp "afterany:$SLURM_JOB_ID" | cut -d ' ' -f 1
}

# If the first node is lost, this script ends without a record. If that node is assigned to the job again, requeue.
leave_failed_node() {
    local before=${logs%.*}.$((restart - 1))
    [[ -e $before/nodes && ! -e $before/ended ]] || return 0
    local lost
    lost=$(head -n 1 "$before/nodes")
    scontrol show hostnames "$SLURM_JOB_NODELIST" | grep --quiet --line-regexp "$lost" || return 0
    trap : TERM
    if scontrol requeue "$SLURM_JOB_ID"; then
        exclude_lost_node "$lost"
        sleep infinity
        exit 75
    fi
}

# Whether the processes could not be started again: a node is gone, or cannot get rid of a process.
start_failed() {
    ((start && code != 75)) && [[ ! $asked ]] && ! grep --quiet 'srun: error: .*: tasks\? ' "$own/srun.log"
}

# Slurm requeues the job when it notices a lost node, by default within 5 minutes.
await_node_failure() {
    echo "The processes cannot be started again on all nodes: the job waits until Slurm reports a lost node."
    local try
    for try in {1..120}; do
        running || break
        sleep 5
    done
    exclude_lost_node "$(lost_node)"
}

# Start a Ray cluster on the nodes of this job, which ends with the job, and set RAY_ADDRESS. Its port depends on the job
# id. Other jobs cannot use the cluster, because they do not know its token.
start_ray() {
    local port=$((20000 + SLURM_JOB_ID % 1000 * 10)) nodes host head
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    host=$(address_of "${nodes[0]}")
    RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') RAY_USAGE_STATS_ENABLED=0
    export RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED
    local ray=("${python[@]}" -m megaptm.schedulers.ray.start --block --num-cpus="$SRUN_CPUS_PER_TASK")
    exec {head}< <(on_node "${nodes[0]}" "${ray[@]}" --head --node-ip-address="$host" --port="$port" --include-dashboard=false)
    read -r -u "$head" || exit # it prints a line when Ray runs, and none if it gave up
    local node
    for node in "${nodes[@]:1}"; do
        on_node "$node" "${ray[@]}" --address="$host:$port" >&2 &
    done
    export RAY_ADDRESS="$host:$port"
}

on_node() {
    srun "${options[@]}" --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --nodelist="$1" "${@:2}"
}

# Node names need not be host names.
address_of() {
    local family # `hosts` prefers IPv6, which needs brackets before a port
    for family in ahostsv4 hosts; do
        getent "$family" "$1" | awk '{print $1; exit}' | grep . && return
    done
    scontrol show node "$1" --oneliner | grep -oP '(?<=NodeAddr=)\S+'
}

if [[ ${MEGAPTM_IMAGE-} ]]; then # the container has no Slurm commands to find the first node
    MASTER_ADDR=$(address_of "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)") && export MASTER_ADDR
fi
